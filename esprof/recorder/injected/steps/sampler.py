"""Sample the stack of the training thread periodically, from a separate thread."""

import os
import re
import sys
import sysconfig
import threading
import time
from types import CodeType, FrameType

from ....core.frames import Place, outwards, stack_of
from ..log.circuit_breaker import CircuitBreaker
from ..log.notes import Log
from ..state import StepState

PERIOD_S = 0.02
CLOSE_PERIOD_S = 0.001
"""In windows with stacks, which are left out of all timing."""
CLOSE_SWITCH_S = 0.0001
"""How soon Python then hands its lock from one thread to the other. By default (5 ms), a look often has to wait until the
thread calls an operation, and finds all time before in that line."""
LATE_PERIOD_S = 0.1
"""Once `_MAX_SAMPLES_AT_FULL_RATE` samples have been taken: notes of a long job must not be filled with them."""
_MAX_SAMPLES_AT_FULL_RATE = 30_000

_MAX_CLOSE_SAMPLES = 5_000
"""Looks at short distance in a row: a window whose last step goes on, into an evaluation say, is not looked at for ever."""

_MAX_FRAMES = 200
_MAX_CALLERS = 50_000
"""Lines from which another was called that are kept apart; beyond them a sample ends at the last line that is known."""

_MAX_WAIT_FOR_THREAD_S = 1.0
_INJECTED = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PACKAGE = os.path.dirname(os.path.dirname(_INJECTED))
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")


class StackSampler:
    """Logs the stack of the training thread, and how long that thread ran since the previous sample.

    While C code holds the GIL, the sampler has to wait, and then sees the next line. Each sample represents the time since
    the previous one, so the sums remain correct.
    """

    def __init__(self, state: StepState, log: Log) -> None:
        self._state = state
        self._log = log
        self._breaker = CircuitBreaker("sampling of stacks", log)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="esprof-sampler", daemon=True)
        self._callers = _Callers(log)
        self._of_thread = 0
        self._sampled_ns = 0
        self._ran_ns = 0
        self._taken = 0
        self._close = 0
        """Samples since the open window with stacks started."""
        self._jobs_switch_s: float | None = None
        """The job's own switch interval while it is replaced, s; None otherwise."""
        self._sampling = threading.Lock()
        self._pid = os.getpid()

    def start(self) -> None:
        os.register_at_fork(after_in_child=self._leave_switch_interval)
        self._thread.start()

    def give_up(self) -> None:
        """Take no further samples; the thread ends by itself."""
        self._ending.set()

    def stop(self) -> None:
        self._ending.set()
        self._state.window_opens.set()  # The thread waits for it.
        self._thread.join(_MAX_WAIT_FOR_THREAD_S)
        self._leave_switch_interval()

    def sample_at(self, frame: FrameType) -> None:
        """Sample now, on the training thread itself, which is at `frame`. A forked child has no training thread."""
        if (
            os.getpid() != self._pid
            or self._ending.is_set()
            or (
                self._taken >= _MAX_SAMPLES_AT_FULL_RATE
                and time.monotonic_ns() - self._sampled_ns < LATE_PERIOD_S * 1e9
            )
        ):
            return
        # Does not wait: the other thread is sampling at the moment.
        if self._sampling.acquire(blocking=False):
            try:
                self._breaker.run(self._sample_unless_full, frame)
            finally:
                self._sampling.release()

    def _run(self) -> None:
        while self._breaker.on and not self._ending.is_set():
            opens = self._state.window_opens.wait(self._period_s())
            with self._sampling:
                if opens:  # The time before is of other steps: begin anew, and look at the first step in time.
                    self._state.window_opens.clear()
                    self._of_thread = 0
                self._breaker.run(self._sample_unless_full, None)
        self._leave_switch_interval()

    def _period_s(self) -> float:
        self._close = self._close + 1 if self._state.sampled_closely else 0
        if 0 < self._close <= _MAX_CLOSE_SAMPLES:
            if self._jobs_switch_s is None:
                self._jobs_switch_s = sys.getswitchinterval()
                sys.setswitchinterval(CLOSE_SWITCH_S)
            return CLOSE_PERIOD_S
        self._leave_switch_interval()
        return PERIOD_S if self._taken < _MAX_SAMPLES_AT_FULL_RATE else LATE_PERIOD_S

    def _leave_switch_interval(self) -> None:
        before, self._jobs_switch_s = self._jobs_switch_s, None
        # The job may have set another one meanwhile.
        if before is not None and abs(sys.getswitchinterval() - CLOSE_SWITCH_S) < CLOSE_SWITCH_S / 100:
            sys.setswitchinterval(before)

    def _sample_unless_full(self, frame: FrameType | None) -> None:
        try:
            self._sample(frame)
        except OSError:  # The background writer reports it, as it writes to the same disk.
            self._ending.set()

    def _sample(self, frame: FrameType | None) -> None:
        """Note the stack of the training thread, of which `frame` is the innermost frame if it is known. Nothing is noted
        outside of steps."""
        state = self._state
        native_thread, step = state.native_thread, state.step
        now_ns, ran_ns = time.monotonic_ns(), _ran_ns(native_thread)
        if ran_ns is None or step == 0 or state.pauses:
            self._of_thread = 0
            return
        places = stack_of(state.thread, _MAX_FRAMES) if frame is None else outwards(frame, _MAX_FRAMES)
        if not places:
            self._of_thread = 0
            return
        if native_thread == self._of_thread:
            stack = self._callers.of(places)
            # A thread id may be reused by another thread, whose clock starts at zero.
            row = (time.time_ns(), now_ns - self._sampled_ns, max(0, ran_ns - self._ran_ns), step, stack)
            self._log.roll("samples", row)
            self._taken += 1
        self._of_thread, self._sampled_ns, self._ran_ns = native_thread, now_ns, ran_ns


