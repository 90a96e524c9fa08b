"""Replays of several edited graphs: those that differ from the recorded one in times alone are replayed side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.replay.dfg import Dfg, LaneKind
from esprof.replay.engine.batch import Batch
from esprof.replay.engine.timeline import StepEnds, replay

_MAX_NODES_TIMES_GRAPHS = 1 << 26
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

    def ends(self, dfgs: Sequence[Dfg]) -> list[StepEnds]:
        """What a replay of each graph tells of its steps."""
        alike = [number for number, dfg in enumerate(dfgs) if dfg.pred_idx is self.recorded.pred_idx]
        at_once = max(1, _MAX_NODES_TIMES_GRAPHS // self.recorded.nodes)
        groups = [alike[first : first + at_once] for first in range(0, len(alike), at_once)] if len(alike) > 1 else []
        side_by_side = {number for group in groups for number in group}
        found: dict[int, StepEnds] = {
            number: replay(dfg) for number, dfg in enumerate(dfgs) if number not in side_by_side
        }
        for group in groups:
            longer = np.stack([longer_ns(self.recorded, dfgs[number]) for number in group], axis=1)
            for number, end in zip(group, self._batch.ends_after(self._observed, longer).T, strict=True):
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
        boundaries = np.union1d(self.recorded.marks.first, self.recorded.marks.last)
        return np.union1d(boundaries, np.flatnonzero(self.recorded.on(LaneKind.STREAM)))
