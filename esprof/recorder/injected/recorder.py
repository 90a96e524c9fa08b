"""Follow the steps of the job, and open and close the profiler's windows."""

import atexit
import multiprocessing.util
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from ...run.raw import names
from ...run.raw.new_files import touch
from ...run.raw.paced import PacedBy
from ...run.raw.settings import Settings
from ..shared import identity
from .clock.coordinator import Coordinator
from .hang.flight import FlightWatch
from .hang.startup import StartupWatch
from .knobs import Knobs
from .labels import LabelCounts
from .log.background_writer import BackgroundWriter
from .log.circuit_breaker import CircuitBreaker
from .log.notes import Log
from .rank_identity import rank_identity
from .state import StepState
from .steps import backward
from .steps.cpu_time import CpuTime, Ran
from .steps.memory import MemoryProbe
from .steps.pace import OneThread, Pace
from .steps.sampler import StackSampler
from .steps.saves import SaveProbe
from .windows.schedule import WindowSchedule
from .windows.windows import Windows

_MIN_CLOCK_JUMP_NS = 1_000_000_000
"""Difference between wall time and monotonic time of a step above which the wall clock was set, ns."""


class Recorder:
    """Makes this process a recorded rank at the end of its first step, and logs every step from then on.

    The recorder's work at a step boundary counts towards the step that starts there.
    """

    def __init__(
        self,
        raw: str,
        settings: Settings,
        log: Log,
        leave_environment: Callable[[], None],
        saves: SaveProbe,
        startup: StartupWatch,
        knobs: Knobs,
    ) -> None:
        self._raw = raw
        self._settings = settings
        self._log = log
        self._leave_environment = leave_environment
        self.state = StepState()
        self._schedule = WindowSchedule(settings)
        self._windows = Windows(raw, settings, self._schedule, self.state, log)
        self._memory = MemoryProbe(self.state, log)
        self.labels = LabelCounts(log)
        self._cpu_time = CpuTime(log)
        self._saves = saves
        self._startup = startup
        self._knobs = knobs
        self._breaker = CircuitBreaker("recording", log, self._give_up, note="stopped")
        self._probe_breaker = CircuitBreaker("probing", log)
        self._background_writer: BackgroundWriter | None = None
        self._sampler: StackSampler | None = None
        self.pace = Pace(lambda by: self._end_step(time.time_ns(), by), self._breaker)
        self._paced_by: PacedBy | None = None
        self._stepper = OneThread()
        self._at_boundary = threading.RLock()
        """Held by the thread that ends a step; the end of a step in another thread meanwhile is ignored."""
        self._span_of: int | None = None
        """Identifier of the thread inside a `span`; None without one."""
        self._after_backward = backward.AfterBackward()
        self._finished = False
        self._began_ns = 0

    def install(self) -> None:
        self.pace.install()
        self._windows.watch_jobs_profilers(self._breaker)
        self._memory.install()
        self._saves.install()
        os.register_at_fork(after_in_child=lambda: self._breaker.run(self._let_go_in_child))

    def step(self) -> None:
        """End a step at the job's request, or start one after a pause. From the first call on, only these calls end steps,
        unless a window of optimizer steps has been stored: a later phase of the job does not discard it.

        Calls of the first thread count until it ends or has not called for long. Calls inside a `span` are ignored.
        """
        if self._stepper.is_here() and self._span_of is None and self._hears_job():
            self._breaker.run(self._resume if self.state.pauses else self.pace.job_stepped)

    @contextmanager
    def span(self) -> Iterator[None]:
        """End the step that has just started at the end of the block; the next call of `step` starts the next one."""
        if not self._stepper.is_here() or self._span_of is not None or not self._hears_job():
            yield
            return
        self._span_of = threading.get_ident()
        try:
            yield
        finally:
            self._breaker.run(self._pause)
            self._span_of = None

    def _hears_job(self) -> bool:
        return self._paced_by is not PacedBy.OPTIMIZER or not self._windows.has_stored

    def finish(self) -> None:
        """Close the window and the files at the end of the job, normal or by an exception. A second call does nothing."""
        self._breaker.run(self._finish)

    @property
    def in_timed_window(self) -> bool:
        """Whether the profiler is recording timed steps."""
        return self._windows.is_timing

    def _end_step(self, now: int, by: PacedBy) -> None:
        if not self._at_boundary.acquire(blocking=False):
            return
        try:
            self._end_step_alone(now, by)
        finally:
            self._at_boundary.release()

    def _end_step_alone(self, now: int, by: PacedBy) -> None:
        if backward.is_running():  # The optimizer steps inside the backward pass.
            self._after_backward.do(lambda: self._breaker.run(self._end_step, time.time_ns(), by))
            return
        state = self.state
        if self._finished or (self._paced_by is None and not self._become_rank()):
            return
        if not self._log.mine:
            return
        if self._background_writer is not None and self._background_writer.fault is not None:
            raise self._background_writer.fault
        self._saves.wrap_loaded()
        ran = self._cpu_time.at_boundary()
        if by is self._paced_by:
            self._note_step(now, ran)
        else:
            self._restart_count(now, by)
        state.thread, state.native_thread = threading.get_ident(), threading.get_native_id()
        if state.step + 1 == self._settings.skip:
            self._knobs.note()
            if self._settings.memory:
                self._memory.note_model()
        if state.step + 1 == self._settings.probe_at:
            now = self._after_windows(now)
        self._began_ns = time.monotonic_ns()
        state.start_ns, state.step = now, state.step + 1
        self._memory.at_step()
        self._windows.begin_step(state.step)

    def _after_windows(self, now: int) -> int:
        """Run the probes and end the job, if the settings ask for either. Returns the start of the next step, ns since the
        Unix epoch."""
        settings = self._settings
        if settings.probe_s:
            self.state.pauses = True
            self._probe_breaker.run(self._measure)
            self._cpu_time.at_boundary()  # The CPU time of the probes belongs to no step.
            self.state.pauses = False
            now = time.time_ns()
        if settings.ends_early:
            raise SystemExit(0)
        return now

    def _measure(self) -> None:
        from ..probes.plan import measure

        state, settings = self.state, self._settings
        measure(self._raw, state.rank, state.world_size, settings.probe_s, settings.probed, quiet=settings.quiet)

    def _restart_count(self, now: int, by: PacedBy) -> None:
        """Restart the count of steps, which `by` marks from now on. Windows of earlier steps are discarded: those were not
        the steps of the job."""
        if self._paced_by is not None:
            self._windows.forget()
            self._schedule.forget()
            self.state.recent.clear()
        self._paced_by, self.state.step = by, 0
        self._log.note("paced", by=by, since_ns=now)

    def _pause(self) -> None:
        self.state.pauses = True
        self.pace.job_stepped()

    def _resume(self) -> None:
        self._cpu_time.at_boundary()  # The CPU time of the pause belongs to no step.
        self._began_ns = time.monotonic_ns()
        self.state.start_ns = time.time_ns()
        self.state.pauses = False
        self._windows.resume_step(self.state.step)

    def _note_step(self, now: int, ran: Ran) -> None:
        state = self.state
        phase = self._windows.phase_of_ended(state.step)
        took, steady = now - state.start_ns, time.monotonic_ns() - self._began_ns
        if abs(took - steady) > _MIN_CLOCK_JUMP_NS:
            took = steady
        if phase == "plain":
            state.recent.append(took)
        self._log.roll("steps", (state.step, state.start_ns, took, phase, *ran))

    def _become_rank(self) -> bool:
        """Claim this process's rank in the recording. If another has it, switch the recorder off and return False."""
        self._leave_environment()
        state, settings = self.state, self._settings
        state.rank, state.world_size = identity.rank_and_world()
        name = identity.process_name()
        prefix = os.path.join(self._raw, names.rank_prefix(state.rank))
        try:
            self._log.open(prefix, settings.max_log, settings.flight_steps)
        except FileExistsError:
            # Another process has claimed this rank: before a restart, or in a second training.
            touch(os.path.join(self._raw, names.again(state.rank, name)))
            self._breaker.on = False
            self._startup.end()
            return False
        self._note_identity(name)
        self._start_background_writer()
        self._startup.end()
        # A process that multiprocessing forked runs only the exit handlers of multiprocessing.
        multiprocessing.util.Finalize(None, self.finish, exitpriority=100)
        atexit.register(self.finish)
        return True

    def _note_identity(self, name: str) -> None:
        self._log.note("rank", **rank_identity(self.state.rank, self.state.world_size, name))

    def _start_background_writer(self) -> None:
        raw, state, log, settings = self._raw, self.state, self._log, self._settings
        coordinator_breaker = CircuitBreaker("exchange with other ranks", log)
        flight_breaker = CircuitBreaker("watch for hangs", log)
        coordinator = coordinator_breaker.run(lambda: Coordinator(raw, state, log, self._schedule, settings))
        flight = flight_breaker.run(lambda: FlightWatch(raw, state, log, settings))
        tasks = [
            (task, breaker) for task, breaker in ((coordinator, coordinator_breaker), (flight, flight_breaker)) if task
        ]
        self._background_writer = BackgroundWriter(log.flush, tasks)
        self._background_writer.start()
        self._sampler = CircuitBreaker("sampling of stacks", log).run(StackSampler, state, log)
        if self._sampler is not None:
            self._sampler.start()

    def sample_at(self, frame: FrameType) -> None:
        """Sample the stack of the training thread, which calls this at `frame`."""
        if self._sampler is not None:
            self._sampler.sample_at(frame)

    def _let_go_in_child(self) -> None:
        self._windows.let_go_in_child()
        self._log.let_go_in_child()

    def _give_up(self) -> None:
        """Release resources after a fault of the recorder."""
        if self._sampler is not None:
            self._sampler.give_up()
        self._windows.stop()

    def _finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        self._startup.end()
        if not self._log.mine:
            return
        with _undisturbed():
            self._windows.close()
            self.labels.write()
            peak, of = identity.peak_memory()
            self._log.note("memory", peak=peak, of=of)
            if self._sampler is not None:
                self._sampler.stop()
            if self._background_writer is not None:
                self._background_writer.stop()
            self._log.note("end", step=self.state.step)
            self._log.close()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM during the block, as the process is ending already.

    A launcher forwards the Ctrl-C that the terminal has sent to every process, and ends the other ranks when one fails.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
