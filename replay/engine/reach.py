"""How long the paths through part of a graph are, between nodes at which they are cut."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.core.compiled import compiled_in_place
from esprof.core.types import Ns
from esprof.replay.dfg import Dfg
from esprof.replay.engine.longest_path import unsigned

_NEVER_NS = -(2**62)
"""The length of a path that does not exist."""


@dataclass(frozen=True)
class Reach:
    """Part of a graph of N nodes, and the nodes at which its paths are cut."""

    dfg: Dfg
    is_cut: np.ndarray
    """bool[N], the nodes between which paths are measured."""
    is_open: np.ndarray
    """bool[N], the nodes through which paths lead."""

    def from_node(self, source: int, stop: int) -> dict[int, Ns]:
        """The nodes of `is_cut` below `stop` that `source` reaches without passing another, with the longest path's length.

        That is its work, delays (residuals) and lags from the end of `source` to the start of the node, ns.
        """
        dfg, ahead = self.dfg, np.empty(stop - source, np.int64)
        ptr, idx = unsigned(dfg.pred_ptr), unsigned(dfg.pred_idx)
        _spread(source, self._delay_ns, ptr, idx, dfg.pred_lag, self.is_cut, self.is_open, ahead)
        found = np.flatnonzero(self.is_cut[source:stop] & (ahead > _NEVER_NS))[1:]  # The first is `source`.
        return dict(zip((source + found).tolist(), ahead[found].tolist(), strict=True))

    @cached_property
    def _delay_ns(self) -> np.ndarray:
        delays: np.ndarray = self.dfg.residual_ns + self.dfg.dur_ns
        return delays


@compiled_in_place
def _spread(
    source: int,
    delay: np.ndarray,
    ptr: np.ndarray,
    idx: np.ndarray,
    lag: np.ndarray,
    is_cut: np.ndarray,
    is_open: np.ndarray,
    ahead: np.ndarray,
) -> None:
    """Fill `ahead`, which begins at `source`: the longest path to the end of each open node, and the start of each cut."""
    ahead[0] = 0
    for at in range(1, len(ahead)):
        node = source + at
        longest = _NEVER_NS
        if is_open[node] or is_cut[node]:
            for edge in range(ptr[node], ptr[node + 1]):
                before = np.int64(idx[edge])
                if before == source or (before > source and not is_cut[before] and ahead[before - source] > _NEVER_NS):
                    longest = max(longest, ahead[before - source] + lag[edge])
        if longest > _NEVER_NS and not is_cut[node]:
            longest += delay[node]
        ahead[at] = longest
