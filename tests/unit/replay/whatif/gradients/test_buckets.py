"""Gradient buckets: DDP's rule, cost of an all-reduce, and graphs with other buckets, worked by hand."""

import numpy as np
import pytest

from esprof.replay.building.build import build
from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.ranks.blame import Blame
from esprof.replay.whatif.apply import apply
from esprof.replay.whatif.communication.links import TYPICAL_QUANTILE, RecordedLinks, link_share, stretches
from esprof.replay.whatif.gradients.backward import NotBuckets, first_shape
from esprof.replay.whatif.gradients.buckets import MIB, fill, rebucket
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import what_if
from esprof.replay.whatif.scenario import Scenario
from tests.cases.gloo_buckets import ELEMENTS, EVALUATE, GRADIENT, MS, ddp_step, gloo_collective, run_with
from tests.cases.graph import GLOO, op, run_of, step


def step_ms(dfg):
    return replay(dfg).step_ns()[0] / 1e6


@pytest.mark.parametrize(
    ("sizes", "cap", "counts"),
    [
        ((3, 3, 3), 5, [2, 1]),
        ((3, 3, 3), 6, [2, 1]),
        ((9, 1, 1), 2, [1, 2]),
        ((1, 1, 1), 100, [3]),
        ((2, 2), 1, [1, 1]),
    ],
)
def test_a_bucket_is_closed_when_it_holds_its_cap(sizes, cap, counts):
    assert fill(sizes, cap) == counts


def test_the_cost_of_a_collective_is_estimated_from_recorded_ones():
    assert stretches(build(run_with((1, 1, 2), (1, 1, 1)))).all_reduce_ns(3 * MIB, 2) == pytest.approx(60e6, rel=1e-3)


def two_all_reduces():
    """10 ms of work, an all-reduce of 1 MiB in 20 ms, one in 25 ms from 50 ms on, and 20 ms of work after each of them."""
    rows = [step(1, 0, 95 * MS), op("train", 0, 10 * MS)]
    for begin, took in ((10, 20), (50, 25)):
        rows += gloo_collective(begin * MS, begin * MS + 40, took * MS, ELEMENTS)
        rows.append(op("use", (begin + took) * MS + 40, 20 * MS - 40))
    return run_of({0: rows, 1: rows})


def durations_ms(run, *terms):
    """Durations of the two all-reduces of rank 0."""
    dfg = apply(Scenario(run, Blame(recorded := build(run), (1,)), recorded), parse(",".join(terms))).dfg
    return (dfg.dur_ns[dfg.of(Cls.COMMUNICATION) & (dfg.rank == 0)] / 1e6).tolist()


def test_a_collective_slower_per_byte_than_the_fastest_is_slowed_by_cpus():
    run = two_all_reduces()
    dfg = build(run)
    all_reduces = dfg.of(Cls.COMMUNICATION) & (dfg.rank == 0)
    # The fastest twentieth lies between the two: a little more than the faster one.
    assert link_share(dfg, RecordedLinks.of(dfg)).share[all_reduces].tolist() == pytest.approx(
        [1, 20.25 / 25], rel=1e-3
    )
    assert durations_ms(run, "network=2x") == pytest.approx([10, 4.75 + 20.25 / 2], rel=1e-3)
    assert durations_ms(run, "cpu=0.5x") == pytest.approx([20, 20.25 + 2 * 4.75], rel=1e-3)
    assert durations_ms(run, "collective[reduce]=2x") == pytest.approx([10, 12.5], rel=1e-3)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("network", ["0.25x", "4x"])
def test_link_and_cpus_speed_up_their_own_shares_in_any_order(order, network):
    factor = float(network[:-1])
    took = durations_ms(two_all_reduces(), *(f"network={network}", "cpu=0.5x")[::order])
    assert took == pytest.approx([20 / factor, 20.25 / factor + 2 * 4.75], rel=1e-3)


def test_the_slowest_cpu_sets_the_pace_of_a_collective():
    run = two_all_reduces()
    assert durations_ms(run, "rank1.cpu=2x") == pytest.approx([20, 25], rel=1e-3)
    assert durations_ms(run, "rank1.cpu=0.5x") == pytest.approx([20, 20.25 + 2 * 4.75], rel=1e-3)
    assert durations_ms(run, "rank0.cpu=0.5x", "rank1.cpu=0.5x") == durations_ms(run, "cpu=0.5x")
    assert durations_ms(run, "rank0.cpu=4x", "rank1.cpu=2x") == durations_ms(run, "cpu=2x")


