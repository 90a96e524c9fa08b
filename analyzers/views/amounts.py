"""Amounts of work by step and rank: tokens, samples, and what ranks exchange with experts."""

from collections.abc import Sequence

import numpy as np

from esprof.analyzers.recorded_job import RecordedJob
from esprof.core.types import Rank
from esprof.run.schema import Table

_ALL_TO_ALL = "all_to_all"


def amounts(job: RecordedJob, ranks: Sequence[Rank], steps: Sequence[int]) -> dict[str, np.ndarray]:
    """Unit -> amount of each rank in each step, float64[steps, ranks]; only units that are known for all of them."""
    of_steps = [job.steps.table(rank) for rank in ranks]
    of_events = [job.run.events(rank) for rank in ranks]
    found = {
        "tokens": np.array([_by_step(table, table.ints("tokens"), steps) for table in of_steps]).T,
        "samples": np.array([_by_step(table, table.ints("samples"), steps) for table in of_steps]).T,
        "bytes received in all-to-alls": np.array([_received(events, steps) for events in of_events]).T,
    }
    return {unit: amount for unit, amount in found.items() if amount.size and (amount > 0).all()}


def _by_step(table: Table, values: np.ndarray, steps: Sequence[int]) -> list[float]:
    """Sum of the positive `values` in each step."""
    step = table.ints("step")
    return [float(np.maximum(values[step == one], 0).sum()) for one in steps]


def _received(events: Table, steps: Sequence[int]) -> list[float]:
    codes, words = events.codes("collective")
    if _ALL_TO_ALL not in words:
        return [0.0] * len(steps)
    rows = np.flatnonzero((codes == words.index(_ALL_TO_ALL)) & (events.ints("out_bytes") > 0))
    step, size = events.ints("step")[rows], events.ints("out_bytes")[rows]
    return [float(size[step == one].sum()) for one in steps]
