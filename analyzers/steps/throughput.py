"""Steps, samples and tokens per second."""

import numpy as np

from esprof.analyzers.finding import Throughput
from esprof.analyzers.steps import job_steps
from esprof.core.types import NS_PER_S
from esprof.replay.replayed import Replayed
from esprof.run.run import Run
from esprof.run.schema import Table


def throughput(replayed: Replayed) -> Throughput:
    """Rates from all steps without profiler where enough were seen, else from the steady recorded ones.

    They follow from the mean step: what takes long only now and then counts. Samples and tokens are summed over the ranks
    that the run has, and None where a rank does not tell.
    """
    run = replayed.run
    plain = job_steps.numbers(run, "plain")
    if replayed.unprofiled_ns is not None and len(plain):
        took_ns = float(job_steps.durations_ns(run, plain).mean())
        if took_ns > 0:
            return _rates([job_steps.rows(run, rank, plain) for rank in run.ranks], took_ns / NS_PER_S)
    return _rates([run.steps(rank) for rank in run.ranks], replayed.pricer.step_ns / NS_PER_S)


def throughput_of_steps(run: Run) -> tuple[float | None, Throughput | None]:
    """Mean duration of a step in ns, and the rates, from the steps' own times; None where no step ended."""
    tables = [steps for rank in run.ranks if len(steps := run.steps(rank))]
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