def test_link_speed_is_estimated_from_recorded_collectives_not_from_edited_ones():
    """One bucket for all takes the typical time of these links, including a constant share of the CPUs."""
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    dfg = build(run)
    known = stretches(dfg)
    large = rebucket(run, dfg, 25).dfg
    share = known.link_ns_per_byte() / known.link_ns_per_byte(TYPICAL_QUANTILE)
    assert link_share(large, RecordedLinks.of(dfg)).share[large.of(Cls.COMMUNICATION)].tolist() == pytest.approx(
        [share] * 2
    )


def test_one_large_bucket_waits_for_the_last_gradient():
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    dfg = build(run)
    # Four all-reduces from 10 ms on end at 90 ms; the last bucket is copied in 1 ms, then 5 ms follow.
    assert step_ms(dfg) == pytest.approx(96, abs=0.2)
    # One bucket: sent at 40 ms, there at 120, copied in 4 ms.
    assert step_ms(rebucket(run, dfg, 25).dfg) == pytest.approx(129, abs=0.2)


def test_small_buckets_are_hidden_by_the_backward_pass():
    run = run_with((1, 1, 1, 1), (4,))
    dfg = build(run)
    assert step_ms(dfg) == pytest.approx(129, abs=0.2)
    assert step_ms(rebucket(run, dfg, 1).dfg) == pytest.approx(96, abs=0.2)


def test_the_buckets_that_it_has_change_nothing():
    for buckets, mb in (((1, 1, 1, 1), 1), ((2, 2), 2), ((4,), 25)):
        run = run_with((1, 1, 1, 1), buckets)
        dfg = build(run)
        assert step_ms(rebucket(run, dfg, mb).dfg) == pytest.approx(step_ms(dfg), rel=0.002)


def test_new_buckets_send_the_same_bytes_as_the_old_ones():
    run = run_with((1, 0.5, 2, 0.25), (2, 2))
    dfg = build(run)
    again = rebucket(run, dfg, 1).dfg
    for graph, sizes in ((dfg, [1.5, 2.25]), (again, [0.25, 1, 2.5])):
        moved = np.sort(graph.bytes[graph.of(Cls.COMMUNICATION) & (graph.rank == 0)]) / MIB
        assert moved.tolist() == sizes


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (run_with((1, 1), (1, 1), shapes=False), "sizes"),
        (run_with((1, 1), (1, 1), last=EVALUATE + GRADIENT), "recorded"),
        (run_of({0: ddp_step((1, 2), (2,)), 1: ddp_step((2, 1), (2,))}), "differ between ranks in size or order"),
    ],
)
def test_unsupported_runs_are_declined(run, reason):
    dfg = build(run)
    with pytest.raises(NotBuckets, match=reason):
        rebucket(run, dfg, 25)
    (answer,) = what_if(run, dfg, ["bucket_mb=25"])
    assert not answer.answered
    assert "gradient buckets" in (answer.reason or "")


@pytest.mark.parametrize("shape", ["7", '{"a": 1}', "[[null]]", '["a"]', "[[1,]]", "[]", "[[2.5]]", "[" * 3000])
def test_a_shape_that_is_none_is_declined(shape):
    with pytest.raises(NotBuckets, match="sizes"):
        first_shape(shape)


def test_the_shape_of_a_scalar_and_of_a_matrix():
    assert [first_shape(shape) for shape in ("[[]]", "[[3, 4], []]")] == [[], [3, 4]]


def test_many_more_collectives_are_declined_and_some_more_get_a_note():
    run = run_with((1,) * 9, (9,))
    two, three, nine = what_if(run, build(run), ["bucket_mb=5", "bucket_mb=3", "bucket_mb=1"])
    assert "the fixed cost" not in (two.note or "")
    assert "the fixed cost" in (three.note or "")
    assert "9 times as many" in (nine.reason or "")


def test_threads_that_are_woken_at_once_may_begin_in_any_order():
    """The second all-reduce begins 0.1 ms before the first, on another thread."""
    rows = ddp_step((1, 2), (1, 1))
    first, second = (row for row in rows if row.name.startswith("gloo:"))
    first.ts, first.dur = 20.2 * MS, 19.8 * MS
    second.ts, second.dur, second.tid = 20.1 * MS, 49.9 * MS, GLOO + 1
    run = run_of({0: rows, 1: rows})
    again = rebucket(run, build(run), 25).dfg
    assert (again.bytes[again.of(Cls.COMMUNICATION)] == 3 * MIB).all()


def test_terms_hold_at_once_whatever_their_order():
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1))
    dfg = build(run)
    one, other = what_if(run, dfg, ["bucket_mb=25,network=2x", "network=2x,bucket_mb=25"])
    assert one.predicted_us == other.predicted_us == pytest.approx(89 * MS, rel=0.01)
