"""Handles SIGTERM, even while the main thread waits in C++, and notifies the listeners of this process.

A Python signal handler runs only when the main thread is back in Python, which a collective of torch may delay. The
interpreter immediately writes the signal number to the wakeup descriptor, in C; a thread here reads it.
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
"""Written to wake the thread; no signal has this number."""


class Listener(Protocol):
    """A listener, called in the listening thread; `ask` also in the main thread."""

    def ask(self, reason: str, at_s: float) -> None:
        """The process was asked to leave, at this time of `time.monotonic()`. May be called twice."""

    def insist(self) -> None:
        """The process was asked a second time."""

    def poll(self) -> float | None:
        """Do what is due. Returns the seconds until the next call is due, None if nothing is scheduled."""


class Termination:
    """SIGTERM of this process, for all listeners. Owns the signal handler and the wakeup descriptor while there are
    listeners, then restores the previous ones."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._came_s: float | None = None
        """When an unhandled SIGTERM arrived."""
        self._pipe: tuple[int, int] | None = None
        self._pipe_use = threading.RLock()
        """Held while the pipe is written to or closed: afterwards its descriptors may be those of other files. A signal
        handler can take it again."""
        self._has_signal = False
        self._earlier: Any = signal.SIG_DFL
        self._earlier_fd = -1
        self._forks = threading.local()
        self._hooked = False

    def add(self, listener: Listener) -> None:
        """Add a listener, and notify it at once of an unhandled SIGTERM."""
        self._listeners = (*self._listeners, listener)
        if self._pipe is None:
            self._start()
        if not self._has_signal:
            self._take_signal()
        if self._came_s is not None:
            listener.ask("SIGTERM", self._came_s)
        self.wake()

    def heeded(self) -> None:
        """Mark the last SIGTERM as handled."""
        self._came_s = None

    def remove(self, listener: Listener) -> None:
        """Remove a listener. After the last one the previous handlers are restored; outside of the main thread, at the
        next SIGTERM."""
        self._listeners = tuple(one for one in self._listeners if one is not listener)
        if not self._listeners:
            self._stop()

    def wake(self) -> None:
        """Wake the thread to poll its listeners."""
        with self._pipe_use:
            if self._pipe is not None:
                _wake(self._pipe)

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
        with self._pipe_use:
            pipe, self._pipe = self._pipe, None
            if pipe is not None:
                _wake(pipe)  # The thread closes it.

    def _give_signal_back(self) -> None:
        if not self._has_signal:
            return
        self._has_signal = False
        if signal.getsignal(signal.SIGTERM) == self._on_signal:  # Otherwise the script has replaced it.
            signal.signal(signal.SIGTERM, self._earlier)
        found = signal.set_wakeup_fd(-1)
        ours = self._pipe is not None and found == self._pipe[1]
        with suppress(OSError, ValueError):  # It may have been closed since.
            signal.set_wakeup_fd(self._earlier_fd if ours else found)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread, between Python instructions. The thread counts signals; this only asks, at once."""
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
        with self._pipe_use:
            for end in pipe:
                os.close(end)

    def _pass_on(self, heard: bytes) -> None:
        """Forward signals to the previous wakeup descriptor, such as that of an asyncio loop."""
        if heard and self._earlier_fd >= 0:
            with suppress(OSError):
                os.write(self._earlier_fd, heard)

    def _before_fork(self) -> None:
        """Block SIGTERM: until `_in_child` has run, a signal to the child would be written to the parent's pipe."""
        if self._has_signal:
            self._forks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _after_fork(self) -> None:
        mask, self._forks.mask = getattr(self._forks, "mask", None), None
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _in_child(self) -> None:
        self._listeners, self._came_s = (), None
        self._pipe_use = threading.RLock()  # A thread of the parent may have held it.
        self._give_signal_back()
        pipe, self._pipe = self._pipe, None
        for end in pipe or ():
            os.close(end)
        self._after_fork()


def _wake(pipe: tuple[int, int]) -> None:
    with suppress(BlockingIOError):  # It is full: the thread will wake anyway.
        os.write(pipe[1], _AWAKE)


termination = Termination()
"""The instance of this process."""


@contextmanager
def held_back() -> Iterator[None]:
    """Hold SIGTERM back from this thread and from processes that it starts; other threads still get it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def outlive_sigterm(worker: int) -> None:
    """Let a loader process survive a SIGTERM to its process group, because the training process still needs it: only a
    SIGTERM from its parent ends it. This is for a DataLoader's `worker_init_fn`. Processes that it starts inherit a
    SIGTERM that is blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with, args=(os.getppid(),), name="esprof-drain", daemon=True).start()


def _end_with(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
