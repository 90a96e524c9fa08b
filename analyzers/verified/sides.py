"""The two sides of a pair, runs of a job without and with changed knobs: step times, and the knobs as read back."""

from collections.abc import Mapping

import msgspec
import numpy as np

from esprof.analyzers.gate.baseline import differences, identity_of
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.errors import EsprofError, MismatchError
from esprof.core.types import NS_PER_US, Rank
from esprof.run.run import KnobReading, Run

MIN_STEPS_OF_A_MEAN = 5
"""Fewest steps of a mean."""


class KnobNotSet(EsprofError):
    """A knob that did not get its new value: the effect of the change is unknown."""


class KnobValue(msgspec.Struct, frozen=True, kw_only=True):
    """A knob as it was read back from the job."""

    name: str
    before: str
    """`nothing` if the knob applies to nothing on a rank; several values if ranks differ."""
    after: str


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the steps of one run of the job, µs."""

    step_us: float
    cpu_wait_us: float | None
    """Time that a rank was ready to run but had no CPU, of the longest-waiting rank in each step; None if unknown."""


def side(run: Run, skip: int, steps: int) -> Side:
    """Means over the steps without profiler after step `skip`: over the first `steps` of them, or over all if that is 0.

    Raises MismatchError if there are fewer than `MIN_STEPS_OF_A_MEAN`.
    """
    job = JobSteps(run)
    found = job.numbers("plain")
    found = found[found > skip]
    found = found[:steps] if steps else found
    if len(found) < MIN_STEPS_OF_A_MEAN:
        raise MismatchError(
            f"the job ran {len(found)} steps after the first {skip}: too few for a mean",
            remedy="Let the job run more steps.",
        )
    waited = job.over_ranks(found, "ready_ns")
    return Side(
        step_us=float(np.mean(job.durations_ns(found))) / NS_PER_US,
        cpu_wait_us=float(np.mean(waited.max(axis=0))) / NS_PER_US if (waited >= 0).all() else None,
    )


def refuse_other_job(recorded: Run, now: Run) -> None:
    """Raise MismatchError if `now` is not a run of the job of `recorded`, for which the prediction was made."""
    differ = differences(identity_of(recorded), identity_of(now), ("as recorded", "now"))
    if differ:
        raise MismatchError("the prediction is for a different setting: " + "; ".join(differ), path=recorded.path)


def read_back(wanted: Mapping[str, str], before: Run, after: Run) -> tuple[KnobValue, ...]:
    """The knobs as read back from a run of the unchanged job, and from a run in which they were set to `wanted`.

    Raises KnobNotSet if a knob did not change or does not have its value; MismatchError if different calls end the steps on
    the two sides, so that their steps are not comparable.
    """
    pace = [{rank.paced_by for rank in run.meta.ranks} for run in (before, after)]
    if pace[0] != pace[1]:
        reported = [", ".join(sorted(map(str, by))) for by in pace]
        raise MismatchError(
            f"steps end with {reported[0]} in the unchanged job, and with {reported[1]} with the change"
        )
    return tuple(_read_back(name, value, before, after) for name, value in wanted.items())


def _read_back(name: str, wanted: str, before: Run, after: Run) -> KnobValue:
    was, now = _readings(before, name), _readings(after, name)
    concerned = [rank for rank in now if now[rank].value is not None or _value(was, rank) is not None]
    reasons = {one.reason: None for one in now.values() if one.reason}
    reason = "".join(f": {text}" for text in reasons)
    if not now:
        raise KnobNotSet(f"{name} was not read back: the job ended before the measured steps{reason}")
    if not concerned:
        raise KnobNotSet(f"{name} did not change: the job has nothing to set it on{reason}")
    before_text, after_text = (_shown(readings, concerned) for readings in (was, now))
    if any(_value(was, rank) == _value(now, rank) for rank in concerned):
        raise KnobNotSet(f"{name} did not change: it is {after_text} with and without the change{reason}")
    if any(_value(now, rank) != wanted for rank in concerned):
        raise KnobNotSet(f"{name} was set to {wanted}, but is {after_text}{reason}")
    return KnobValue(name=name, before=before_text, after=after_text)


def _readings(run: Run, name: str) -> dict[Rank, KnobReading]:
    return {rank.rank: knob for rank in run.meta.ranks for knob in rank.knobs if knob.name == name}


def _value(readings: Mapping[Rank, KnobReading], rank: Rank) -> str | None:
    return readings[rank].value if rank in readings else None


def _shown(readings: Mapping[Rank, KnobReading], ranks: list[Rank]) -> str:
    return " or ".join(sorted({_value(readings, rank) or "nothing" for rank in ranks}))
