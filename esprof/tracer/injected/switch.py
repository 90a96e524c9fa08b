"""The recorder's fuse: one fault and it is off, and the job goes on."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from .log import Log

T = TypeVar("T")


class Switch:
    """On until the first fault in work that it was asked to run.

    `what` names that work to people; `release` lets go of what the work may hold when it ends so.
    """

    def __init__(self, what: str, log: Log, release: Callable[[], None] = lambda: None) -> None:
        self.on = True
        self._what = what
        self._log = log
        self._release = release

    def run(self, work: Callable[..., T], *arguments: object) -> T | None:
        """`work(*arguments)`, or None once the switch is off."""
        if not self.on:
            return None
        try:
            return work(*arguments)
        except Exception as fault:  # noqa: BLE001  the job is not ours: no fault of the recorder may reach it
            self._off(f"{type(fault).__name__}: {fault}")
            return None

    def _off(self, fault: str) -> None:
        self.on = False
        print(f"esprof: {self._what} ends in process {os.getpid()}, the job goes on: {fault}", file=sys.stderr)
        with suppress(Exception):  # Whatever failed before may fail again here.
            self._release()
        with suppress(OSError):  # The log itself may be what failed.
            self._log.write("fault", message=f"{self._what} ended: {fault}")
