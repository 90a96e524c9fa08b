"""The replay engine: one longest-path pass over arrays in topological order, compiled."""

import numpy as np

from esprof.core.compiled import compiled_in_place
from esprof.replay.dfg import Dfg

_BEFORE_ALL_NS = -(2**62)
"""A moment before all others: what the maximum over predecessors begins with."""


def run(dfg: Dfg, dur_ns: np.ndarray, residual_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each node, int64 ns since `dfg.t0_ns`, with these durations and residuals."""
    end = ends(dfg, dur_ns, residual_ns)
    return end - dur_ns, end


def ends(dfg: Dfg, dur_ns: np.ndarray, residual_ns: np.ndarray) -> np.ndarray:
    """End of each node, int64 ns since `dfg.t0_ns`, with these durations and residuals."""
    end = np.empty(dfg.nodes, np.int64)
    ptr, idx = unsigned(dfg.pred_ptr), unsigned(dfg.pred_idx)
    _forward(dur_ns, residual_ns, dfg.recorded_ns, ptr, idx, dfg.pred_lag, end)
    return end


def residuals(
    dur_ns: np.ndarray, recorded_ns: np.ndarray, pred_ptr: np.ndarray, pred_idx: np.ndarray, pred_lag: np.ndarray
) -> np.ndarray:
    """The delay of each node that its predecessors do not explain, int64 ns. All arrays are columns of a Dfg.

    Never negative. With these delays kept, replay reproduces every recorded start that is not earlier than its
    predecessors allow.
    """
    residual, end = np.zeros(len(dur_ns), np.int64), np.empty(len(dur_ns), np.int64)
    _calibrate(dur_ns, recorded_ns, unsigned(pred_ptr), unsigned(pred_idx), pred_lag, residual, end)
    return residual


def unsigned(indices: np.ndarray) -> np.ndarray:
    """A view of indices, none of them negative, that numba need not test for being negative: 1.6 times as fast."""
    return indices.view(f"u{indices.itemsize}")


@compiled_in_place
def ready(node: int, recorded: np.ndarray, ptr: np.ndarray, idx: np.ndarray, lag: np.ndarray, end: np.ndarray) -> int:
    """When the last predecessor lets `node` start, ns; its recorded start where it has no predecessor."""
    moment = _BEFORE_ALL_NS if ptr[node] < ptr[node + 1] else recorded[node]
    for edge in range(ptr[node], ptr[node + 1]):
        moment = max(moment, end[idx[edge]] + lag[edge])
    return moment


@compiled_in_place
def _forward(
    dur: np.ndarray,
    residual: np.ndarray,
    recorded: np.ndarray,
    ptr: np.ndarray,
    idx: np.ndarray,
    lag: np.ndarray,
    end: np.ndarray,
) -> None:
    """Fill `end`, ns. Ids are a topological order: the ends of a node's predecessors are always there before its own."""
    for node in range(len(dur)):
        end[node] = ready(node, recorded, ptr, idx, lag, end) + residual[node] + dur[node]


@compiled_in_place
def _calibrate(
    dur: np.ndarray,
    recorded: np.ndarray,
    ptr: np.ndarray,
    idx: np.ndarray,
    lag: np.ndarray,
    residual: np.ndarray,
    end: np.ndarray,
) -> None:
    """Fill `residual` so that each node starts when it was recorded to, or as soon after as it is ready; and `end`, ns."""
    for node in range(len(dur)):
        begin = ready(node, recorded, ptr, idx, lag, end)
        residual[node] = max(0, recorded[node] - begin)
        end[node] = begin + residual[node] + dur[node]
