"""A job's own account of its steps, as of now."""

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
"""How often it is looked whether the job is there still."""


def current_run(run: Path, asked: TelemetryRequest = TelemetryRequest(), *, wait_s: float = 60.0) -> Run:  # noqa: B008 It is frozen.
    """What the job at `run` tells of its steps, and measures, when it is asked now. Of a job of this host that has ended,
    what there is.

    Raises EsprofError where the job does not answer within `wait_s`, InputError where what it has written cannot be read.
    """
    if has_ended(run):
        return load(run)
    asked_ns = time.time_ns()
    request.ask(run, asked)
    until, looks_s = time.monotonic() + wait_s, time.monotonic() + _POLL_JOB_S
    while request.is_open(run):
        if time.monotonic() > looks_s:
            looks_s += _POLL_JOB_S
            if has_ended(run):
                request.withdraw(run)
                return load(run)
        if time.monotonic() > until:
            request.withdraw(run)
            raise EsprofError(
                f"the job at {run} has not written its telemetry for {wait_s:g} s",
                remedy="Is it running, and was it given telemetry=RUN?",
            )
        time.sleep(_POLL_ANSWER_S)
    told = load(run)
    if (told.meta.created_ns or 0) < asked_ns:
        raise EsprofError(f"the job at {run} could not write its telemetry", remedy="Its stderr says why.")
    return told


def has_ended(run: Path) -> bool:
    """Whether the job that wrote `run` last was one of this host, and its first process is gone."""
    if not files.is_complete(run):
        return False
    told = load(run)
    started_ns = max((event.time_ns for event in told.history if event.what == "started"), default=0)
    rank = told.meta.ranks[0]
    if rank.host != socket.gethostname() or rank.pid is None or started_ns > (told.meta.created_ns or 0):
        return False  # Another one has started since, which has written nothing yet.
    try:
        os.kill(rank.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # It is there, and somebody else's.
        pass
    return False
