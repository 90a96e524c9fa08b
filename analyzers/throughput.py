"""Steps, samples and tokens per second of the whole job."""

import numpy as np

from esprof.analyzers.finding import Throughput
from esprof.replay.answering import Replayed
from esprof.trace.schema import Table
from esprof.types import NS_PER_S

FEWEST = 3
"""Plain steps from which on they, and not the profiled ones, tell the job's speed."""


def throughput(replayed: Replayed) -> Throughput:
    """Rates from steps without profiler where enough were seen, else from the steady recorded ones.

    Samples and tokens are summed over ranks, and None where a rank does not tell.
    """
    run = replayed.run
    tables = [_plain(run.steps(rank)) for rank in run.ranks]
    if min(len(steps) for steps in tables) >= FEWEST:
        step_s = float(np.mean([np.median(steps.ints("dur_ns")) for steps in tables])) / NS_PER_S
    else:
        step_s = replayed.oracle.step_ns / NS_PER_S
        tables = [run.steps(rank) for rank in run.ranks]
    return Throughput(
        steps_per_s=round(1 / step_s, 4),
        samples_per_s=_rate(tables, "samples", step_s),
        tokens_per_s=_rate(tables, "tokens", step_s),
    )


def _plain(steps: Table) -> Table:
    """The steps without profiler, but the job's first."""
    phases = np.array([phase or "" for phase in steps.texts("phase")])
    return steps.where(np.flatnonzero((phases == "plain") & (np.arange(len(steps)) > 0)))


def _rate(tables: list[Table], column: str, step_s: float) -> float | None:
    counts = [steps.ints(column) for steps in tables]
    if any((count <= 0).all() for count in counts):
        return None
    return round(sum(float(np.mean(count[count > 0])) for count in counts) / step_s, 3)
