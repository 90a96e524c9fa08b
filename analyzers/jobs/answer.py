"""Output of `esprof jobs`, as types."""

from typing import Literal

import msgspec

from esprof.analyzers.jobs.log import State

Gang = Literal["below 1", "1", "2–4", "5–8", "above 8"]
"""Classes of the number of GPUs of a job; fractions above 1 are rounded up."""
Servers = Literal["1", "2", "3–4", "above 4"]
Part = Literal["queueing", "locality", "states", "gpu_time", "retries", "gang_size"]
"""What an answer may lack."""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Queueing delay of attempts of one class: from submission, or the end of the attempt before, to the start."""

    gang: Gang
    servers: Servers | None
    """On how many servers the attempts ran; None for any number."""
    attempts: int
    mean_s: float
    median_s: float
    p90_s: float


class JobShare(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs with GPUs of one size, or of one final state."""

    of: Gang | State
    jobs: int
    jobs_share: float
    gpu_hours: float
    gpu_time_share: float | None
    """None if no job has a duration."""


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts that were not the last of their job."""

    attempts: int
    gpu_hours: float
    gpu_time_share: float | None


class GangSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a job may expect that asks for this many GPUs."""

    gpus: int
    waits_of: str
    """Number of GPUs, or class, of the jobs whose waits these are."""
    run_h: float
    """Hours of training, as given."""
    wait_h: float
    """Mean wait of these jobs."""
    completion_h: float
    low_h: float
    high_h: float
    """95 % interval of `completion_h`."""
    shortest_share: float
    """Share of resampled logs in which no other size completes sooner."""


class GangAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The number of GPUs with which a job completes soonest."""

    sizes: tuple[GangSize, ...]
    """Ascending in the number of GPUs."""
    gpus: int | None
    """The size to ask for; None if the log cannot decide."""
    reason: str


class JobsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a job log shows. Tables that it lacks the evidence for are empty, and `declined` says why."""

    schema: Literal["esprof.jobs/1"] = "esprof.jobs/1"
    format: str
    jobs: int
    gpu_jobs: int
    """Jobs that held GPUs or asked for them; all further figures are of these."""
    attempts: int
    days: float
    """Time from the first submission to the last."""
    gpu_hours: float
    mean_wait_s: float | None
    median_wait_s: float | None
    queueing: tuple[Waits, ...]
    locality: tuple[Waits, ...]
    states: tuple[JobShare, ...]
    gangs: tuple[JobShare, ...]
    retries: Retries | None
    advice: GangAdvice | None
    declined: dict[Part, str]
    notes: tuple[str, ...]
