"""The compiled passes against a plain reference, on random graphs."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from esprof.replay import engine
from esprof.replay.builder import GraphBuilder
from esprof.replay.dfg import Cls, Dfg, Edge, StepMarks

NODES = st.integers(2, 25)


@st.composite
def graphs(draw) -> Dfg:
    """Random graphs: edges from earlier to later nodes, lags of either sign, recorded starts anywhere."""
    count = draw(NODES)
    builder = GraphBuilder()
    lanes = [builder.add_lane(0, "cpu", f"lane {n}") for n in range(3)]
    for node in range(count):
        start, dur = draw(st.integers(0, 500)), draw(st.integers(0, 50))
        builder.add(lanes[node % 3], f"op {node % 4}", Cls.CPU, start, dur, chain=False)
    for target in range(1, count):
        for source in draw(st.sets(st.integers(0, target - 1), max_size=3)):
            builder.link(source, target, Edge.WAIT, draw(st.integers(-20, 20)))
    return builder.compile(StepMarks((0,), (0,), np.array([[0]]), np.array([[count - 1]])))


def reference(dfg: Dfg, dur: np.ndarray, residual: np.ndarray) -> tuple[list[int], list[int]]:
    start, end = [], []
    for node in range(dfg.nodes):
        ready = [int(dfg.release_ns[node])]
        for edge in range(dfg.pred_ptr[node], dfg.pred_ptr[node + 1]):
            ready.append(end[dfg.pred_idx[edge]] + int(dfg.pred_lag[edge]))
        start.append(max(ready) + int(residual[node]))
        end.append(start[-1] + int(dur[node]))
    return start, end


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_the_forward_pass_is_the_longest_path(dfg):
    start, end = engine.run(dfg, dfg.dur_ns, dfg.residual_ns)
    assert (start.tolist(), end.tolist()) == reference(dfg, dfg.dur_ns, dfg.residual_ns)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_residuals_are_never_negative_and_restore_every_recorded_start_that_was_possible(dfg):
    assert (dfg.residual_ns >= 0).all()
    start, _ = engine.run(dfg, dfg.dur_ns, dfg.residual_ns)
    assert (start >= dfg.recorded_ns).all()
    assert (start[dfg.residual_ns > 0] == dfg.recorded_ns[dfg.residual_ns > 0]).all()


@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(0, 10_000))
def test_shorter_work_never_ends_later(dfg, seed):
    shrink = np.random.default_rng(seed).random(dfg.nodes)
    _, end = engine.run(dfg, dfg.dur_ns, dfg.residual_ns)
    _, sooner = engine.run(dfg, (dfg.dur_ns * shrink).astype(np.int64), dfg.residual_ns)
    assert (sooner <= end).all()


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_predecessors_stand_before_their_followers(dfg):
    target = np.repeat(np.arange(dfg.nodes), np.diff(dfg.pred_ptr))
    assert (dfg.pred_idx < target).all()
