"""Request a window from a running job: write an order for its ranks and wait for their answers."""

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from esprof.core import readable
from esprof.core.errors import InputError, unreadable
from esprof.core.output import unwritable
from esprof.core.types import Rank
from esprof.run import files
from esprof.run.flight.log import may_be_alive
from esprof.run.raw import names

_POLL_NOTES_S = 0.25
_MAX_WAIT_AFTER_LOSS_S = 1.0
"""Wait after a note that a window was lost, s: for a window that was cut short, a note that it was recorded follows."""


@dataclass(frozen=True)
class RankAnswer:
    """Outcome of the request on one rank."""

    rank: Rank
    outcome: Literal["recorded", "missed", "lost", "ended", "waiting"]
    """`recorded`, `missed` (the request arrived too late), `lost`, `ended` (the process ended), or `waiting`."""
    steps: tuple[int, int] | None = None
    """First and last recorded step."""
    reason: str = ""

    def __str__(self) -> str:
        if self.steps is not None:
            return f"recorded steps {self.steps[0]} to {self.steps[1]}"
        return f"{self.outcome}: {self.reason}" if self.reason else self.outcome


@dataclass(frozen=True)
class Attached:
    """Outcome of the request on each rank, ascending."""

    ranks: tuple[RankAnswer, ...]

    @property
    def whole(self) -> bool:
        """Whether all ranks recorded the window."""
        return all(rank.outcome == "recorded" for rank in self.ranks)

    def begins_after(self, step: int) -> bool:
        """Whether any rank recorded a window that begins after `step`."""
        return any(rank.steps is not None and rank.steps[0] > step for rank in self.ranks)

    def __str__(self) -> str:
        alike: dict[str, list[Rank]] = {}
        for answer in self.ranks:
            alike.setdefault(str(answer), []).append(answer.rank)
        return "\n".join(f"{readable.ranks(ranks)} {what}" for what, ranks in alike.items())


def order_window(raw: Path, at: int | None = None) -> Path:
    """Request a window that begins with step `at`, or soon, from the job that writes to `raw`. Returns the order's path.

    Raises OutputError if the order cannot be written.
    """
    return leave_order(raw, {"at": at})


def leave_order(raw: Path, content: Mapping[str, object]) -> Path:
    """Write an order, completely or not at all, for the ranks that write to `raw`. Returns its path.

    Raises OutputError if it cannot be written.
    """
    order = raw / names.ORDERS / f"{time.time_ns()}.json"
    temporary = order.with_suffix(f".{secrets.token_hex(4)}.part")
    try:
        order.parent.mkdir(mode=0o700, exist_ok=True)
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "w") as opened:
            json.dump(content, opened)
        temporary.rename(order)
    except OSError as error:
        with suppress(OSError):  # It may not exist.
            temporary.unlink()
        raise unwritable(order, error) from error
    return order


def attach(run: Path, at: int | None = None, timeout_s: float = 600) -> Attached:
    """Record a window of the running job in `run`, at step `at` or soon, and wait for its end.

    `run` may also be the folder of several launchers' Runs (`part-00000`, …). An open or overlapping window counts as the
    requested one. Raises InputError if no job is being recorded there, if the job ends before any rank has answered, or
    if the ranks do not answer in time.
    """
    raws = _raws_of(run)
    ranks = _Ranks(raws, at or 0)
    if ranks.logs and not ranks.alive:
        raise InputError("is not being recorded: no process of the job is alive", path=run)
    _own(raws[0])
    order_window(next((raw for raw in raws if _log_of_leader(raw).exists()), raws[0]), at)
    deadline = time.monotonic() + timeout_s
    while not ranks.settled:
        if time.monotonic() > deadline:
            raise _no_answer(run, ranks, timeout_s)
        time.sleep(_POLL_NOTES_S)
        ranks.look()
    answers = tuple(log.answer for log in ranks.logs)
    if all(answer.outcome == "ended" for answer in answers):
        raise InputError("the job ended before the end of the window", path=run)
    return Attached(answers)


def _raws_of(run: Path) -> list[Path]:
    """Return the folders that the job's ranks write to: that of the Run, or one for each launcher."""
    try:
        if not run.exists():
            raise InputError("does not exist", path=run, remedy="Name the RUN of a job that is being recorded.")
        raws = [raw for raw in (run / files.RAW, *sorted(run.glob(f"{files.PARTS}/{files.RAW}"))) if raw.is_dir()]
    except OSError as error:
        raise unreadable(run, error) from error
    if not raws:
        ended = ": the job has ended" if files.is_complete(run) else ""
        raise InputError(f"is not being recorded{ended}", path=run)
    return raws


