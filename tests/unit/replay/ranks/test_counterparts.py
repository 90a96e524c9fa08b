"""Counterparts against their definition, for all ranks at once and for some at a time."""

from collections import defaultdict
from dataclasses import replace
from statistics import mean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.replay.dfg import Cls, Dfg, Lane, LaneKind, StepMarks
from esprof.replay.ranks import counterparts as module
from esprof.replay.ranks.counterparts import MIN_SLEEP_NS, PeerTable, RankWork, counterparts
from tests.cases.properties import thorough
from tests.cases.random_graphs import dfg_of

KINDS = (LaneKind.CPU, LaneKind.STREAM, LaneKind.LOADER)
NOT_COMPARED = (Cls.COMMUNICATION, Cls.WAIT, Cls.RESIDUAL)
BOUND = (Cls.COMPUTE, Cls.CONTENTION, Cls.ALLOCATOR)
FIELDS = ("others", "median", "mean")


@st.composite
def work_of_ranks(draw) -> RankWork:
    """A few nodes on two to five ranks, with few names, keys and durations, so that many are counterparts."""
    ranks = draw(st.integers(2, 5))
    nodes = draw(st.integers(1, 40))

    def each(values):
        return np.array(draw(st.lists(values, min_size=nodes, max_size=nodes)))

    lanes = tuple(Lane(rank, kind, str(kind)) for rank in range(ranks) for kind in KINDS)
    dfg = replace(
        dfg_of([0] * nodes, each(st.sampled_from([0, 1, 2, 3, 7, 2 * MIN_SLEEP_NS])), []),
        lane=each(st.integers(0, len(lanes) - 1)).astype(np.int32),
        step=each(st.integers(-1, 1)).astype(np.int32),
        cls=each(st.sampled_from([*Cls, Cls.CPU, Cls.COMPUTE, Cls.HOST_GAP])).astype(np.int8),
        name=each(st.integers(0, 1)).astype(np.int32),
        key=each(st.integers(-1, 2)).astype(np.int32),
        names=("a", "b"),
        lanes=lanes,
        marks=StepMarks((0, 1), tuple(range(ranks)), np.zeros((2, ranks), int), np.zeros((2, ranks), int)),
    )
    roles = draw(st.lists(st.integers(0, 1), min_size=ranks, max_size=ranks))
    return RankWork(dfg, dfg.dur_ns, np.unique(roles, return_inverse=True)[1], keys=3)


def by_definition(work: RankWork) -> list[tuple[float, ...]]:
    """(median over the other ranks, median over all, mean over all) of each node, node by node."""
    dfg, roles = work.dfg, work.roles.tolist()
    found = [(np.nan,) * 3] * dfg.nodes
    rank, cls, step, key, name, took = (
        getattr(dfg, of).tolist() for of in ("rank", "cls", "step", "key", "name", "dur_ns")
    )
    kind = [dfg.lanes[lane].kind for lane in dfg.lane.tolist()]
    before = [step[n] < 0 and kind[n] is LaneKind.STREAM for n in range(dfg.nodes)]
    own = [n for n in range(dfg.nodes) if cls[n] not in NOT_COMPARED and key[n] >= 0 and (step[n] >= 0 or before[n])]
    role = [roles[rank[n]] if cls[n] in BOUND else None for n in range(dfg.nodes)]
    gap = [c == Cls.HOST_GAP for c in cls]
    stages = (
        ([n for n in own if not before[n]], lambda n: (step[n], key[n], role[n])),
        (
            [n for n in own if kind[n] is not LaneKind.LOADER and not gap[n]],
            lambda n: (step[n], kind[n], name[n], role[n]),
        ),
        ([n for n in own if kind[n] is LaneKind.LOADER], lambda n: (kind[n], name[n])),
    )
    for stage, (compared, identity) in enumerate(stages):
        of = defaultdict(lambda: defaultdict(list))
        for n in compared:
            of[identity(n)][rank[n]].append(n)
        new = {n for n in compared if np.isnan(found[n][0])}
        for n in new:
            on_ranks, sharing = of[identity(n)], roles.count(roles[rank[n]])
            if stage == 1 and not before[n]:
                counts = sorted(map(len, on_ranks.values()))
                mine = on_ranks[rank[n]]
                if sum(one not in new for one in mine) >= counts[(len(counts) - 1) // 2]:
                    if sharing > 1:
                        found[n] = (0, took[n] / 2 if sharing == 2 else 0, took[n] / sharing)
                    continue
            value = {one: mean(took[node] for node in nodes) for one, nodes in on_ranks.items()}
            firsts = (nodes[0] for nodes in on_ranks.values())
            least = max(
                ((len(roles) if took[f] > MIN_SLEEP_NS else roles.count(roles[rank[f]])) if gap[f] else 0)
                for f in firsts
            )
            zeros = [0] * max(0, least - len(value))
            everybody = [*zeros, *value.values()]
            if len(everybody) > 1:
                others = [*zeros, *(took for one, took in value.items() if one != rank[n])]
                found[n] = (median(others), median(everybody), mean(everybody))
    return found


def some_ranks(work: RankWork, ranks) -> tuple[RankWork, np.ndarray]:
    """(the work of some ranks, the ids of its nodes)."""
    nodes = np.flatnonzero(np.isin(work.dfg.rank, ranks))
    dfg: Dfg = replace(work.dfg, **{name: values[nodes] for name, values in work.dfg.columns.items()})
    return replace(work, dfg=dfg, work_ns=work.work_ns[nodes]), nodes


@thorough(300)
@given(work_of_ranks())
def test_counterparts_are_those_of_the_definition(work):
    found = counterparts(work.dfg, work.work_ns, work.roles)
    for node, expected in enumerate(by_definition(work)):
        mine = [getattr(found, field)[node] for field in FIELDS]
        assert mine == pytest.approx(list(expected), nan_ok=True)


@thorough(300)
@given(work_of_ranks(), st.integers(1, 3), st.integers(1, 50))
def test_some_ranks_at_a_time_have_the_same_counterparts(work, ranks_at_once, sorted_at_once):
    whole = counterparts(work.dfg, work.work_ns, work.roles)
    ranks = work.dfg.marks.ranks
    parts = [some_ranks(work, ranks[at : at + ranks_at_once]) for at in range(0, len(ranks), ranks_at_once)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SORTED_AT_ONCE", sorted_at_once)
        table = PeerTable.of(part for part, _ in parts)
    for part, nodes in parts:
        found = table.counterparts(part)
        for field in ("own", *FIELDS):
            assert np.array_equal(getattr(found, field), getattr(whole, field)[nodes], equal_nan=field != "own")
