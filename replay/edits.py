"""Edits of a graph, each a pure function from one graph to the next: what-ifs are made of them.

The primitives are those of Daydream (ATC 2020, §5) and Lumos (MLSys 2025, §3.4): scale, remove, insert and replace tasks.
"""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import Dfg
from esprof.types import Ns


def scale(dfg: Dfg, nodes: np.ndarray, factor: float) -> Dfg:
    """Make `nodes` (mask or ids) `factor` times as fast: 2.0 halves their durations. A factor of 1.0 is the graph itself."""
    if factor == 1.0:
        return dfg
    chosen = np.zeros(dfg.nodes, bool)
    chosen[nodes] = True
    # A kernel that could not start for lack of room waits for the others' work: it scales with that.
    return replace(
        dfg,
        dur_ns=np.where(chosen, _divided(dfg.dur_ns, factor), dfg.dur_ns),
        residual_ns=np.where(chosen & dfg.contended, _divided(dfg.residual_ns, factor), dfg.residual_ns),
    )


def shorten(dfg: Dfg, nodes: np.ndarray, to_ns: Ns) -> Dfg:
    """Let `nodes` (mask or ids) take at most `to_ns`, without unexplained delays. 0 removes them and keeps their order:
    what waited for one waits for what that waited for."""
    chosen = np.zeros(dfg.nodes, bool)
    chosen[nodes] = True
    return replace(
        dfg,
        dur_ns=np.where(chosen, np.minimum(dfg.dur_ns, to_ns), dfg.dur_ns),
        residual_ns=np.where(chosen, 0, dfg.residual_ns),
    )


def _divided(values: np.ndarray, factor: float) -> np.ndarray:
    return np.rint(values / factor).astype(np.int64)
