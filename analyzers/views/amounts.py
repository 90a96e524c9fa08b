"""Amounts of work by step and rank: tokens, samples, sizes of tensors, and what ranks exchange with experts."""

import re
from collections.abc import Sequence

import numpy as np

from esprof.analyzers.recorded_job import RecordedJob
from esprof.core.types import Rank
from esprof.run.schema import Table

MIN_SHARE_WITH_SHAPES = 0.5
"""Least share of operations with recorded shapes: without `--shapes`, only collectives have them."""

_ALL_TO_ALL = "all_to_all"
_NUMBER = re.compile(r"\d+")


def amounts(job: RecordedJob, ranks: Sequence[Rank], steps: Sequence[int]) -> dict[str, np.ndarray]:
    """Unit -> amount of each rank in each step, float64[steps, ranks]; only units that are known for all of them."""
    of_steps = [job.steps.table(rank) for rank in ranks]
    of_events = [job.run.events(rank) for rank in ranks]
    found = {
        "tokens": np.array([_by_step(table, table.ints("tokens"), steps) for table in of_steps]).T,
        "samples": np.array([_by_step(table, table.ints("samples"), steps) for table in of_steps]).T,
        "bytes received in all-to-alls": np.array([_received(events, steps) for events in of_events]).T,
        "elements of input tensors": np.array([input_elements(events, steps) for events in of_events]).T,
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


def input_elements(events: Table, steps: Sequence[int]) -> list[float]:
    """Elements of all input tensors of operations in each step; 0 if shapes were not recorded."""
    codes, texts = events.codes("shapes")
    step = events.ints("step")
    mine = events.is_kind("op") & np.isin(step, steps)
    of_ops, step = codes[mine], step[mine]
    if np.count_nonzero(of_ops >= 0) < MIN_SHARE_WITH_SHAPES * len(of_ops):
        return [0.0] * len(steps)
    sizes = np.array([*map(_size, texts), 0.0])[of_ops]
    return [float(sizes[step == one].sum()) for one in steps]


def _size(shapes: str) -> float:
    """Elements of all tensors in a text such as `[[8, 3], [], [4]]`."""
    dims = ([int(number) for number in _NUMBER.findall(tensor)] for tensor in shapes.split("]"))
    return float(sum(np.prod(one, dtype=float) for one in dims if one))
