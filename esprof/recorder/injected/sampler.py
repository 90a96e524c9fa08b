"""Looks at where the training thread is, again and again, from a thread of its own."""

import os
import re
import sys
import sysconfig
import threading
import time
from types import CodeType, FrameType

from .fuse import Fuse
from .log import Log
from .state import State

PERIOD_S = 0.02
CLOSE_PERIOD_S = 0.001
"""In windows with stacks, which are left out of all timing."""
CLOSE_SWITCH_S = 0.0001
"""How soon Python then hands its lock from one thread to the other. By default (5 ms), a look often has to wait until the
thread calls an operation, and finds all time before in that line."""
LATE_PERIOD_S = 0.1
"""Once `_MANY` samples have been taken: notes of a long job must not be filled with them."""
_MANY = 30_000

_MOST_FRAMES = 200
_MOST_CALLERS = 50_000
"""Lines from which another was called that are kept apart; beyond them a sample ends at the last line that is known."""

_PATIENCE_S = 1.0
_OWN = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_OWN))
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/")


class StackSampler:
    """Notes the stack of the training thread, and how long that thread ran since the look before.

    Python's threads share one lock: while C code holds it, the sampler has to wait, and then sees the line that comes next.
    Each look stands for the time since the one before, so that the sums hold nonetheless.
    """

    def __init__(self, state: State, log: Log) -> None:
        self._state = state
        self._log = log
        self._fuse = Fuse("sampling of stacks", log)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="esprof-sampler", daemon=True)
        self._callers = _Callers(log)
        self._of_thread = 0
        self._looked_ns = 0
        self._ran_ns = 0
        self._taken = 0
        self._jobs_switch_s: float | None = None
        """What the job had as Python's switch interval, s, while it is another one."""

    def start(self) -> None:
        os.register_at_fork(after_in_child=self._leave_switch_interval)
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(_PATIENCE_S)
        self._leave_switch_interval()

    def _run(self) -> None:
        while self._fuse.on and not self._ending.wait(self._period_s()):
            self._fuse.run(self._look)
        self._leave_switch_interval()

    def _period_s(self) -> float:
        if self._state.sampled_closely:
            if self._jobs_switch_s is None:
                self._jobs_switch_s = sys.getswitchinterval()
                sys.setswitchinterval(CLOSE_SWITCH_S)
            return CLOSE_PERIOD_S
        self._leave_switch_interval()
        return PERIOD_S if self._taken < _MANY else LATE_PERIOD_S

    def _leave_switch_interval(self) -> None:
        if self._jobs_switch_s is not None:
            sys.setswitchinterval(self._jobs_switch_s)
            self._jobs_switch_s = None

    def _look(self) -> None:
        state = self._state
        thread, step = state.thread, state.step
        frame = sys._current_frames().get(thread)
        looked_ns, ran_ns = time.monotonic_ns(), _ran_ns(state.native_thread)
        if frame is None or ran_ns is None or step == 0:
            self._of_thread = 0
            return
        if thread == self._of_thread:
            place = self._callers.of(frame)
            row = (time.time_ns(), looked_ns - self._looked_ns, ran_ns - self._ran_ns, step, place)
            self._log.roll("samples", row)
            self._taken += 1
        self._of_thread, self._looked_ns, self._ran_ns = thread, looked_ns, ran_ns


class _Callers:
    """The lines that were seen on stacks, as a tree: each hangs at the line that called it. A number names one of them and,
    by it, the whole stack. Lines are noted for good when they are first seen."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._numbers: dict[tuple[int, CodeType, int], int] = {}
        self._folder = os.path.join(os.getcwd(), "")
        self._library = os.path.join(sysconfig.get_path("stdlib"), "")

    def of(self, frame: FrameType | None) -> int:
        """The number of the stack whose innermost frame is `frame`; 0 for one without a frame."""
        frames: list[tuple[CodeType, int]] = []
        while frame is not None and len(frames) < _MOST_FRAMES:
            frames.append((frame.f_code, frame.f_lineno or 0))
            frame = frame.f_back
        number = 0
        for code, line in reversed(frames):
            key = (number, code, line)
            known = self._numbers.get(key)
            if known is None:
                if (
                    os.path.dirname(code.co_filename) == _OWN
                ):  # The recorder's wrappers stand between the job's own frames.
                    continue
                if len(self._numbers) >= _MOST_CALLERS:
                    return number
                known = self._numbers[key] = len(self._numbers) + 1
                self._log.note(
                    "frame", caller=number, file=self._shown(code.co_filename), line=line, function=code.co_qualname
                )
            number = known
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


def _ran_ns(native_thread: int) -> int | None:
    """How long a thread of this process has run, ns; None where it is gone. Linux makes its clock's number of the thread's
    (`man 3 clock_getcpuclockid`); `pthread_getcpuclockid` must not be asked about a thread that may have ended."""
    try:
        return time.clock_gettime_ns(~native_thread << 3 | 6)
    except OSError:
        return None
