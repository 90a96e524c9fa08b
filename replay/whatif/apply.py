"""Apply the terms of a scenario to its graph: edits one after the other, all speed-ups at once."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.whatif.communication.links import link_share
from esprof.replay.whatif.communication.probed import ProbedCollectives
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.loading.replayed_loaders import replayed_loaders
from esprof.replay.whatif.pipeline.changed import with_pipeline
from esprof.replay.whatif.samples.batch_time import with_batch_time
from esprof.replay.whatif.scenario import GraphPart, Scenario
from esprof.replay.whatif.term import Edit, Resource, Speed, Term, TermPhase

_UNMATCHED = "collectives that have no match on all their ranks stay as they were"


def apply(scenario: Scenario, terms: Sequence[Term]) -> Scenario:
    """`scenario` changed by all `terms`, independent of their order. Raises Declined if a term has no evidence."""
    in_order = sorted(terms, key=lambda term: (term.kind.phase, term.kind.name))
    for phase, of_phase in groupby(in_order, key=lambda term: term.kind.phase):
        if phase is TermPhase.SPEED:
            scenario = _sped_up(scenario, tuple(of_phase))
            continue
        if phase is TermPhase.LOAD:
            scenario = replayed_loaders(scenario, tuple(of_phase))
            continue
        for kind, of_kind in groupby(of_phase, key=lambda term: term.kind):
            assert isinstance(kind.effect, Edit), "the terms of all other phases are edits"
            scenario = edited(scenario, kind.effect, tuple(of_kind))
        if phase is TermPhase.RESIZE and scenario.batch is not None:
            scenario = with_batch_time(scenario, scenario.batch)
        if scenario.pipeline is not None:
            scenario = with_pipeline(replace(scenario, pipeline=None), scenario.pipeline)
    return scenario


def edited(before: Scenario, effect: Edit, terms: Sequence[Term]) -> Scenario:
    """`before` changed by terms of one kind, and its steps bounded by what that kind bounds them by. Raises Declined."""
    after = effect.apply(before, tuple(terms))
    # Where ranks are changed one by one, only what comes after them is bounded here.
    if effect.bound is None or (before.part is not GraphPart.ALL and effect.phase is not TermPhase.BOUND):
        return after
    return after.bounded(effect.bound(before, after, tuple(terms)))


def _sped_up(now: Scenario, terms: Sequence[Term]) -> Scenario:
    """`now` with the durations divided by the combined speed-ups of `terms`. Raises Declined if a term matches no work.

    In communication between CPUs, a faster link shortens the link's share, and a faster CPU the rest. In communication
    between GPUs, a faster link does not shorten the latency.
    """
    dfg = now.dfg
    work, link, cpu = (np.ones(dfg.nodes) for _ in range(3))
    for term in sorted(terms, key=lambda term: term.text):  # products of floats depend on their order
        effect = term.kind.effect
        assert isinstance(effect, Speed), "only speed-ups have this phase"
        if effect.resource is Resource.CPU:
            cpu[np.isin(dfg.rank, term.ranks(now)) & ~dfg.on(LaneKind.STREAM)] *= term.value
            if now.part is GraphPart.COMMUNICATION:
                continue
        nodes = effect.nodes(now, term)
        faster = link if effect.resource is Resource.LINK else work
        factor = term.value if effect.factor is None else effect.factor(now, term)
        faster /= 1 - nodes + nodes / factor
        if dfg.of(Cls.RESIDUAL).any() and nodes[dfg.of(Cls.COMMUNICATION)].any():
            now = now.noted(_UNMATCHED)
    if now.part is GraphPart.ONE_RANK:
        speed = np.where(dfg.of(Cls.COMMUNICATION), 1, work)
    else:
        # The link's share and the rest are each divided by their own factor, and the sum by that of the work.
        of_link, slowest = link_share(dfg, now.links, ProbedCollectives.of(now.run)), _slowest(dfg, cpu)
        left = np.maximum(of_link.share / link, of_link.least / slowest)
        speed = work / (left + (1 - of_link.share) / slowest)
    if now.part is GraphPart.COMMUNICATION:
        speed = np.where(dfg.of(Cls.COMMUNICATION), speed, 1)
    return replace(now, dfg=edits.scale(dfg, speed != 1.0, speed))


def _slowest(dfg: Dfg, cpu: np.ndarray) -> np.ndarray:
    """Speed-up of each node's CPU, float64[N]; for communication between CPUs that of its slowest rank."""
    collectives = np.flatnonzero(dfg.on(LaneKind.COMM) & (dfg.collective >= 0))
    of_number = np.full(int(dfg.collective.max(initial=-1)) + 1, np.inf)
    np.minimum.at(of_number, dfg.collective[collectives], cpu[collectives])
    slowest = cpu.copy()
    slowest[collectives] = of_number[dfg.collective[collectives]]
    return slowest
