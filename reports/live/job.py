"""A watched job: the content of its Run's files, and its state on the server."""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from esprof.core.disk import read_regular
from esprof.core.errors import EsprofError, InputError, unreadable
from esprof.core.plan import Plan, PlanStatus, read_plan
from esprof.core.types import NOT_DECODED
from esprof.reports.live.change_point import ChangePointDetector
from esprof.reports.live.proposal import LatestSearch, read_search
from esprof.run import files
from esprof.run.files import status_path
from esprof.run.logs import HISTORY, ROUNDS, JobEvent, LiveStep, Round, Tail

_MAX_STEPS_RETAINED = 1_000
"""Steps retained."""

_MAX_STEPS_COMPARED = 300
"""Most steps tested for a change point per read, since each takes a statistical test."""

_MAX_STATUS_BYTES = 1 << 20

_Content = TypeVar("_Content")


class WatchedJob:
    """One Run directory. `refresh` reads its files; nothing else here does."""

    def __init__(self, run: Path, name: str) -> None:
        self.run, self.name = run, name
        self.steps: deque[LiveStep] = deque(maxlen=_MAX_STEPS_RETAINED)
        self.last_step_at: float | None = None
        """Time of the newest step, in seconds since the Unix epoch."""
        self.message = ""
        """Why the last request of a user failed."""
        self.is_recorded = False
        """Whether the Run is complete, as one of `esprof record` is."""
        self.is_searching = False
        """Whether a search is running."""
        self.has_changed = False
        """Whether there was a change point since this was last reset."""
        self._tail, self._change_point = Tail(run), ChangePointDetector()
        self._tail_problem: str | None = None
        self._plan: _WatchedFile[Plan | None] = _WatchedFile(run / files.PLAN, read_plan, None)
        self._status: _WatchedFile[PlanStatus | None] = _WatchedFile(status_path(run / files.PLAN), _read_status, None)
        self._history: _WatchedFile[tuple[JobEvent, ...]] = _WatchedFile(
            run / files.HISTORY, lambda path: HISTORY.read(path.parent), ()
        )
        self._latest_search: _WatchedFile[LatestSearch | None] = _WatchedFile(run / files.ADVICE, read_search, None)
        self._rounds: _WatchedFile[tuple[Round, ...]] = _WatchedFile(
            run / files.ROUNDS, lambda path: ROUNDS.read(path.parent), ()
        )

    def refresh(self) -> bool:
        """Read changed files. Returns whether there were any."""
        watched = (self._plan, self._status, self._history, self._latest_search, self._rounds)
        changed = [file.refresh() for file in watched]
        was_recorded, self.is_recorded = self.is_recorded, (self.run / files.META).exists()
        return self._read_steps() or any(changed) or self.is_recorded != was_recorded

    @property
    def plan(self) -> Plan | None:
        """The latest plan sent to the job; None if there is none or it is unreadable."""
        return self._plan.value

    @property
    def status(self) -> PlanStatus | None:
        return self._status.value

    @property
    def history(self) -> tuple[JobEvent, ...]:
        return self._history.value

    @property
    def latest_search(self) -> LatestSearch | None:
        return self._latest_search.value

    @property
    def rounds(self) -> tuple[Round, ...]:
        return self._rounds.value

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems of the files."""
        files = (self._plan, self._status, self._history, self._latest_search, self._rounds)
        found = [self._tail_problem, *(file.problem for file in files)]
        if not self.run.is_dir():
            found = [f"{self.run} no longer exists"]
        return tuple(problem for problem in found if problem is not None)

    @property
    def since(self) -> int | None:
        """The first step after the last change point, if known."""
        return self._change_point.since

    @property
    def next_step(self) -> int:
        """The next step, if known."""
        known = [self.steps[-1].step + 1] if self.steps else []
        return max([*known, *(event.step for event in self.history[-1:])], default=0)

    def _read_steps(self) -> bool:
        is_first_read = self.last_step_at is None
        try:
            steps, self._tail_problem = self._tail.read(), None
        except EsprofError as error:
            problem = " ".join(str(error).split())
            is_new, self._tail_problem = problem != self._tail_problem, problem
            return is_new
        if not steps:
            return False
        for step in steps:
            if self.steps and step.step <= self.steps[-1].step:  # Restarted, maybe from a checkpoint.
                self.steps.clear()
            self.steps.append(step)
        changes = [self._change_point.note(step) for step in steps[-_MAX_STEPS_COMPARED:]]
        self.last_step_at = self._written_at() if is_first_read else time.time()
        # Change points before the server started trigger nothing.
        self.has_changed |= any(changes) and not is_first_read
        return True

    def _written_at(self) -> float:
        try:
            return min(time.time(), (self.run / files.LIVE).stat().st_mtime)
        except OSError:
            return time.time()


class _WatchedFile(Generic[_Content]):
    """The content of a file, re-read after a change. If unreadable, it is `missing`, with a `problem`."""

    def __init__(self, path: Path, read: Callable[[Path], _Content], missing: _Content) -> None:
        """`read` raises EsprofError for an invalid file; it is not called for a missing one."""
        self._path, self._read, self._missing = path, read, missing
        self._seen: tuple[int, int, int] | None = None
        self.value = missing
        self.problem: str | None = None

    def refresh(self) -> bool:
        """Re-read the file. Returns whether it changed."""
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
            except EsprofError as error:
                self.problem = " ".join(str(error).split())
        return True


def _read_status(path: Path) -> PlanStatus:
    try:
        return msgspec.json.decode(read_regular(path, _MAX_STATUS_BYTES), type=PlanStatus)
    except OSError as error:
        raise unreadable(path, error) from error
    except NOT_DECODED as error:
        raise InputError(f"holds no plan status: {error}", path=path) from error
