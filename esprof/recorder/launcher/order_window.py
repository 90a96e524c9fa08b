"""Takes a window of a job that is being recorded: leaves the request where its ranks look, and waits for their answer."""

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
"""Seconds to wait after a window was noted as lost: one that was cut short is noted as recorded just after that."""


@dataclass(frozen=True)
class RankAnswer:
    """What became of the window on one rank."""

    rank: Rank
    outcome: Literal["recorded", "missed", "lost", "ended", "waiting"]
    """`recorded`, `missed` (the rank heard of the step too late), `lost`, `ended` (its process did), or `waiting`."""
    steps: tuple[int, int] | None = None
    """First and last recorded step."""
    reason: str = ""

    def __str__(self) -> str:
        if self.steps is not None:
            return f"recorded steps {self.steps[0]} to {self.steps[1]}"
        return f"{self.outcome}: {self.reason}" if self.reason else self.outcome


@dataclass(frozen=True)
class Attached:
    """What became of the window on each rank, ascending."""

    ranks: tuple[RankAnswer, ...]

    @property
    def whole(self) -> bool:
        """Whether all ranks recorded the window."""
        return all(rank.outcome == "recorded" for rank in self.ranks)

    def __str__(self) -> str:
        alike: dict[str, list[Rank]] = {}
        for answer in self.ranks:
            alike.setdefault(str(answer), []).append(answer.rank)
        return "\n".join(f"{readable.ranks(ranks)} {what}" for what, ranks in alike.items())


def order_window(raw: Path, at: int | None = None) -> Path:
    """Ask the job that writes to `raw` for a window that begins with step `at`, or soon. Returns the file that asks.

    Raises OutputError where that file cannot be written.
    """
    return leave_order(raw, {"at": at})


def leave_order(raw: Path, content: Mapping[str, object]) -> Path:
    """Leave an order, whole or not at all, where the ranks that write to `raw` look. Returns its file.

    Raises OutputError where that file cannot be written.
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
        with suppress(OSError):  # It may not even be there.
            temporary.unlink()
        raise unwritable(order, error) from error
    return order


def attach(run: Path, at: int | None = None, timeout_s: float = 600) -> Attached:
    """Take a window of the job that is being recorded into `run`, at step `at` or soon, and wait until it is closed.

    `run` may also be the folder of the parts of one job, which several launchers record. A window that runs already, or
    that would overlap the one asked for, counts. Raises InputError where no job is recorded there, where it ends before
    any rank has answered, or where no rank answers in time.
    """
    raws = _raws_of(run)
    ranks = _Ranks(raws, at or 0)
    if ranks.logs and not ranks.alive:
        raise InputError("nothing is being recorded there: no process of the job is alive", path=run)
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
        raise InputError("the job ended before the window was closed", path=run)
    return Attached(answers)


def _raws_of(run: Path) -> list[Path]:
    """The folders that the job's ranks write to: that of the Run, or those of its parts."""
    try:
        if not run.exists():
            raise InputError("does not exist", path=run, remedy="Name the RUN that a job is being recorded into.")
        raws = [raw for raw in (run / files.RAW, *sorted(run.glob(f"{files.PARTS}/{files.RAW}"))) if raw.is_dir()]
    except OSError as error:
        raise unreadable(run, error) from error
    if not raws:
        ended = ": the job has ended" if files.is_whole(run) else ""
        raise InputError(f"nothing is being recorded there{ended}", path=run)
    return raws


def _own(raw: Path) -> None:
    """Raise InputError where another user runs the job: it could not read our order."""
    if raw.stat().st_uid != os.geteuid():
        raise InputError("the job is another user's", path=raw, remedy="Attach as the user who runs it.")


def _log_of_leader(raw: Path) -> Path:
    return raw / names.notes_of(0)


def _no_answer(run: Path, ranks: "_Ranks", timeout_s: float) -> InputError:
    if not ranks.logs:
        return InputError(f"no rank of the job ended a step within {timeout_s:g} s", path=run)
    if not ranks.stepped:
        remedy = f"If the job hangs, `esprof diagnose {run}` says where."
        return InputError(f"no optimizer step ended within {timeout_s:g} s", path=run, remedy=remedy)
    answers = Attached(tuple(log.answer for log in ranks.logs))
    return InputError(f"not all ranks closed the window within {timeout_s:g} s: {'; '.join(str(answers).splitlines())}")


class _Ranks:
    """The ranks of a job, as their notes show them from now on."""

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
        """Whether any rank noted a step since the beginning."""
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
    """The notes of one rank, and what they answer."""

    def __init__(self, path: Path, rank: Rank, at: int, seen: int) -> None:
        """`seen`: bytes of the notes that are older than the request."""
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
        alive = may_be_alive(self.path)  # Before the notes are read: else its last ones might be overlooked.
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
                reason = f"it was in step {step} when it heard that the window begins with step {at}"
                self.answer = RankAnswer(self.rank, "missed", reason=reason)
            case {"kind": "lost", "phase": "timed", "first": int(first), "reason": str(reason)} if first >= self._at:
                self.answer, self._lost_s = RankAnswer(self.rank, "lost", reason=reason), time.monotonic()
            case {"kind": "fault" | "stopped", "message": str(message)}:
                self.answer = RankAnswer(self.rank, "waiting", reason=message)
