"""A job log as attempts: one row for each time that a job ran, or waited in vain."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd

S_PER_HOUR = 3_600.0
S_PER_DAY = 86_400.0

State = Literal["completed", "cancelled", "failed", "running", "waiting", "unknown"]
"""Final state of a job; `running` and `waiting` at the end of the log."""
STATES: tuple[State, ...] = get_args(State)

Lack = Literal["state", "servers", "start", "attempts"]
"""What a log may not record: the final state, the number of servers, when a job started, and attempts but the last."""


@dataclass(frozen=True, kw_only=True)
class JobLog:
    """Attempts, float64[n] each unless noted, sorted by job and then in order of time; NaN where unknown."""

    format: str
    job: np.ndarray
    """int64[n], from 0, ascending."""
    state: np.ndarray
    """str[n], a `State` of the job of the attempt."""
    gpus: np.ndarray
    """GPUs that the job requested or held; fractions of a GPU are possible."""
    servers: np.ndarray
    queued_s: np.ndarray
    """Seconds since any epoch: when the job was submitted, or its attempt before ended."""
    started_s: np.ndarray
    run_s: np.ndarray
    """Duration, seconds."""
    lacks: frozenset[Lack]
    notes: tuple[str, ...] = ()
    """What the reader left out."""

    def __len__(self) -> int:
        return len(self.job)

    @property
    def is_last(self) -> np.ndarray:
        """Whether an attempt is the last of its job, bool[n]."""
        return np.append(self.job[1:] != self.job[:-1], True)[: len(self)]

    @property
    def is_gpu_job(self) -> np.ndarray:
        """Whether a GPU was asked for, bool[n]."""
        found: np.ndarray = self.gpus > 0
        return found


class Times:
    """Reads columns of times, and counts what it cannot read."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def seconds(self, values: pd.Series, name: str) -> np.ndarray:
        """Seconds since an epoch, float64[n], of dates or of numbers; NaN where there is none, or what is none."""
        given = values.notna() & ~values.isin(["", "None"])
        numbers = pd.to_numeric(values.where(given), errors="coerce")
        if numbers.notna().any():
            found = numbers.to_numpy(float)
        else:
            dates = pd.to_datetime(values.where(given), errors="coerce", utc=True, format="ISO8601")
            # In microseconds: nanoseconds have room for the years 1678 to 2262 alone.
            since = dates.dt.as_unit("us") - pd.Timestamp(0, tz="UTC").as_unit("us")
            found = since.dt.total_seconds().to_numpy(float)
        found = np.where(np.isfinite(found), found, np.nan)
        if unread := int((given.to_numpy() & np.isnan(found)).sum()):
            self.notes.append(f"values of {name} that are no times: {unread:,}")
        return found
