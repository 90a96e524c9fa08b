"""The nodes of a graph by the kind of work and by rank, as what-if terms select them."""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.scenario import NothingFound, Scenario
from esprof.replay.whatif.term import Term
from esprof.run.collective_names import collective_word

HOST_WORK = (Cls.CPU, Cls.HOST_GAP, Cls.COMPUTE, Cls.LAUNCH, Cls.ALLOCATOR, Cls.DATA)
"""Classes of the work of CPU threads and loader workers."""


def on_ranks_with_gpu(dfg: Dfg) -> np.ndarray:
    """Mask of the nodes of ranks with work on a GPU stream."""
    mask: np.ndarray = np.isin(dfg.rank, list({lane.rank for lane in dfg.lanes if lane.kind == LaneKind.STREAM}))
    return mask


def gpu_work(dfg: Dfg) -> np.ndarray:
    """Mask of the work on GPU streams, copies to and from the host apart: those run at the speed of the bus."""
    mask: np.ndarray = dfg.on(LaneKind.STREAM) & dfg.of(Cls.COMPUTE)
    return mask


def cpu_work(dfg: Dfg) -> np.ndarray:
    """Mask of the work of CPU threads and loader workers, the gaps between operations included."""
    mask: np.ndarray = (dfg.on(LaneKind.CPU) | dfg.on(LaneKind.LOADER)) & dfg.of(*HOST_WORK)
    return mask


def waits_for_device(dfg: Dfg) -> np.ndarray:
    """Mask of the edges (bool[E]) by which a call on a CPU thread waits for work of its device: `.item()`, `.cpu()`, a copy
    from pageable memory, a synchronisation. Launches that wait for room in the queue and calls of the allocator do not
    count."""
    calls = dfg.on(LaneKind.CPU) & dfg.of(Cls.CPU)
    waits: np.ndarray = (
        np.isin(dfg.pred_kind, (Edge.SYNC, Edge.BY_TIME))
        & calls[dfg.pred_target]
        & dfg.on(LaneKind.STREAM)[dfg.pred_idx]
    )
    return waits


def named(dfg: Dfg, term: Term) -> np.ndarray:
    """Mask of the nodes whose name the term's regular expression finds."""
    return dfg.named(term.argument.search)  # type: ignore[attr-defined]


def of_ranks(scenario: Scenario, term: Term) -> np.ndarray:
    """Mask of the nodes of the ranks to which the term applies. Raises Declined where the run has none of them."""
    mask: np.ndarray = np.isin(scenario.dfg.rank, term.ranks(scenario))
    return mask


def taking_no_time(now: Scenario, terms: tuple[Term, ...], cls: Cls, missing: str) -> Scenario:
    """The scenario in which all work of class `cls` takes no time, on the ranks of each term.

    Raises Declined, with the reason `missing`, where such ranks have no such work.
    """
    for term in terms:
        nodes = required(now.dfg.of(cls) & of_ranks(now, term), missing)
        now = replace(now, dfg=edits.shorten(now.dfg, nodes, 0))
    return now


def without_share(now: Scenario, terms: tuple[Term, ...], share: np.ndarray, missing: str) -> Scenario:
    """The scenario in which each node takes its `share`, float64[N], less time, on the ranks of each term.

    Raises Declined, with the reason `missing`, where such ranks have no share.
    """
    for term in terms:
        nodes = required((share > 0) & of_ranks(now, term), missing)
        left = np.rint(now.dfg.dur_ns[nodes] * (1 - share[nodes])).astype(np.int64)
        now = replace(now, dfg=edits.replace(now.dfg, nodes, left))
    return now


def matched(dfg: Dfg, word: str) -> np.ndarray:
    """Mask of the matched collectives of one kind (`collective_word`): their communication, on all ranks."""
    mask: np.ndarray = (
        dfg.named(lambda name: collective_word(name) == word) & dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0)
    )
    return mask


def without_collectives(now: Scenario, collectives: np.ndarray) -> Scenario:
    """The scenario in which this communication (bool[N]) takes no time, and no rank waits for another there."""
    waits = (now.dfg.pred_kind == Edge.RENDEZVOUS) & collectives[now.dfg.pred_target]
    return replace(now, dfg=edits.shorten(edits.cut(now.dfg, waits), collectives, 0))


def required(mask: np.ndarray, reason: str) -> np.ndarray:
    """`mask` itself. Raises NothingFound, with this reason, where it selects nothing."""
    if not mask.any():
        raise NothingFound(reason)
    return mask


def not_recorded(dfg: Dfg, what: str) -> str:
    """The reason why there is none of `what`."""
    matched = " with all its ranks" if dfg.of(Cls.RESIDUAL).any() else ""
    return f"no {what}{matched} was recorded in these steps"
