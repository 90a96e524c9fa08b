"""A job that is watched: what the files of its Run tell, and what is being done about it here."""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from esprof.core.errors import EsprofError, InputError, unreadable
from esprof.core.plan import Plan, PlanStatus, read_plan
from esprof.reports.live.offer import LatestSearch, read_search
from esprof.reports.live.step_shift import Shift
from esprof.run import files
from esprof.run.files import status_path
from esprof.run.logs import HISTORY, ROUNDS, JobEvent, LiveStep, Round, Tail

_MAX_STEPS_KEPT = 1_000
"""Steps that are remembered."""

_MAX_STEPS_COMPARED = 300
"""Steps of those that have come at once that are looked at for a change: it takes a statistical test for each."""


_Content = TypeVar("_Content")


class WatchedJob:
    """One Run directory. `refresh` reads its files; nothing else here does."""

    def __init__(self, run: Path, name: str) -> None:
        self.run, self.name = run, name
        self.steps: deque[LiveStep] = deque(maxlen=_MAX_STEPS_KEPT)
        self.last_step_at: float | None = None
        """When the newest step came, in seconds since the Unix epoch."""
        self.said = ""
        """Why the last thing that a person asked for was not done."""
        self.is_looking = False
        """Whether a search for advice goes on."""
        self.has_shifted = False
        """Whether steps have lastingly changed since somebody last asked this."""
        self._tail, self._shift = Tail(run), Shift()
        self._tail_problem: str | None = None
        self._plan: _WatchedFile[Plan | None] = _WatchedFile(run / files.PLAN, read_plan, None)
        self._status: _WatchedFile[PlanStatus | None] = _WatchedFile(status_path(run / files.PLAN), _read_status, None)
        self._history: _WatchedFile[tuple[JobEvent, ...]] = _WatchedFile(
            run / files.HISTORY, lambda path: HISTORY.read(path.parent), ()
        )
        self._looked: _WatchedFile[LatestSearch | None] = _WatchedFile(run / files.ADVICE, read_search, None)
        self._rounds: _WatchedFile[tuple[Round, ...]] = _WatchedFile(
            run / files.ROUNDS, lambda path: ROUNDS.read(path.parent), ()
        )

    def refresh(self) -> bool:
        """Read what has changed; returns whether anything has."""
        files = (self._plan, self._status, self._history, self._looked, self._rounds)
        changed = [file.refresh() for file in files]
        return self._read_steps() or any(changed)

    @property
    def plan(self) -> Plan | None:
        """What the job was given last; None where that is nothing, or cannot be read."""
        return self._plan.value

    @property
    def status(self) -> PlanStatus | None:
        return self._status.value

    @property
    def history(self) -> tuple[JobEvent, ...]:
        return self._history.value

    @property
    def looked(self) -> LatestSearch | None:
        return self._looked.value

    @property
    def rounds(self) -> tuple[Round, ...]:
        return self._rounds.value

    @property
    def problems(self) -> tuple[str, ...]:
        """What of the files is wrong."""
        files = (self._plan, self._status, self._history, self._looked, self._rounds)
        found = [self._tail_problem, *(file.problem for file in files)]
        if not self.run.is_dir():
            found = [f"{self.run} is not there any more"]
        return tuple(problem for problem in found if problem is not None)

    @property
    def since(self) -> int | None:
        """The step from which on the job does what it does now, as far as is known."""
        return self._shift.since

    @property
    def next_step(self) -> int:
        """The step that comes next, as far as is known."""
        known = [self.steps[-1].step + 1] if self.steps else []
        return max([*known, *(event.step for event in self.history[-1:])], default=0)

    def _read_steps(self) -> bool:
        first_look = self.last_step_at is None
        try:
            come, self._tail_problem = self._tail.read(), None
        except EsprofError as error:
            problem = " ".join(str(error).split())
            is_new, self._tail_problem = problem != self._tail_problem, problem
            return is_new
        if not come:
            return False
        for step in come:
            if self.steps and step.step <= self.steps[-1].step:  # It went on from a checkpoint, or began anew.
                self.steps.clear()
            self.steps.append(step)
        shifted = [self._shift.note(step) for step in come[-_MAX_STEPS_COMPARED:]]
        self.last_step_at = self._written_at() if first_look else time.time()
        # What lies in the past when this process starts is no reason to do anything.
        self.has_shifted |= any(shifted) and not first_look
        return True

    def _written_at(self) -> float:
        try:
            return min(time.time(), (self.run / files.LIVE).stat().st_mtime)
        except OSError:
            return time.time()


class _WatchedFile(Generic[_Content]):
    """What one file holds, read anew when it has changed. One that cannot be read has `missing`, and a `problem`."""

    def __init__(self, path: Path, read: Callable[[Path], _Content], missing: _Content) -> None:
        """`read` raises EsprofError where the file makes no sense; it is not called where there is none."""
        self._path, self._read, self._missing = path, read, missing
        self._seen: tuple[int, int, int] | None = None
        self.value = missing
        self.problem: str | None = None

    def refresh(self) -> bool:
        """Whether it has changed."""
        try:
            now = self._path.stat()
            seen = (now.st_mtime_ns, now.st_ino, now.st_size)
        except OSError:
            seen = None
        if seen == self._seen:
            return False
        self._seen, self.value, self.problem = seen, self._missing, None
        if seen is not None:
            try:
                self.value = self._read(self._path)
            except (EsprofError, RecursionError) as error:
                self.problem = " ".join(str(error).split())
        return True


def _read_status(path: Path) -> PlanStatus:
    try:
        return msgspec.json.decode(path.read_bytes(), type=PlanStatus)
    except OSError as error:
        raise unreadable(path, error) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"tells of no plan: {error}", path=path) from error
