"""Reader of Philly's `cluster_job_log`: JSON, with every attempt of a job and the GPUs that it held.

Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, ATC 2019.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from esprof.analyzers.jobs.formats import states
from esprof.analyzers.jobs.log import JobLog, State, Times
from esprof.core.errors import InputError
from esprof.core.types import NOT_DECODED

_STATES: Mapping[str, State] = {"Pass": "completed", "Killed": "cancelled", "Failed": "failed"}


class _Placed(msgspec.Struct):
    """GPUs of one server."""

    gpus: list[str]


class _PhillyAttempt(msgspec.Struct):
    start_time: str | None = None
    end_time: str | None = None
    detail: list[_Placed] = []


class _PhillyJob(msgspec.Struct):
    status: str | None
    submitted_time: str | None
    attempts: list[_PhillyAttempt]


def read_philly(path: Path, text: bytes) -> JobLog:
    """The attempts of all jobs. A job without an attempt has one row, without GPUs. Raises InputError."""
    try:
        jobs = msgspec.json.decode(text, type=list[_PhillyJob])
    except NOT_DECODED as error:
        raise InputError(
            f"is not Philly's cluster_job_log ({error})", path=path, remedy="docs/how-to/job-logs.md lists the formats."
        ) from error
    rows = [(number, job, attempt) for number, job in enumerate(jobs) for attempt in job.attempts or [_PhillyAttempt()]]
    if not rows:
        raise InputError("lists no job", path=path)
    times = Times()
    numbers = np.array([number for number, _, _ in rows])
    submitted = times.seconds(_texts([job.submitted_time for _, job, _ in rows]), "submitted_time")
    started = times.seconds(_texts([attempt.start_time for _, _, attempt in rows]), "start_time")
    ended = times.seconds(_texts([attempt.end_time for _, _, attempt in rows]), "end_time")
    is_first = np.append(True, numbers[1:] != numbers[:-1])
    return JobLog(
        format="Philly",
        job=numbers,
        state=states(_texts([job.status for _, job, _ in rows]), _STATES, len(rows)),
        gpus=np.array([sum(len(placed.gpus) for placed in attempt.detail) for _, _, attempt in rows], float),
        servers=np.array([len(attempt.detail) or np.nan for _, _, attempt in rows], float),
        queued_s=np.where(is_first, submitted, np.append(np.nan, ended[:-1])),
        started_s=started,
        run_s=ended - started,
        lacks=frozenset(),
        notes=tuple(times.notes),
    )


def _texts(values: list[str | None]) -> pd.Series:
    return pd.Series(values, dtype=object)
