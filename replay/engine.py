"""The replay engine: one longest-path pass over arrays in topological order, compiled."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from esprof.replay.dfg import Dfg


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile without the GIL, cached on disk; where no cache folder can be written, compile in memory."""
    compiled: Callable[..., Any]
    try:
        compiled = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba: "no locator available"
        compiled = numba.njit(nogil=True)(function)
    return compiled


@_compiled
def _ready(node, release, ptr, idx, lag, end):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    begin = release[node]
    for edge in range(ptr[node], ptr[node + 1]):
        moment = end[idx[edge]] + lag[edge]
        if moment > begin:
            begin = moment
    return begin


@_compiled
def _forward(dur, residual, release, ptr, idx, lag, start, end):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    for node in range(len(dur)):
        start[node] = _ready(node, release, ptr, idx, lag, end) + residual[node]
        end[node] = start[node] + dur[node]


@_compiled
def _calibrate(dur, recorded, release, ptr, idx, lag, residual, end):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    for node in range(len(dur)):
        begin = _ready(node, release, ptr, idx, lag, end)
        if recorded[node] > begin:
            residual[node] = recorded[node] - begin
            begin = recorded[node]
        end[node] = begin + dur[node]


def run(dfg: Dfg, dur_ns: np.ndarray, residual_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each node, int64 ns since `dfg.t0_ns`, with these durations and residuals."""
    start, end = np.empty(dfg.nodes, np.int64), np.empty(dfg.nodes, np.int64)
    _forward(dur_ns, residual_ns, dfg.release_ns, dfg.pred_ptr, dfg.pred_idx, dfg.pred_lag, start, end)
    return start, end


def residuals(
    dur_ns: np.ndarray,
    recorded_ns: np.ndarray,
    release_ns: np.ndarray,
    pred_ptr: np.ndarray,
    pred_idx: np.ndarray,
    pred_lag: np.ndarray,
) -> np.ndarray:
    """The delay of each node that its predecessors do not explain, int64 ns, never negative.

    With these delays kept, replay reproduces every recorded start that is not earlier than its predecessors allow.
    """
    residual, end = np.zeros(len(dur_ns), np.int64), np.empty(len(dur_ns), np.int64)
    _calibrate(dur_ns, recorded_ns, release_ns, pred_ptr, pred_idx, pred_lag, residual, end)
    return residual
