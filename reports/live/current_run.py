"""The current telemetry of an elastic job."""

import os
import socket
import time
from pathlib import Path

from esprof import Run, load
from esprof.core.errors import EsprofError
from esprof.run import files, request
from esprof.run.request import TelemetryRequest

_POLL_ANSWER_S = 0.02
_POLL_JOB_S = 1.0
"""Interval of checks that the job still runs."""


def current_run(run: Path, asked: TelemetryRequest = TelemetryRequest(), *, wait_s: float = 60.0) -> Run:  # noqa: B008 It is frozen.
    """Request telemetry from the job at `run`, and read it. A job of this host that has ended is read without a request.

    Raises EsprofError if the job does not answer within `wait_s`, InputError if its telemetry is unreadable.
    """
    if has_ended(run):
        return load(run)
    asked_ns = time.time_ns()
    request.ask(run, asked)
    until, next_check_s = time.monotonic() + wait_s, time.monotonic() + _POLL_JOB_S
    while request.is_open(run):
        if time.monotonic() > next_check_s:
            next_check_s += _POLL_JOB_S
            if has_ended(run):
                request.withdraw(run)
                return load(run)
        if time.monotonic() > until:
            request.withdraw(run)
            raise EsprofError(
                f"the job at {run} has not written its telemetry for {wait_s:g} s",
                remedy="Check that it is running, with ElasticTrainer(telemetry=RUN).",
            )
        time.sleep(_POLL_ANSWER_S)
    recorded = load(run)
    if (recorded.meta.created_ns or 0) < asked_ns:
        raise EsprofError(f"the job at {run} could not write its telemetry", remedy="See the stderr of the job.")
    return recorded


def has_ended(run: Path) -> bool:
    """Whether the last job of `run` was on this host and its first process has ended."""
    if not files.is_complete(run):
        return False
    recorded = load(run)
    started_ns = max((event.time_ns for event in recorded.history if event.what == "started"), default=0)
    rank = recorded.meta.ranks[0]
    if rank.host != socket.gethostname() or rank.pid is None or started_ns > (recorded.meta.created_ns or 0):
        return False  # A new job has started, but not written anything yet.
    try:
        os.kill(rank.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # Another user's process: it runs.
        pass
    return False
