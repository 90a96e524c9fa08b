"""Hears SIGTERM, also where the main thread waits in C++, and tells who listens in this process.

A handler of Python runs only when the main thread is back in Python, which a collective of torch may keep it from. What the
interpreter does at once, in C, is to write the signal's number to the wakeup descriptor, and a thread reads that here.
"""

import os
import select
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

_SAME_REQUEST_WITHIN_S = 1.0
"""Signals that come so soon after the first are the same request: a scheduler that signals all processes of a job, and
torchrun, which passes on what it gets, reach a rank twice."""

_AWAKE = b"\0"
"""What is written to wake the thread; no signal has this number."""


class Listener(Protocol):
    """What is told in the listening thread, and by `ask` in the main thread too."""

    def ask(self, reason: str, at_s: float) -> None:
        """The process is asked to leave, at this time of `time.monotonic()`. May come twice."""

    def insist(self) -> None:
        """It is asked a second time."""

    def poll(self) -> float | None:
        """Do what is due. Returns the seconds until something will be, None where nothing is in sight."""


class Termination:
    """SIGTERM of this process, for all its listeners. It has the signal and the wakeup descriptor while somebody listens;
    then it puts back what was there before."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._came_s: float | None = None
        """When a SIGTERM came that nobody has heeded yet."""
        self._pipe: tuple[int, int] | None = None
        self._has_signal = False
        self._earlier: Any = signal.SIG_DFL
        self._earlier_fd = -1
        self._forks = threading.local()
        self._hooked = False

    def add(self, listener: Listener) -> None:
        """Tell this one from now on, and at once of a SIGTERM that nobody has heeded."""
        self._listeners = (*self._listeners, listener)
        if self._pipe is None:
            self._start()
        if not self._has_signal:
            self._take_signal()
        if self._came_s is not None:
            listener.ask("SIGTERM", self._came_s)
        self.wake()

    def heeded(self) -> None:
        """The SIGTERM that came is not for the next listener any more."""
        self._came_s = None

    def remove(self, listener: Listener) -> None:
        """Tell this one no more. With the last one all is put back; outside of the main thread, when SIGTERM comes."""
        self._listeners = tuple(one for one in self._listeners if one is not listener)
        if not self._listeners:
            self._stop()

    def wake(self) -> None:
        """Let the thread look again at what is due."""
        if self._pipe is not None:
            with suppress(BlockingIOError):  # It is full: the thread will wake anyway.
                os.write(self._pipe[1], _AWAKE)

    def _start(self) -> None:
        if not self._hooked:
            os.register_at_fork(
                before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child
            )
            self._hooked = True
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        threading.Thread(target=self._run, args=(self._pipe,), name="esprof-drain", daemon=True).start()

    def _take_signal(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            warnings.warn(
                "no handler for SIGTERM: the trainer was not made in the main thread; use a notice file or request_drain()",
                stacklevel=6,
            )
            return
        assert self._pipe is not None
        self._earlier_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        before = signal.signal(signal.SIGTERM, self._on_signal)
        self._earlier = signal.SIG_DFL if before is None else before  # One of C cannot be put back.
        signal.siginterrupt(signal.SIGTERM, False)  # Libraries that knew of no handler need not meet EINTR.
        self._has_signal = True

    def _stop(self) -> None:
        if self._has_signal and threading.current_thread() is not threading.main_thread():
            return
        self._give_signal_back()
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with suppress(BlockingIOError):
                os.write(pipe[1], _AWAKE)  # The thread wakes, and closes it.

    def _give_signal_back(self) -> None:
        if not self._has_signal:
            return
        self._has_signal = False
        if signal.getsignal(signal.SIGTERM) == self._on_signal:  # Else somebody has taken it since.
            signal.signal(signal.SIGTERM, self._earlier)
        found = signal.set_wakeup_fd(-1)
        ours = self._pipe is not None and found == self._pipe[1]
        with suppress(OSError, ValueError):  # It may have been closed since.
            signal.set_wakeup_fd(self._earlier_fd if ours else found)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread, between two of its steps in Python. The thread counts; this only asks, at once."""
        if not self._listeners:
            self._stop()
            signal.raise_signal(number)
            return
        self._ask()

    def _ask(self) -> None:
        if self._came_s is None:
            self._came_s = time.monotonic()
        for listener in self._listeners:
            listener.ask("SIGTERM", self._came_s)

    def _run(self, pipe: tuple[int, int]) -> None:
        poll, first_s = select.poll(), None
        poll.register(pipe[0], select.POLLIN)
        while self._pipe == pipe:
            waits = [wait for listener in self._listeners if (wait := listener.poll()) is not None]
            if not poll.poll(max(0.0, min(waits)) * 1000 if waits else None):
                continue
            heard = os.read(pipe[0], 4096).replace(_AWAKE, b"")
            self._pass_on(heard)
            if signal.SIGTERM not in heard:
                continue
            if first_s is None:
                first_s = time.monotonic()
                self._ask()
            elif time.monotonic() - first_s > _SAME_REQUEST_WITHIN_S:
                for listener in self._listeners:
                    listener.insist()
        for end in pipe:
            os.close(end)

    def _pass_on(self, heard: bytes) -> None:
        """Give it to whoever had the wakeup descriptor before, such as a loop of asyncio."""
        if heard and self._earlier_fd >= 0:
            with suppress(OSError):
                os.write(self._earlier_fd, heard)

    def _before_fork(self) -> None:
        """A signal to the child must not be told to its parent, whose pipe and handler it has until `_in_child` has run."""
        if self._has_signal:
            self._forks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _after_fork(self) -> None:
        mask, self._forks.mask = getattr(self._forks, "mask", None), None
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _in_child(self) -> None:
        self._listeners, self._came_s = (), None
        self._give_signal_back()
        pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)
        self._after_fork()


termination = Termination()
"""That of this process."""


@contextmanager
def held_back() -> Iterator[None]:
    """Hold SIGTERM back from this thread and from processes that it starts; other threads still get it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def outlive_sigterm(worker: int) -> None:
    """Let a loader's process live on when its whole group gets SIGTERM, for the training process still needs it: only one of
    its parent's ends it. This is for a DataLoader's `worker_init_fn`. Processes that it starts inherit a SIGTERM that is
    blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with, args=(os.getppid(),), name="esprof-drain", daemon=True).start()


def _end_with(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
