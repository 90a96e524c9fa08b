"""Warnings about incomplete recordings, and the error for an empty one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from esprof.core import readable
from esprof.core.errors import InputError
from esprof.core.text import printable
from esprof.run.collect.notes import Lost, RankNotes
from esprof.run.collect.raw import claimed_again, processes, read_rows
from esprof.run.collect.rolled_rows import RankRows
from esprof.run.raw import names
from esprof.run.raw.paced import PacedBy
from esprof.run.raw.reasons import LossReason
from esprof.run.raw.settings import Settings
from esprof.run.run import RunWarning, WarningCode

_GUESSED = {
    PacedBy.LOADER: "no optimizer stepped: each batch of a DataLoader counts as one step",
    PacedBy.MODULE: "no optimizer stepped: each call of the outermost module counts as one step",
}
"""Warnings about steps whose ends the recorder inferred."""


def job_warnings(raw: Path, notes: Sequence[RankNotes], unattributed: Sequence[Path]) -> list[RunWarning]:
    """Return warnings about ranks that are missing in `raw`; the rank of the `unattributed` files is unknown."""
    found = []
    for file in unattributed:
        found.append(RunWarning("rank-unreadable", f"{printable(file.name)} does not name its rank"))
    seen = {one.rank for one in notes}
    missing = tuple(sorted({rank for one in notes for rank in range(one.identity.world_size)} - seen))
    if missing:
        found.append(
            RunWarning(WarningCode.RANK_MISSING, f"nothing was recorded of {readable.ranks(missing)}", missing)
        )
    for rank in claimed_again(raw):
        message = f"rank {rank}: two processes of the job had this rank; only the first is recorded"
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
    """Return warnings about incomplete data of one rank, whose process may still be `alive`."""
    found = _of_process(notes, rows, settings, alive=alive), _of_windows(notes, rows, lost, settings, alive=alive)
    return [
        RunWarning(code, f"rank {notes.rank}: {message}", (notes.rank,)) for part in found for code, message in part
    ]


def lost_windows(notes: RankNotes, rows: RankRows, *, alive: bool) -> list[Lost]:
    """Return the windows that the rank abandoned, and those that were open when it was killed."""
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
    """Whether the recording gives no Run: windows were planned and none was recorded, although the job did not use the
    profiler itself and ended without a fault."""
    if not notes:
        return True
    wanted = settings.windows and not any(one.taken("timed") or one.job_profiled or one.jobs_traces for one in notes)
    in_order = all(one.ended or one.stopped for one in notes)
    return wanted and in_order and not any(names.is_snapshot(file.name) for file in raw.glob("*"))


def nothing_recorded(raw: Path, notes: Sequence[RankNotes], settings: Settings) -> InputError:
    """Return the error that explains why no rank of the job has a timed window."""
    if not raw.is_dir():
        return InputError("was removed while the job ran; the recording is lost", path=raw)
    pythons, torches = processes(raw)
    if not pythons:
        return InputError(
            "nothing was recorded: no Python process of the command loaded the recorder",
            remedy="Start Python without -I, -E or -S, and do not reset PYTHONPATH before it starts.",
        )
    if not torches:
        return InputError(
            f"nothing was recorded: {_count(pythons, 'Python process')} ran, but none imported torch",
            remedy='If torch is not installed there: pip install "esprof[torch]".',
        )
    silent = names.all_notes(raw).values()
    if not notes and silent:
        return InputError(
            f"nothing was recorded: {readable.ranks(silent)} trained, but could not write to this folder",
            path=raw,
            remedy="The disk is probably full. Record into a folder on a disk with free space.",
        )
    if not notes:
        return InputError(
            f"nothing was recorded: {_count(torches, 'process')} imported torch, but no step was detected: no torch.optim "
            "optimizer stepped, and no DataLoader or module was called repeatedly",
            remedy="Call esprof.step() at the end of each step, or wrap each step: `with esprof.step():`.",
        )
    return _no_window(raw, notes, settings)


def _no_window(raw: Path, notes: Sequence[RankNotes], settings: Settings) -> InputError:
    faults = [fault for one in notes for fault in one.faults]
    if faults:
        return InputError(f"nothing was recorded: {faults[0]}")
    lost = [lost.reason for one in notes for lost in one.lost]
    if lost:
        return InputError(f"nothing was recorded: all windows were lost ({lost[0]})")
    taken = max(_last_step(read_rows(raw, one)) for one in notes) + 1
    if not settings.by_steps:
        return InputError(f"nothing was recorded: the job ended before its first window, after {_count(taken, 'step')}")
    return InputError(
        f"nothing was recorded: the first timed step is {settings.first_timed}, but the job ended after "
        f"{_count(taken, 'step')}",
        remedy=f"Run the job for more steps, or pass --skip 1 --warmup 1 --steps {max(1, taken - 3)}.",
    )


def _of_process(notes: RankNotes, rows: RankRows, settings: Settings, *, alive: bool) -> Iterator[tuple[str, str]]:
    if notes.starting:
        yield "no-step", f"{'has not ended' if alive else 'did not end'} its first step"
    elif not (alive or notes.ended or notes.stopped):
        yield (
            "rank-killed",
            f"was killed or called os._exit(); its last recorded step is {_last_step(rows)}",
        )
    for fault in notes.faults:
        yield "recorder-fault", fault
    for taken in notes.profiler_taken:
        yield "profiler-taken", f"the job started its own profiler in step {taken.step}"
    for file in (*notes.unreadable, *rows.unreadable):
        yield "rank-unreadable", printable(file)
    # A flight recording is complete with the number of steps that it is set to retain.
    if rows.dropped_steps and not 0 < settings.flight_steps <= len(rows.steps):
        dropped, first = _count(rows.dropped_steps, "step"), rows.steps[0].step
        yield (
            "steps-dropped",
            f"{dropped} were dropped to limit the recording's size; the first retained step is {first}",
        )


def _of_windows(
    notes: RankNotes, rows: RankRows, lost: Sequence[Lost], settings: Settings, *, alive: bool
) -> Iterator[tuple[str, str]]:
    for missed in notes.missed:
        yield "order-missed", f"received the request for a window at step {missed.at} too late, in step {missed.step}"
    for reason in dict.fromkeys(one.reason for one in lost):
        firsts = [one.first for one in lost if one.reason == reason]
        where = f"at {readable.numbered('step', firsts)}"
        yield "windows-lost", f"{_count(len(firsts), 'window')} {where} lost: {reason}"
    timed = notes.taken("timed")
    if settings.windows and not timed and not (alive or notes.starting or notes.jobs_traces):
        yield "no-timed-window", f"has no timed window; its last complete step is {_last_step(rows)}"
    for window in timed:
        whole = window.last - window.first + 1
        if whole < settings.steps:
            yield "window-short", f"the timed window at step {window.first} has {whole} of {settings.steps} steps"


def _last_step(rows: RankRows) -> int:
    return rows.steps[-1].step if rows.steps else 0


def _count(number: int, thing: str) -> str:
    plural = "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{'' if number == 1 else plural}"
