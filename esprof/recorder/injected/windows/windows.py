"""The windows of a rank: opened, closed and abandoned according to the schedule, the job's own profiler and the limits."""

import os
import resource
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from ....run.raw import names
from ....run.raw.new_files import write_new
from ....run.raw.reasons import LossReason
from ....run.raw.settings import Settings
from ...shared.torch_features import dump_collectives
from ..log.circuit_breaker import CircuitBreaker
from ..log.notes import Log
from ..state import StepState
from . import jobs_profiler
from .module_events import ModuleEvents
from .schedule import WindowSchedule
from .window import ProfilerWindow, ThreadsEnd, leave_without_kineto

_PAGE = resource.getpagesize()


@dataclass
class _Open:
    """The window that the profiler records."""

    window: ProfilerWindow
    phase: str
    first: int
    thread: int
    """Id of the thread that prepared the window. No other may stop it: PyTorch would crash."""
    resident: int
    """Resident bytes of the process when the window was opened."""


class Windows:
    """Follows the schedule at each step boundary, on the training thread.

    The job's own profiler has precedence, as a process can run only one: its start closes the open window, and no window is
    opened while it runs.
    """

    def __init__(self, raw: str, settings: Settings, schedule: WindowSchedule, state: StepState, log: Log) -> None:
        self._raw = raw
        self._settings = settings
        self._schedule = schedule
        self._state = state
        self._log = log
        self._modules = ModuleEvents(log)
        self._open: _Open | None = None
        self._closing: _Open | None = None
        """The window whose trace is being written."""
        self._done_with: int | None = None
        """Base of the last window that was closed early or not opened; None if there was none."""
        self._job_profiles = False
        self._job_changed = False
        """Whether the job's profiler started, stopped or wrote a trace in the current step."""
        self._calls_at: int | None = None
        """Step number in the file name of the collectives of the job's profiler; None without a file."""
        self._of_thread = threading.local()
        self._has_profiled = False
        self._abandoned: _Open | None = None
        """A window whose profiler still runs in another thread; no other opens until that thread has stopped it."""
        self._stored: deque[tuple[int, str, list[str], int]] = deque()
        """First step, phase, files and bytes of the windows on disk, oldest first."""

    @property
    def is_timing(self) -> bool:
        return self._open is not None and self._open.phase == "timed"

    @property
    def has_stored(self) -> bool:
        """Whether a window is on disk."""
        return bool(self._stored)

    def watch_jobs_profilers(self, breaker: CircuitBreaker) -> None:
        """Watch the starts and stops of the job's own profilers, and the paths of their traces."""
        jobs_profiler.watch(
            jobs_profiler.Notices(
                prepares=lambda: breaker.run(self._yield_to_job),
                ends=lambda: breaker.run(self._take_back),
                exported=lambda *trace: breaker.run(self._note_jobs_trace, *trace),
            )
        )

    def phase_of_ended(self, step: int) -> str:
        """Phase of `step`, which ends now; `timed` or `export` also for the job's own profiler."""
        if self._job_changed:
            return "export"
        return "timed" if self._job_profiles else self._schedule.phase(step)

    def begin_step(self, step: int) -> None:
        """Open, start and close windows according to the schedule, at the start of `step`."""
        self._job_changed = False
        self._check_threads()
        base = self._schedule.base(step)
        if self._open is None and (base is None or base == self._done_with):
            return
        if base is None:  # An order arrived too late, and this window contains nothing to store.
            self._close(step - 1)
            return
        self._drive(step, base, self._schedule.phase(step))

    def resume_step(self, step: int) -> None:
        """Mark the start of `step` after a pause of the job."""
        self._check_threads()
        if self._open is not None and self._schedule.phase(step) in ("timed", "stack"):
            self._open.window.begin_step(step)

    def forget(self) -> None:
        """Discard all windows when the count of steps restarts."""
        self._check_threads()
        self._drop()
        self._done_with = None
        for *_, files, _ in self._stored:
            _remove(files)
        self._stored.clear()

    def close(self) -> None:
        """Close the open window at the end of the job, and store its complete steps."""
        self._close(self._state.step - 1)

    def stop(self) -> None:
        """Discard the window that is open or being written, after a fault of the recorder.

        Its profiler would otherwise record events until the end of the job.
        """
        self._check_threads()
        lost = self._open or self._closing
        try:
            self._drop()
        finally:
            if lost is not None:
                self._note_lost(lost.first, lost.phase, LossReason.RECORDER_STOPPED)

    def let_go_in_child(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.window.let_go_in_child()
        if self._has_profiled:
            leave_without_kineto()

    def _drive(self, step: int, base: int, phase: str) -> None:
        plan = self._settings
        first_timed = base + plan.warmup
        first_stack = plan.first_stack(first_timed)
        if phase == "export":
            self._close(step - 1)
        elif step == base and not self._prepare("timed", first_timed):
            self._done_with = base
            return
        if self._open is None and step != first_stack:
            return
        if step == first_stack and phase == "stack":
            self._begin_stacks(step)
        elif self._open is not None and step == max(base, first_timed - 1):
            # A step early, so that a rank's first timed step does not wait for the start of another rank's profiler.
            self._open.window.start()
        if self._open is not None and phase in ("timed", "stack"):
            self._limit_memory(step, base)
        if self._open is not None and phase in ("timed", "stack"):
            if self._state.pauses:
                self._open.window.end_step()
            else:
                self._open.window.begin_step(step)

    def _prepare(self, phase: str, first: int) -> bool:
        if self._job_profiles or self._abandoned:
            self._note_lost(first, phase, LossReason.OTHER_THREAD if self._abandoned else LossReason.JOBS_PROFILER)
            return False
        is_timed, settings = phase == "timed", self._settings
        window = ProfilerWindow(
            self._path(phase, first),
            shapes=phase == settings.shapes_in,
            memory=settings.memory and is_timed,
            modules=self._modules if is_timed else None,
        )
        self._open = _Open(window, phase, first, threading.get_native_id(), _resident())
        self._has_profiled = True
        window.prepare()
        self._of_thread.end = ThreadsEnd(window)
        return True

    def _begin_stacks(self, step: int) -> None:
        if self._prepare("stack", step):
            assert self._open is not None
            self._open.window.start()
            self._state.sampled_closely = True
            self._state.window_opens.set()

    def _limit_memory(self, step: int, base: int) -> None:
        """Close the window early if the process has grown beyond `max_memory`."""
        assert self._open is not None
        if _resident() - self._open.resident <= self._settings.max_memory:
            return
        self._note_lost(step, self._open.phase, LossReason.MEMORY_LIMIT)
        self._done_with = base
        self._close(step - 1)

    def _check_threads(self) -> None:
        """Abandon the open window if training has moved to another thread, and stop an abandoned one of this thread."""
        here = threading.get_native_id()
        if self._open is not None and self._open.thread != here:
            self._note_lost(self._open.first, self._open.phase, LossReason.OTHER_THREAD)
            self._open, self._abandoned = None, self._open
        if self._abandoned is not None and self._abandoned.thread == here:
            self._abandoned.window.close(keep=False)
        if self._abandoned is not None and self._abandoned.window.is_closed:
            self._abandoned = None

    def _drop(self) -> None:
        """Stop the open window, and discard it."""
        opened, self._open = self._open, None
        self._state.sampled_closely = False
        if opened is not None:
            opened.window.close(keep=False)

    def _close(self, last: int) -> None:
        """Close the open window, and store it if it contains a complete step."""
        self._state.sampled_closely = False
        self._check_threads()
        opened = self._open
        if opened is None:
            return
        if last < opened.first:
            self._drop()
            return
        self._open, self._closing = None, opened
        opened.window.close(keep=True)
        files = [self._path(opened.phase, opened.first)]
        if opened.phase == "timed":
            files += self._write_calls(opened.first)
        self._log.flush()  # Readers of this window need the neighbouring steps.
        self._log.note("window", phase=opened.phase, first=opened.first, last=last)
        self._closing = None
        self._remove_oldest(opened, files)

    def _write_calls(self, first: int) -> list[str]:
        """Write the latest collectives of PyTorch's Flight Recorder next to the window: they contain the sizes.

        Returns the files that were written.
        """
        path = os.path.join(self._raw, names.calls(self._state.rank, first))
        if os.path.exists(path):  # The job has profiled twice in this step; few collectives lie between.
            return [path]
        noted = dump_collectives(include_calls=True)
        if not noted:
            return []
        write_new(path, noted[0])  # The trace has what the second dump, NCCL's, would add.
        return [path]

    def _remove_oldest(self, opened: _Open, files: list[str]) -> None:
        """Add a stored window, and remove the oldest ones beyond `max_trace` bytes."""
        self._stored.append((opened.first, opened.phase, files, sum(os.path.getsize(file) for file in files)))
        while sum(size for *_, size in self._stored) > self._settings.max_trace:
            first, phase, oldest, _ = self._stored.popleft()
            self._note_lost(first, phase, LossReason.DISK_LIMIT)
            _remove(oldest)

    def _note_lost(self, first: int, phase: str, reason: LossReason) -> None:
        """Log that the window's steps of this phase from `first` on are lost."""
        self._log.note("lost", first=first, phase=phase, reason=reason)

    def _yield_to_job(self) -> None:
        self._job_profiles = self._job_changed = True
        if self._open is not None:
            self._log.note("profiler-taken", step=self._state.step)
            self._done_with = self._schedule.base(self._state.step)
            self._close(self._state.step - 1)

    def _take_back(self) -> None:
        self._job_profiles, self._job_changed = False, True
        step = self._state.step
        self._calls_at = step if step > 0 and self._write_calls(step) else None

    def _note_jobs_trace(self, path: str, start_ns: int, end_ns: int) -> None:
        self._job_changed = True
        self._log.note("jobs-trace", path=path, start_ns=start_ns, end_ns=end_ns, calls=self._calls_at)

    def _path(self, phase: str, first: int) -> str:
        return os.path.join(self._raw, names.window(self._state.rank, phase, first))


def _remove(files: Iterable[str]) -> None:
    for file in files:
        with suppress(FileNotFoundError):
            os.unlink(file)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE
