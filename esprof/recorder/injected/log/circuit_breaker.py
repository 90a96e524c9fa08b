"""Circuit breaker: the first fault switches off one component of the recorder; the job continues."""

import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, TypeVar

from ....core.disk import refusal
from ...shared.talk import say
from .notes import Log

T = TypeVar("T")


class CircuitBreaker:
    """Runs work until its first fault.

    `what` names the work in messages; `release` frees its resources after a fault. The fault is logged as a row of the kind
    `note`: `stopped` if it ends the recording of the process.
    """

    def __init__(
        self,
        what: str,
        log: Log,
        release: Callable[[], None] = lambda: None,
        note: Literal["fault", "stopped"] = "fault",
    ) -> None:
        self.on = True
        self._what = what
        self._log = log
        self._release = release
        self._note = note

    def run(self, work: Callable[..., T], *arguments: object) -> T | None:
        """`work(*arguments)`, or None once the breaker has tripped."""
        if not self.on:
            return None
        try:
            return work(*arguments)
        except Exception as fault:
            # No fault of the recorder may reach the job.
            self._off(_described(fault))
            if _is_the_jobs(fault):
                raise
            return None

    def _off(self, fault: str) -> None:
        self.on = False
        with suppress(Exception):  # Whatever failed before may fail again here.
            self._release()
        with suppress(OSError):  # The log itself may be what failed.
            self._log.note(self._note, message=f"{self._what} failed: {fault}")
        say(f"{self._what} failed in process {os.getpid()} and is switched off; the job continues: {fault}")


def _described(fault: Exception) -> str:
    if isinstance(fault, OSError) and fault.filename is not None:
        path = str(fault.filename)
        return f"{path}: {refusal(fault, path)}"
    return f"{type(fault).__name__}: {fault}"


def _is_the_jobs(fault: Exception) -> bool:
    """Whether a signal handler of the job raised the fault while the recorder was working: because a DataLoader worker died,
    for example, or a step took too long."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(handler, "__code__", None) for handler in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(fault.__traceback__))
