"""Follows the job from step to step, and opens and closes the profiler's windows on the way."""

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
"""Least difference (ns) between a step's wall time and its monotonic time that shows that the wall clock was set."""


class Recorder:
    """Makes this process a recorded rank at the end of its first step, and notes every step from then on.

    All its work at a step's border falls into the step that begins there.
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
        self._at_border = threading.RLock()
        """Held by the thread that ends a step; another one that comes meanwhile is not heard."""
        self._span_of: int | None = None
        """The thread that is in a `span`."""
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
        """End a step, as the job itself asks, or begin one where the job paused. From the first call on nothing else counts,
        unless a window of an optimizer's steps has been kept: that is not thrown away for what follows the training.

        The first thread that calls this is heard until it ends or has long not come; while a `span` is open, nobody is.
        """
        if self._stepper.is_here() and self._span_of is None and self._hears_job():
            self._breaker.run(self._resume if self.state.pauses else self.pace.job_stepped)

    @contextmanager
    def span(self) -> Iterator[None]:
        """The step that has just begun ends with the block, and the next one begins with the next call of `step`."""
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
        return self._paced_by is not PacedBy.OPTIMIZER or not self._windows.has_kept

    def finish(self) -> None:
        """Close what is open: the job ends, by itself or by an exception. A second call does nothing."""
        self._breaker.run(self._finish)

    @property
    def in_timed_window(self) -> bool:
        """Whether the profiler is collecting events that will be kept."""
        return self._windows.is_timing

    def _end_step(self, now: int, by: PacedBy) -> None:
        if not self._at_border.acquire(blocking=False):
            return
        try:
            self._end_step_alone(now, by)
        finally:
            self._at_border.release()

    def _end_step_alone(self, now: int, by: PacedBy) -> None:
        if backward.is_running():  # An optimizer that steps as its gradients come.
            self._after_backward.do(lambda: self._breaker.run(self._end_step, time.time_ns(), by))
            return
        state = self.state
        if self._finished or (self._paced_by is None and not self._become_rank()):
            return
        if not self._log.mine:
            return
        if self._background_writer is not None and self._background_writer.fault is not None:
            raise self._background_writer.fault
        self._saves.look()
        ran = self._cpu_time.at_border()
        if by is self._paced_by:
            self._note_step(now, ran)
        else:
            self._count_anew(now, by)
        state.thread, state.native_thread = threading.get_ident(), threading.get_native_id()
        if state.step + 1 == self._settings.skip:
            self._knobs.note()
        if state.step + 1 == self._settings.probe_at:
            now = self._behind_window(now)
        self._began_ns = time.monotonic_ns()
        state.start_ns, state.step = now, state.step + 1
        self._memory.at_step()
        self._windows.begin_step(state.step)

    def _behind_window(self, now: int) -> int:
        """Measure what the job's devices, links and storage can do, and end the job, as far as either is asked for. Returns
        when the next step begins."""
        settings = self._settings
        if settings.probe_s:
            self.state.pauses = True
            self._probe_breaker.run(self._measure)
            self._cpu_time.at_border()  # What was used here is of no step.
            self.state.pauses = False
            now = time.time_ns()
        if settings.ends_early:
            raise SystemExit(0)
        return now

    def _measure(self) -> None:
        from ..probes.plan import measure

        state, settings = self.state, self._settings
        measure(self._raw, state.rank, state.world_size, settings.probe_s, settings.probed)

    def _count_anew(self, now: int, by: PacedBy) -> None:
        """Count steps from here on: by what has shown itself first, or as something better has. Nothing is kept of the
        steps before that; they were no steps of the job's."""
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
        self._cpu_time.at_border()  # What was used in the pause is of no step.
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
        """Claim this process's rank in the recording. False, and the recorder off, where another process has it."""
        self._leave_environment()
        state, settings = self.state, self._settings
        state.rank, state.world_size = identity.rank_and_world()
        name = identity.process_name()
        prefix = os.path.join(self._raw, names.rank_prefix(state.rank))
        try:
            self._log.open(prefix, settings.max_log, settings.flight_steps)
        except FileExistsError:
            # Another process of the job is this rank already: an earlier life of it, or a second training.
            touch(os.path.join(self._raw, names.again(state.rank, name)))
            self._breaker.on = False
            self._startup.end()
            return False
        self._note_identity(name)
        self._start_background_writer()
        self._startup.end()
        # A process that multiprocessing forked runs no exit handlers but those of multiprocessing.
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
        parts = [
            (part, breaker) for part, breaker in ((coordinator, coordinator_breaker), (flight, flight_breaker)) if part
        ]
        self._background_writer = BackgroundWriter(log.flush, parts)
        self._background_writer.start()
        self._sampler = CircuitBreaker("sampling of stacks", log).run(StackSampler, state, log)
        if self._sampler is not None:
            self._sampler.start()

    def sample_at(self, frame: FrameType) -> None:
        """Note that the training thread, which calls this, is at `frame`."""
        if self._sampler is not None:
            self._sampler.sample_at(frame)

    def _let_go_in_child(self) -> None:
        self._windows.let_go_in_child()
        self._log.let_go_in_child()

    def _give_up(self) -> None:
        """Free what the recorder holds, as a fault ends it."""
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
    """Hold off the signals that end a process, while it ends anyway.

    A launcher passes on the Ctrl-C that the terminal has sent to all already, and ends the other ranks when one fails.
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
