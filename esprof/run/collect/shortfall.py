"""Says what a recording lacks, and why: warnings where something was recorded, an error where nothing was."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from esprof.core import readable
from esprof.core.errors import InputError
from esprof.core.text import printable
from esprof.run.collect.notes import Lost, RankNotes, RankRows
from esprof.run.collect.raw import claimed_again, processes, read_rows
from esprof.run.raw import names
from esprof.run.raw.paced import PacedBy
from esprof.run.raw.reasons import LossReason
from esprof.run.raw.settings import Settings
from esprof.run.run import RunWarning, WarningCode

_GUESSED = {
    PacedBy.LOADER: "no optimizer stepped: a step is what lies between two batches of a DataLoader",
    PacedBy.MODULE: "no optimizer stepped: a step ends where a module returns that no other module called",
}
"""What is said of steps that the job itself did not tell."""


def job_warnings(raw: Path, notes: Sequence[RankNotes], unattributed: Sequence[Path]) -> list[RunWarning]:
    """Warnings of whole ranks that the recording in `raw` lacks; `unattributed` files do not tell whose they are."""
    found = []
    for file in unattributed:
        found.append(RunWarning("rank-unreadable", f"{printable(file.name)} does not say which rank it is of"))
    seen = {one.rank for one in notes}
    missing = tuple(sorted({rank for one in notes for rank in range(one.identity.world_size)} - seen))
    if missing:
        found.append(
            RunWarning(WarningCode.RANK_MISSING, f"nothing was recorded of {readable.ranks(missing)}", missing)
        )
    for rank in claimed_again(raw):
        message = f"rank {rank}: a second process of the job was rank {rank} too; only the first is recorded"
        found.append(RunWarning("rank-again", message, (rank,)))
    for by in {one.paced.by: None for one in notes if one.paced}:
        if by in _GUESSED:
            found.append(RunWarning("steps-guessed", _GUESSED[by]))
    lacks = {
        f"torch {one.identity.versions.get('torch')}: {what}": None for one in notes for what in one.identity.lacks
    }
    return found + [RunWarning(WarningCode.TORCH_LACKS, what) for what in lacks]


def rank_warnings(
    notes: RankNotes, rows: RankRows, lost: Sequence[Lost], settings: Settings, *, alive: bool
) -> list[RunWarning]:
    """Warnings of what the recording lacks of one rank, whose process may still be `alive`."""
    found = _of_process(notes, rows, settings, alive=alive), _of_windows(notes, rows, lost, settings, alive=alive)
    return [
        RunWarning(code, f"rank {notes.rank}: {message}", (notes.rank,)) for part in found for code, message in part
    ]


def lost_windows(notes: RankNotes, rows: RankRows, *, alive: bool) -> list[Lost]:
    """The windows that the rank noted as given up, and those that were open when it was killed."""
    lost = list(notes.lost)
    if alive or notes.ended or notes.stopped:
        return lost
    last = {window.phase: window.last for window in notes.windows}
    for phase in ("timed", "stack"):
        known = max(last.get(phase, 0), max((one.first for one in lost if one.phase == phase), default=0))
        cut = [row.step for row in rows.steps if row.phase == phase and row.step > known]
        if cut:
            lost.append(Lost(first=cut[0], phase=phase, reason=LossReason.CUT))
    return lost


def is_empty(raw: Path, notes: Sequence[RankNotes], settings: Settings) -> bool:
    """Whether the recording is not worth a Run: no window was recorded though some were planned, not because the job ran a
    profiler of its own, and the job shows no fault."""
    if not notes:
        return True
    wanted = settings.windows and not any(one.taken("timed") or one.job_profiled or one.jobs_traces for one in notes)
    in_order = all(one.ended or one.stopped for one in notes)
    return wanted and in_order and not any(names.is_snapshot(file.name) for file in raw.glob("*"))


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
    silent = names.all_notes(raw).values()
    if not notes and silent:
        return InputError(
            f"nothing was recorded: {readable.ranks(silent)} trained, but could not write the recording",
            path=raw,
            remedy="Most often the disk is full: record into a folder with room.",
        )
    if not notes:
        return InputError(
            f"nothing was recorded: {_count(torches, 'process')} imported torch, but no step was seen: no torch.optim "
            "optimizer stepped, and no DataLoader and no module was called again and again",
            remedy="Call esprof.step() where a step ends, or wrap it: `with esprof.step():`.",
        )
    return _no_window(raw, notes, settings)


def _no_window(raw: Path, notes: Sequence[RankNotes], settings: Settings) -> InputError:
    faults = [fault for one in notes for fault in one.faults]
    if faults:
        return InputError(f"nothing was recorded: {faults[0]}")
    lost = [lost.reason for one in notes for lost in one.lost]
    if lost:
        return InputError(f"nothing was recorded: no window could be kept ({lost[0]})")
    taken = max(_last_step(read_rows(raw, one)) for one in notes) + 1
    if not settings.by_steps:
        return InputError(f"nothing was recorded: the job ended before its first window, after {_count(taken, 'step')}")
    return InputError(
        f"nothing was recorded: timing begins with step {settings.first_timed}, the job took {_count(taken, 'step')}",
        remedy=f"Record a longer job, or --skip 1 --warmup 1 --steps {max(1, taken - 3)}.",
    )


def _of_process(notes: RankNotes, rows: RankRows, settings: Settings, *, alive: bool) -> Iterator[tuple[str, str]]:
    if notes.starting:
        yield "no-step", f"{'has not ended' if alive else 'did not end'} its first step"
    elif not (alive or notes.ended or notes.stopped):
        yield (
            "rank-killed",
            f"ended without a word, killed or by os._exit; the last step it noted is {_last_step(rows)}",
        )
    for fault in notes.faults:
        yield "recorder-fault", fault
    for taken in notes.profiler_taken:
        yield "profiler-taken", f"the job took the profiler for itself in step {taken.step}"
    for file in (*notes.unreadable, *rows.unreadable):
        yield "rank-unreadable", printable(file)
    # A flight recorder that has the steps that it was asked to keep lacks none.
    if rows.dropped_steps and not 0 < settings.flight_steps <= len(rows.steps):
        dropped, first = _count(rows.dropped_steps, "step"), rows.steps[0].step
        yield "steps-dropped", f"the rows of {dropped} were dropped to save room; those left begin with step {first}"


def _of_windows(
    notes: RankNotes, rows: RankRows, lost: Sequence[Lost], settings: Settings, *, alive: bool
) -> Iterator[tuple[str, str]]:
    for missed in notes.missed:
        yield "order-missed", f"heard in step {missed.step} of the window ordered for step {missed.at}, too late"
    for reason in dict.fromkeys(one.reason for one in lost):
        firsts = [one.first for one in lost if one.reason == reason]
        where = f"of {readable.numbered('step', firsts)}"
        yield "windows-lost", f"{_count(len(firsts), 'window')} {where} not kept: {reason}"
    timed = notes.taken("timed")
    if settings.windows and not timed and not (alive or notes.starting or notes.jobs_traces):
        yield "no-timed-window", f"has no timed window; its last whole step is {_last_step(rows)}"
    for window in timed:
        whole = window.last - window.first + 1
        if whole < settings.steps:
            yield "window-short", f"{whole} of {settings.steps} timed steps from {window.first} on were finished"


def _last_step(rows: RankRows) -> int:
    return rows.steps[-1].step if rows.steps else 0


def _count(number: int, thing: str) -> str:
    plural = "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{'' if number == 1 else plural}"
