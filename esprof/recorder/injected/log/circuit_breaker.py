"""The circuit breaker: the first fault turns a part of the recorder off, and the job goes on."""

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
    """On until the first fault in work that it was asked to run.

    `what` names the work in messages; `release` frees what the work may hold when a fault ends it. The fault is noted as a
    row of the kind `note`: `stopped` where nothing of the process is recorded from then on.
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
            # The job is not ours: no fault of the recorder may reach it.
            self._off(_told(fault))
            if _is_the_jobs(fault):
                raise
            return None

    def _off(self, fault: str) -> None:
        self.on = False
        with suppress(Exception):  # Whatever failed before may fail again here.
            self._release()
        with suppress(OSError):  # The log itself may be what failed.
            self._log.note(self._note, message=f"{self._what} ended: {fault}")
        say(f"{self._what} ends in process {os.getpid()}, the job goes on: {fault}")


def _told(fault: Exception) -> str:
    if isinstance(fault, OSError) and fault.filename is not None:
        path = str(fault.filename)
        return f"{path}: {refusal(fault, path)}"
    return f"{type(fault).__name__}: {fault}"


def _is_the_jobs(fault: Exception) -> bool:
    """Whether a signal handler raised the fault, which only happened to run in the midst of the recorder's work: because a
    DataLoader's worker died, say, or a step took too long."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(handler, "__code__", None) for handler in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(fault.__traceback__))
