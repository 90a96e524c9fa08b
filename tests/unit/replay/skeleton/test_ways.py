"""Parts of graphs that the critical path leads through, against the whole graphs."""

import numpy as np
from hypothesis import given

from esprof.replay.dfg import JOIN_LANE
from esprof.replay.engine.timeline import critical_path, replay
from esprof.replay.skeleton.ways import ways_back
from tests.cases.properties import thorough
from tests.cases.random_graphs import dfg_of, graphs


def shown(pieces):
    return [(piece.start_ns, piece.end_ns, piece.cls, piece.rank) for piece in pieces]


@thorough(200)
@given(graphs())
def test_the_path_through_the_ways_back_is_that_of_the_whole_graph(dfg):
    whole = replay(dfg)
    part = ways_back(whole, [dfg.nodes - 1, *np.flatnonzero(dfg.lane == JOIN_LANE).tolist()])
    assert shown(critical_path(part, 0, 0)) == shown(critical_path(whole, 0, 0))
    assert (np.diff(part.dfg.pred_ptr) <= 1).all()


def test_a_way_ends_at_the_join_before():
    #                 join 1              join 4
    lanes = [0, JOIN_LANE, 0, 1, JOIN_LANE, 0]
    dfg = dfg_of(lanes, [5, 0, 7, 3, 0, 2], [(0, 1, 0), (1, 2, 0), (1, 3, 0), (2, 4, 0), (3, 4, 0), (4, 5, 0)])
    part = ways_back(replay(dfg), [4]).dfg
    # The marks, the joins, and the node that came last to the second.
    assert part.dur_ns.tolist() == [5, 0, 7, 0, 2]
    assert [(int(source), int(target)) for source, target in zip(part.pred_idx, part.pred_target, strict=True)] == [
        (1, 2), (2, 3),
    ]  # fmt: skip
