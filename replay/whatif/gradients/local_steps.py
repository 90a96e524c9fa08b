"""Models that the ranks train apart, and average each k-th step (local SGD; Stich, ICLR 2019).

DDP's all-reduces of gradients are taken out of all steps. In each k-th step an all-reduce of the size of all gradients,
which is that of the parameters, follows the update, and no rank goes on before its end. Otherwise no rank waits for another.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from esprof.core.types import Bytes, Ns
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.whatif.communication.probed import ProbedCollectives
from esprof.replay.whatif.gradients.gloo_buckets import launched_by_gradients
from esprof.replay.whatif.gradients.shared_update import last_updates, recorded_link, update_share, with_exchanges
from esprof.replay.whatif.graph.overlay import Overlay
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.run.curve import BeyondCurveError

_AVERAGE = "all_reduce"


def with_local_steps(now: Scenario, every: int) -> Scenario:
    """The scenario in which the ranks average their models each `every` steps, the last time in the last steady-state step.

    A window may hold too few steps, or a number that `every` does not divide: an average then takes longer or shorter, so
    that all of them take as much of a step as in a long job. Raises Declined on GPUs, and where gradients are not reduced by
    DDP, or the sizes of all-reduces or the updates were not recorded.
    """
    dfg = now.dfg
    if dfg.has_gpu():
        raise Declined("models that are averaged are predicted on CPUs only")
    updating = update_share(now) > 0
    of_gradients = _collectives_of_gradients(dfg)
    size = _size(dfg, of_gradients)
    steps = averaging_steps(dfg.marks.steps, now.steps, every)
    per_average = len(now.steps) / (every * len(set(steps) & set(now.steps)))
    took_ns = round(_average_ns(now, size) * per_average)
    averaged = with_exchanges(dfg, last_updates(dfg, updating), _AVERAGE, size, dict.fromkeys(steps, took_ns))
    overlay = Overlay(averaged)
    overlay.dropped |= np.isin(averaged.collective, of_gradients)
    return replace(now, dfg=overlay.compile())


def averaging_steps(steps: Sequence[int], steady: Sequence[int], every: int) -> list[int]:
    """Those of `steps` in which models are averaged: each `every`-th, backwards from the last steady-state step."""
    return list(steps[steps.index(steady[-1]) :: -every])


def _collectives_of_gradients(dfg: Dfg) -> np.ndarray:
    """Numbers of the all-reduces of gradients. Raises Declined where a step of a rank has none."""
    launched = np.array(launched_by_gradients(dfg), np.int64)
    for rank in dfg.marks.ranks:
        steps = set(dfg.step[launched[dfg.rank[launched] == rank]].tolist())
        if not steps.issuperset(dfg.marks.steps):
            raise Declined(f"not all steps of rank {rank} reduce gradients in the backward pass, as DDP does")
    numbers: np.ndarray = np.unique(dfg.collective[launched])
    return numbers


def _size(dfg: Dfg, of_gradients: np.ndarray) -> Bytes:
    """Bytes of all gradients of a rank, by the numbers of their collectives. Raises Declined if unknown.

    Two all-reduces at once leave open which of them has which size: steps of a rank with such do not count.
    """
    ranks, steps = dfg.marks.ranks, dfg.marks.steps
    nodes = np.flatnonzero(np.isin(dfg.collective, of_gradients) & dfg.of(Cls.COMMUNICATION) & np.isin(dfg.step, steps))
    visit = np.searchsorted(ranks, dfg.rank[nodes]) * len(steps) + np.searchsorted(steps, dfg.step[nodes])
    sizes, unknown = (np.bincount(visit, of) for of in (dfg.bytes[nodes], dfg.bytes[nodes] < 0))
    known = sizes[(sizes > 0) & (unknown == 0)]
    if not len(known):
        raise Declined("the sizes of the all-reduces were not recorded")
    return round(float(known.mean()))


def _average_ns(now: Scenario, size: Bytes) -> Ns:
    """Duration of an all-reduce of `size` bytes: as probed, or else on the link as recorded. Raises Declined."""
    ranks, probed = now.dfg.marks.ranks, ProbedCollectives.of(now.run)
    if probed is None or (curve := probed.curve(_AVERAGE, ranks)) is None:
        return recorded_link(now).all_reduce_ns(size, len(ranks))
    try:
        return round(curve.at(size))
    except BeyondCurveError as beyond:
        raise Declined(f"an average of {beyond.in_bytes}") from beyond
