"""Says what a recording lacks, and why: warnings where something was recorded, an error where nothing was."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from esprof.errors import InputError
from esprof.trace.run import Warning
from esprof.tracer.injected.settings import Settings
from esprof.tracer.raw import RankNotes, claimed_again, processes


def shortfalls(raw: Path, notes: Sequence[RankNotes], settings: Settings) -> list[Warning]:
    """What the recording in `raw` lacks against what was asked for."""
    found = [warning for one in notes for warning in _of_rank(one, settings)]
    seen = {one.rank for one in notes}
    missing = tuple(sorted({rank for one in notes for rank in range(one.identity.world_size)} - seen))
    if missing:
        listed = ", ".join(map(str, missing))
        found.append(Warning("rank-missing", f"nothing was recorded of rank {listed}", missing))
    for rank in claimed_again(raw):
        message = f"rank {rank}: a second process of the job was rank {rank} too; only the first is recorded"
        found.append(Warning("rank-again", message, (rank,)))
    return found


def nothing_recorded(raw: Path, notes: Sequence[RankNotes], settings: Settings) -> InputError:
    """The error that explains why no rank of the job has a timed window."""
    if not raw.is_dir():
        return InputError("was removed while the job ran; nothing was recorded", path=raw)
    pythons, torches = processes(raw)
    if not pythons:
        return InputError(
            "nothing was recorded: no Python process of the command took up the recorder",
            remedy="A Python started with -I, -E or -S, or after PYTHONPATH was reset, cannot be recorded.",
        )
    if not torches:
        return InputError(
            f"nothing was recorded: {_count(pythons, 'Python process')} ran, but none imported torch",
            remedy='If torch is missing there: pip install "esprof[torch]".',
        )
    if not notes:
        return InputError(
            f"nothing was recorded: {_count(torches, 'process')} imported torch, but no torch.optim optimizer stepped",
            remedy="esprof tells the steps of a job by its optimizer's steps.",
        )
    return _no_window(max(notes, key=lambda one: len(one.steps)), settings)


def _no_window(notes: RankNotes, settings: Settings) -> InputError:
    if notes.faults:
        return InputError(f"nothing was recorded: {notes.faults[0]}")
    if notes.profiler_taken:
        return InputError(
            "nothing was recorded: the job runs torch.profiler itself, and a process can have only one",
            remedy="Switch the job's own profiler off, or hand its traces to esprof as they are.",
        )
    taken = len(notes.steps) + 1
    return InputError(
        f"nothing was recorded: timing begins with step {settings.first_timed}, the job took {_count(taken, 'step')}",
        remedy=f"Record a longer job, or --skip 1 --warmup 1 --steps {max(1, taken - 3)}.",
    )


def _of_rank(notes: RankNotes, settings: Settings) -> Iterator[Warning]:
    where, ranks = f"rank {notes.rank}", (notes.rank,)
    for fault in notes.faults:
        yield Warning("recorder-fault", f"{where}: {fault}", ranks)
    if notes.profiler_taken:
        step = notes.profiler_taken.step
        yield Warning("profiler-taken", f"{where}: the job took the profiler for itself in step {step}", ranks)
    timed = notes.windows.get("timed")
    if timed is None:
        last = notes.steps[-1].step if notes.steps else 0
        yield Warning("rank-missing", f"{where}: has no timed window; its last whole step is {last}", ranks)
    elif timed.last - timed.first + 1 < settings.steps:
        whole = timed.last - timed.first + 1
        yield Warning("window-short", f"{where}: {whole} of {settings.steps} timed steps were finished", ranks)


def _count(number: int, thing: str) -> str:
    plural = "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{'' if number == 1 else plural}"