def _own(raw: Path) -> None:
    """Raise InputError if another user runs the job, as it could not read the order."""
    if raw.stat().st_uid != os.geteuid():
        raise InputError("the job is another user's", path=raw, remedy="Attach as the user who runs it.")


def _log_of_leader(raw: Path) -> Path:
    return raw / names.notes_of(0)


def _no_answer(run: Path, ranks: "_Ranks", timeout_s: float) -> InputError:
    if not ranks.logs:
        return InputError(f"no rank of the job ended a step within {timeout_s:g} s", path=run)
    if not ranks.stepped:
        remedy = f"If the job hangs, `esprof diagnose {run}` shows where."
        return InputError(f"no optimizer step ended within {timeout_s:g} s", path=run, remedy=remedy)
    answers = Attached(tuple(log.answer for log in ranks.logs))
    return InputError(
        f"not all ranks recorded the window within {timeout_s:g} s: {'; '.join(str(answers).splitlines())}"
    )


class _Ranks:
    """The ranks of a job and their notes from now on."""

    def __init__(self, raws: Sequence[Path], at: int) -> None:
        self._raws = raws
        self._at = at
        self._logs = {path: _RankLog(path, rank, at, os.path.getsize(path)) for path, rank in self._notes()}
        self._steps_before = self._written()

    @property
    def logs(self) -> list["_RankLog"]:
        return sorted(self._logs.values(), key=lambda log: log.rank)

    @property
    def alive(self) -> bool:
        return any(may_be_alive(log.path) for log in self.logs)

    @property
    def settled(self) -> bool:
        """Whether every rank has given its answer."""
        return bool(self._logs) and all(log.settled for log in self.logs)

    @property
    def stepped(self) -> bool:
        """Whether any rank ended a step since this object was created."""
        return self._written() != self._steps_before

    def look(self) -> None:
        for path, rank in self._notes():
            if path not in self._logs:
                self._logs[path] = _RankLog(path, rank, self._at, 0)
            self._logs[path].look()

    def _notes(self) -> Iterator[tuple[Path, Rank]]:
        for raw in self._raws:
            yield from names.all_notes(raw).items()

    def _written(self) -> list[tuple[str, int]]:
        files = [file for raw in self._raws for file in raw.glob(names.ROLLING)]
        return sorted((str(file), file.stat().st_mtime_ns) for file in files)


class _RankLog:
    """The notes of one rank and its answer in them."""

    def __init__(self, path: Path, rank: Rank, at: int, seen: int) -> None:
        """`seen` is the size of the notes that are older than the request, bytes."""
        self.path = path
        self.rank = rank
        self.answer = RankAnswer(rank, "waiting")
        self._at = at
        self._seen = seen
        self._lost_s = 0.0

    @property
    def settled(self) -> bool:
        if self.answer.outcome == "lost":
            return time.monotonic() - self._lost_s > _MAX_WAIT_AFTER_LOSS_S
        return self.answer.outcome != "waiting"

    def look(self) -> None:
        if self.settled:
            return
        alive = may_be_alive(self.path)  # Checked before the notes are read, so that its last notes are not missed.
        for row in self._new_rows():
            self._take(row)
        if self.answer.outcome == "waiting" and not alive:
            self.answer = RankAnswer(self.rank, "ended", reason=self.answer.reason)

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            file.seek(self._seen)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._seen += len(whole)
        for line in whole.splitlines():
            row = json.loads(line)
            if isinstance(row, dict):
                yield row

    def _take(self, row: dict[str, Any]) -> None:
        if self.answer.outcome == "recorded":
            return
        match row:
            case {"kind": "window", "phase": "timed", "first": int(first), "last": int(last)} if first >= self._at:
                self.answer = RankAnswer(self.rank, "recorded", (first, last))
            case {"kind": "missed", "at": int(at), "step": int(step)}:
                reason = f"it was in step {step} already when the request for step {at} arrived"
                self.answer = RankAnswer(self.rank, "missed", reason=reason)
            case {"kind": "lost", "phase": "timed", "first": int(first), "reason": str(reason)} if first >= self._at:
                self.answer, self._lost_s = RankAnswer(self.rank, "lost", reason=reason), time.monotonic()
            case {"kind": "fault" | "stopped", "message": str(message)}:
                self.answer = RankAnswer(self.rank, "waiting", reason=message)
