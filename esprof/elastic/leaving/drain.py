"""Leaving between two steps, with a checkpoint, on request by SIGTERM, a notice file or a call.

A request is sent to the other ranks with the losses of a step, so that all know of it after the same step, and leave
when the next one starts. A process that does not get there within its time limit is ended by force.
"""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from esprof.core.types import Rank
from esprof.elastic.leaving.termination import termination
from esprof.elastic.options import Drain

EXIT_OUT_OF_TIME = 124
"""Exit code of a process that was asked and has not saved within its time; as of timeout(1)."""

EXIT_ASKED_AGAIN = 128 + 15
"""Exit code of a process that was asked a second time before it had saved; as of one that SIGTERM ended, in a shell."""

_NOTICE_POLL_INTERVAL_S = 0.5
"""Interval at which a notice file is checked, s."""

_MAX_FLUSH_S = 1.0
"""Maximum time to flush stdout at a forced end, s."""


class Drained(SystemExit):
    """All ranks have left before the step `step`, with a checkpoint if they have a folder. Ends the process with `code`
    unless it is caught."""

    def __init__(self, code: int, step: int, reason: str) -> None:
        super().__init__(code)
        self.step = step
        """Number of the step from which the job resumes."""
        self.reason = reason
        """Who asked for it: "SIGTERM", the notice file, or what `request_drain` was told; on a rank that only follows
        with the number of the rank that was asked."""


class Leaver:
    """Requests to this process to leave, and its time limit."""

    def __init__(self, asked: Drain, rank: Rank, last_saved: Callable[[], int | None]) -> None:
        """`last_saved` returns the step of the newest complete checkpoint, None if there is none."""
        self.agreed = False
        """Whether all ranks have agreed to leave when the next step starts."""
        self.reason: str | None = None
        """Why this process was asked; None if it was not."""
        self._options = asked
        self._notice = os.path.abspath(asked.notice) if asked.notice is not None else None
        self._rank, self._last_saved = rank, last_saved
        self._asked_s: float | None = None
        self._has_saved = False

    def listen(self) -> None:
        """Start to listen for requests. Outside of the main thread SIGTERM is not handled, with a warning."""
        termination.add(self)

    def close(self) -> None:
        """Stop listening, without a forced end. A SIGTERM that was not handled is passed to the next trainer."""
        termination.remove(self)

    def drop(self) -> None:
        """Like `close`, for a trainer that was garbage-collected; does nothing if the process leaves."""
        if not self._has_saved:
            self.close()

    def ask(self, reason: str, at_s: float | None = None) -> None:
        """Ask this process to leave, now or at a time of `time.monotonic()`. Only the first request counts."""
        if self.reason is None:
            self.reason = reason
            self._begin(time.monotonic() if at_s is None else at_s)

    def agree(self) -> None:
        """Note that all ranks know of a request and leave when the next step starts. The time limit now applies to all
        ranks."""
        self.agreed = True
        self._begin(time.monotonic())

    def saved(self) -> None:
        """Note that everything is saved. The time limit applies until the process has ended or `close` is called."""
        self._has_saved = True
        termination.heeded()

    @property
    def code(self) -> int:
        """The exit code of this process once it has saved."""
        return self._options.exit_code if self.reason is not None else self._options.follower_exit_code

    def insist(self) -> None:
        if self._has_saved:
            self._end(self.code, "was asked to leave a second time, after it had saved")
        self._end(EXIT_ASKED_AGAIN, f"was asked to leave a second time; {self._last()}")

    def poll(self) -> float | None:
        self.check_notice()
        if self._asked_s is None:
            return _NOTICE_POLL_INTERVAL_S if self._notice is not None else None
        left_s = self._asked_s + self._options.within_s - time.monotonic()
        if left_s <= 0:
            asked = f"was asked to leave {self._options.within_s:g} s ago ({self.reason or 'by another rank'})"
            if self._has_saved:
                self._end(self.code, f"{asked}, has saved, and did not end")
            self._end(EXIT_OUT_OF_TIME, f"{asked}, and has not come to save; {self._last()}")
        return left_s

    def check_notice(self) -> None:
        """Ask this process to leave if its notice file exists."""
        # Path.exists() may raise.
        if self.reason is None and self._notice is not None and os.path.exists(self._notice):
            self.ask(f"notice file {self._options.notice}")

    def _begin(self, asked_s: float) -> None:
        """Start the time limit at the first request."""
        if self._asked_s is None:
            self._asked_s = asked_s
            termination.wake()

    def _last(self) -> str:
        step = self._last_saved()
        return "there is no checkpoint" if step is None else f"the last checkpoint is from before step {step}"

    def _end(self, code: int, why: str) -> None:
        """End the process at once, and its loader processes."""
        with suppress(OSError):  # Not by sys.stderr, whose lock the main thread may hold.
            os.write(2, f"esprof: error: rank {self._rank} {why}: it ends at once, with code {code}\n".encode())
        for child in multiprocessing.active_children():
            if child.daemon:  # As Python itself does at its end; but one may be as stuck as its parent.
                child.kill()
        flush = threading.Thread(target=sys.stdout.flush, daemon=True)  # Whoever is stuck may hold its lock.
        flush.start()
        flush.join(_MAX_FLUSH_S)
        os._exit(code)
