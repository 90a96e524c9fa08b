"""`small_operations=0`: small operations on CPUs take no time, as if compiled code did their work with that of others."""

import numpy as np

from esprof.core.types import NS_PER_US, Ns
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.whatif.graph.selections import without_share
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero

MAX_OPERATION_NS: Ns = 50 * NS_PER_US
"""Longest small operation, and longest gap between two of them: calling one takes PyTorch some microseconds, and longer ones
compute."""


def small_nodes(dfg: Dfg) -> np.ndarray:
    """Mask of the small operations on CPU threads, and of the gaps that are as short, bool[N]."""
    mask: np.ndarray = dfg.on(LaneKind.CPU) & dfg.of(Cls.CPU, Cls.COMPUTE, Cls.HOST_GAP)
    return mask & (dfg.dur_ns <= MAX_OPERATION_NS)


def _without_small_operations(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    if now.dfg.has_gpu():
        raise Declined("on a GPU the kernels would have to change, too: see launches=graph")
    changed = without_share(now, terms, small_nodes(now.dfg).astype(float), "no small operation was recorded")
    return changed.noted("an upper bound: other operations do their work in no more time")


TERM = Kind(
    name="small_operations",
    examples=("small_operations=0", "rank3.small_operations=0"),
    meaning=f"Operations of at most {MAX_OPERATION_NS // NS_PER_US} µs on CPUs, and gaps as short, take no time, as if "
    "compiled code did their work with that of larger ones.",
    needs="A job that computes on CPUs.",
    assumes="An upper bound: other operations do their work in no more time.",
    effect=Edit(TermPhase.REMOVE, _without_small_operations),
    value=zero,
    scoped=True,
)
