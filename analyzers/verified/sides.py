"""The two sides of a pair, runs of a job as it is and with knobs set: what a step takes, and whether the knobs took."""

from collections.abc import Mapping

import msgspec
import numpy as np

from esprof.analyzers.gate.baseline import differences, identity_of
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.errors import EsprofError, MismatchError
from esprof.core.types import NS_PER_US, Rank
from esprof.run.run import KnobReading, Run

MIN_STEPS_OF_A_MEAN = 5
"""Steps without which a mean says nothing."""


class KnobNotSet(EsprofError):
    """A knob that was read back as it was: the job ran as ever, and nothing is known of the change."""


class KnobValue(msgspec.Struct, frozen=True, kw_only=True):
    """A knob as it was read back from the job."""

    name: str
    before: str
    """`nothing` where a rank had nothing that could be set so; several values where ranks differ."""
    after: str


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes on average, µs, in one run of the job."""

    step_us: float
    cpu_wait_us: float | None
    """For how long a rank was ready and had no CPU, of each step the one that waited longest; None where it is not known."""


def side(run: Run, skip: int, steps: int) -> Side:
    """The job's step, from step `skip` + 1 on; of the next `steps`, or of all where that is 0.

    Raises MismatchError where there are fewer than `MIN_STEPS_OF_A_MEAN`.
    """
    job = JobSteps(run)
    found = job.numbers("plain")
    found = found[found > skip]
    found = found[:steps] if steps else found
    if len(found) < MIN_STEPS_OF_A_MEAN:
        raise MismatchError(
            f"the job made {len(found)} steps after the first {skip}: too few for a mean",
            remedy="Let it make more steps.",
        )
    waited = job.over_ranks(found, "ready_ns")
    return Side(
        step_us=float(np.mean(job.durations_ns(found))) / NS_PER_US,
        cpu_wait_us=float(np.mean(waited.max(axis=0))) / NS_PER_US if (waited >= 0).all() else None,
    )


def refuse_other_job(recorded: Run, now: Run) -> None:
    """Raise MismatchError where `now` is a run of another job than `recorded`, of which something was promised."""
    differ = differences(identity_of(recorded), identity_of(now), ("as recorded", "now"))
    if differ:
        raise MismatchError("what was promised is of another setting: " + "; ".join(differ), path=recorded.path)


def read_back(wanted: Mapping[str, str], before: Run, after: Run) -> tuple[KnobValue, ...]:
    """The knobs as they stood in a run of the job as it is, and in one in which they were to have the values `wanted`.

    Raises KnobNotSet where one of them did not change, or does not have its value; MismatchError where the steps are told
    by other things on the two sides, so that they are not the same steps.
    """
    pace = [{rank.paced_by for rank in run.meta.ranks} for run in (before, after)]
    if pace[0] != pace[1]:
        reported = [", ".join(sorted(map(str, by))) for by in pace]
        raise MismatchError(f"steps end with {reported[0]} in the job as it is, and with {reported[1]} with the change")
    return tuple(_read_back(name, value, before, after) for name, value in wanted.items())


def _read_back(name: str, wanted: str, before: Run, after: Run) -> KnobValue:
    was, now = _readings(before, name), _readings(after, name)
    concerned = [rank for rank in now if now[rank].value is not None or _value(was, rank) is not None]
    reasons = {one.reason: None for one in now.values() if one.reason}
    reason = "".join(f": {text}" for text in reasons)
    if not now:
        raise KnobNotSet(f"{name} was not read back: the job ended before its steps counted{reason}")
    if not concerned:
        raise KnobNotSet(f"{name} did not change: the job has nothing to set it on{reason}")
    before_text, after_text = (_shown(readings, concerned) for readings in (was, now))
    if any(_value(was, rank) == _value(now, rank) for rank in concerned):
        raise KnobNotSet(f"{name} did not change: it was read back as {after_text} with and without{reason}")
    if any(_value(now, rank) != wanted for rank in concerned):
        raise KnobNotSet(f"{name} was to be {wanted}, and was read back as {after_text}{reason}")
    return KnobValue(name=name, before=before_text, after=after_text)


def _readings(run: Run, name: str) -> dict[Rank, KnobReading]:
    return {rank.rank: knob for rank in run.meta.ranks for knob in rank.knobs if knob.name == name}


def _value(readings: Mapping[Rank, KnobReading], rank: Rank) -> str | None:
    return readings[rank].value if rank in readings else None


def _shown(readings: Mapping[Rank, KnobReading], ranks: list[Rank]) -> str:
    return " or ".join(sorted({_value(readings, rank) or "nothing" for rank in ranks}))
