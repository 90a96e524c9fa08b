"""Steps, samples and tokens per second of the whole job."""

import numpy as np

from esprof.analyzers.finding import Throughput
from esprof.trace.run import Run
from esprof.trace.schema import Table

FEWEST = 3
"""Plain steps from which on they, and not the profiled ones, tell the job's speed."""


def throughput(run: Run) -> Throughput:
    """Rates from steps without profiler where enough were seen, else from the recorded ones.

    Medians per rank; samples and tokens are summed over ranks, and None where a rank does not tell.
    """
    tables = [_chosen(run.steps(rank)) for rank in run.ranks]
    step_s = float(np.mean([np.median(steps.ints("dur_ns")) for steps in tables])) / 1e9
    return Throughput(
        steps_per_s=round(1 / step_s, 4),
        samples_per_s=_rate(tables, "samples", step_s),
        tokens_per_s=_rate(tables, "tokens", step_s),
    )


def _chosen(steps: Table) -> Table:
    phases = np.array([phase or "" for phase in steps.texts("phase")])
    plain = np.flatnonzero((phases == "plain") & (np.arange(len(steps)) > 0))
    return steps.where(plain) if len(plain) >= FEWEST else steps.where(np.flatnonzero(phases == "timed"))


def _rate(tables: list[Table], column: str, step_s: float) -> float | None:
    counts = [steps.ints(column) for steps in tables]
    if any((count <= 0).all() for count in counts):
        return None
    return round(sum(float(np.mean(count[count > 0])) for count in counts) / step_s, 3)
