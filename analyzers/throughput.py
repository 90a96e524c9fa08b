"""Steps, samples and tokens per second."""

import numpy as np

from esprof.analyzers.finding import Throughput
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.types import NS_PER_S
from esprof.replay.replayed import Replayed
from esprof.run.schema import Table


def throughput(replayed: Replayed, job: JobSteps) -> Throughput:
    """Rates from all steps without profiler if there are enough, else from the steady-state recorded ones.

    They follow from the mean step, so that occasional slow steps count. Samples and tokens are summed over the ranks of
    the run; None if a rank has no counts.
    """
    ranks = job.run.ranks
    plain = job.numbers("plain")
    if replayed.unprofiled_ns is not None and len(plain):
        took_ns = float(job.durations_ns(plain).mean())
        if took_ns > 0:
            return _rates([job.rows(rank, plain) for rank in ranks], took_ns / NS_PER_S)
    return _rates([job.table(rank) for rank in ranks], replayed.pricer.step_ns / NS_PER_S)


def throughput_of_steps(job: JobSteps) -> tuple[float | None, Throughput | None]:
    """(mean duration of a step in ns, rates), from step times alone; None if no step ended."""
    tables = [steps for rank in job.run.ranks if len(steps := job.table(rank))]
    if not tables:
        return None, None
    step_ns = max(float(np.mean(steps.ints("dur_ns"))) for steps in tables)
    return step_ns, _rates(tables, step_ns / NS_PER_S) if step_ns > 0 else None


def _rates(tables: list[Table], step_s: float) -> Throughput:
    return Throughput(
        steps_per_s=round(1 / step_s, 4),
        samples_per_s=_rate(tables, "samples", step_s),
        tokens_per_s=_rate(tables, "tokens", step_s),
    )


def _rate(tables: list[Table], column: str, step_s: float) -> float | None:
    counts = [steps.ints(column) for steps in tables]
    if any((count <= 0).all() for count in counts):
        return None
    return round(sum(float(np.mean(count[count > 0])) for count in counts) / step_s, 3)