class _Callers:
    """The lines that were seen on stacks, as a tree: each hangs at the line that called it. A number names one of them and,
    by it, the whole stack. Lines are noted for good when they are first seen."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._codes: dict[int, CodeType] = {}
        """By identity, which stays theirs as long as they are kept: to hash a code object itself takes long."""
        self._folder = os.path.join(os.getcwd(), "")
        self._library = os.path.join(sysconfig.get_path("stdlib"), "")

    def of(self, stack: list[Place]) -> int:
        """The number of this stack, innermost place first; 0 for an empty one."""
        number = 0
        for code, line in _outermost_first(stack):
            known = self._numbers.get((number, id(code), line))
            if known is None:
                if code.co_filename.startswith(
                    f"{_INJECTED}/"
                ):  # The recorder's wrappers stand between the job's own frames.
                    continue
                if len(self._numbers) >= _MAX_CALLERS:
                    return number
                known = self._noted(number, code, line)
            number = known
        return number

    def _noted(self, caller: int, code: CodeType, line: int) -> int:
        number = len(self._numbers) + 1
        self._codes[id(code)] = code
        self._numbers[caller, id(code), line] = number
        file, function = (_readable(text) for text in (self._shown(code.co_filename), code.co_qualname))
        self._log.note("frame", number=number, caller=caller, file=file, line=line, function=function)
        return number

    def _shown(self, file: str) -> str:
        """The file by a name that does not depend on where Python and its packages are installed."""
        installed = _INSTALLED.match(file)
        if installed:
            return f"{_PYTHON}/site-packages/{file[installed.end() :]}"
        if file.startswith(f"{_PACKAGE}/"):
            return f"{_PYTHON}/site-packages/esprof/{file[len(_PACKAGE) + 1 :]}"
        if file.startswith(self._library):
            return f"{_PYTHON}/{file[len(self._library) :]}"
        return file.removeprefix(self._folder)


def _outermost_first(stack: list[Place]) -> list[tuple[CodeType, int]]:
    """The code and the line of each place. A function that calls itself counts once, at its innermost line: else each depth
    of a recursion would be a stack of its own."""
    lines: list[tuple[CodeType, int]] = []
    for code, line, _ in stack:
        if not lines or lines[-1][0] is not code:
            lines.append((code, line or 0))
    lines.reverse()
    return lines


def _readable(text: str) -> str:
    """`text` without what no reader of UTF-8 takes: file names may hold any bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _ran_ns(native_thread: int) -> int | None:
    """How long a thread of this process has run, ns; None where it is gone. Linux makes its clock's number of the thread's
    (`man 3 clock_getcpuclockid`); `pthread_getcpuclockid` must not be asked about a thread that may have ended."""
    try:
        return time.clock_gettime_ns(~native_thread << 3 | 6)
    except OSError:
        return None
