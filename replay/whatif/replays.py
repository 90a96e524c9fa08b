"""Replays of several edited graphs: those that differ from the recorded one in times alone are replayed side by side."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from esprof.replay.dfg import Dfg, LaneKind
from esprof.replay.engine.batch import Batch
from esprof.replay.engine.timeline import StepEnds, replay

_MAX_VALUES = 1 << 26
"""Most nodes times graphs that are replayed side by side: each such pair takes eight bytes."""


def longer_ns(recorded: Dfg, changed: Dfg) -> np.ndarray:
    """By how much each node takes longer in `changed` than in `recorded`, its residual included, ns, float64[N]."""
    longer: np.ndarray = (changed.dur_ns + changed.residual_ns - recorded.dur_ns - recorded.residual_ns).astype(
        np.float64
    )
    return longer


@dataclass(frozen=True)
class Replays:
    """Replays edits of one graph."""

    recorded: Dfg
    executor: Executor | None
    """What runs several replays; None runs them in this thread."""

    def ends(self, dfgs: Sequence[Dfg]) -> list[StepEnds]:
        """What a replay of each graph tells of its steps."""
        share_out = self.executor.map if self.executor is not None else map
        alike = [number for number, dfg in enumerate(dfgs) if dfg.pred_idx is self.recorded.pred_idx]
        at_once = max(1, _MAX_VALUES // self.recorded.nodes)
        groups = [alike[first : first + at_once] for first in range(0, len(alike), at_once)] if len(alike) > 1 else []
        side_by_side = {number for group in groups for number in group}
        rest = [number for number in range(len(dfgs)) if number not in side_by_side]
        found: dict[int, StepEnds] = dict(zip(rest, share_out(replay, [dfgs[number] for number in rest]), strict=True))
        longer = [np.stack([longer_ns(self.recorded, dfgs[number]) for number in group], axis=1) for group in groups]
        for group, columns in zip(
            groups, share_out(partial(self._batch.ends_after, self._observed), longer), strict=True
        ):
            for number, end in zip(group, columns.T, strict=True):
                end_ns = np.zeros(self.recorded.nodes, np.int64)
                end_ns[self._observed] = end
                found[number] = StepEnds(dfg=dfgs[number], end_ns=end_ns)
        return [found[number] for number in range(len(dfgs))]

    @cached_property
    def _batch(self) -> Batch:
        return Batch(self.recorded)

    @cached_property
    def _observed(self) -> np.ndarray:
        """Ids of the nodes whose ends a `StepEnds` needs, ascending."""
        borders = np.union1d(self.recorded.marks.first, self.recorded.marks.last)
        return np.union1d(borders, np.flatnonzero(self.recorded.on(LaneKind.STREAM)))
