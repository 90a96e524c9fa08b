"""Gradient buckets between GPUs: graphs with other buckets, worked by hand."""

import numpy as np
import pytest

from esprof.replay.building.build import build
from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif.gradients.backward import EVALUATE, NotBuckets
from esprof.replay.whatif.gradients.buckets import MIB, rebucket
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import op, run_of
from tests.cases.nccl_buckets import (
    ALL_REDUCE,
    COMMUNICATION_MS,
    LATENCY_US,
    MS,
    accumulated,
    ddp_step,
    launched,
    run_with,
)


def step_ms(dfg):
    return replay(dfg).step_ns()[0] / 1e6


def moved_mib(dfg):
    of_rank = dfg.of(Cls.COMMUNICATION) & (dfg.rank == 0)
    return sorted((dfg.bytes[of_rank] / MIB).tolist())


@pytest.mark.parametrize("shapes", [True, False])
def test_one_large_bucket_waits_for_the_last_gradient(shapes):
    run = run_with((1, 1, 1, 1), (1, 1, 1, 1), shapes=shapes)
    dfg = build(run)
    # Transfers follow one another from 10 ms on.
    assert step_ms(dfg) == pytest.approx(10 + 80.4 + 5, abs=0.5)
    again = rebucket(run, dfg, 25).dfg
    assert step_ms(again) == pytest.approx(40 + 80.1 + 5, abs=0.5)
    assert moved_mib(again) == [4]


def test_small_buckets_are_hidden_by_the_backward_pass():
    run = run_with((1, 1, 1, 1), (4,))
    again = rebucket(run, build(run), 1).dfg
    assert step_ms(again) == pytest.approx(10 + 80.4 + 5, abs=0.5)
    assert moved_mib(again) == [1, 1, 1, 1]


@pytest.mark.parametrize(("buckets", "mb"), [((1, 1, 1, 1), 1), ((2, 2), 2), ((4,), 25)])
def test_the_buckets_that_it_has_change_nothing(buckets, mb):
    run = run_with((1, 1, 1, 1), buckets)
    dfg = build(run)
    assert step_ms(rebucket(run, dfg, mb).dfg) == pytest.approx(step_ms(dfg), rel=0.005)


def test_a_first_bucket_closed_sooner_does_not_keep_the_others_from_being_put_together():
    run = run_with((0.25, 1, 1, 1, 0.5), (1, 1, 1, 1, 1), shapes=False)
    assert moved_mib(rebucket(run, build(run), 2).dfg) == [1.5, 2.25]


def test_merged_buckets_keep_the_latency_of_one_collective():
    run = run_with((1, 2, 1, 2), (1, 1, 1, 1))
    again = rebucket(run, build(run), 25).dfg
    took = again.dur_ns[again.of(Cls.COMMUNICATION) & (again.rank == 0)] / 1e6
    assert took.tolist() == pytest.approx([6 * COMMUNICATION_MS + LATENCY_US / MS], abs=0.01)


def test_merged_buckets_get_a_note():
    whole, single = (run_with((1, 1), (1, 1), shapes=shapes) for shapes in (False, True))
    assert ["whole" in (what_if(run, build(run), ["bucket_mb=25"])[0].note or "") for run in (whole, single)] == [
        True,
        False,
    ]


def test_an_all_reduce_that_no_gradient_launches_stays_after_the_buckets():
    run = run_with((1, 1), (1, 1), metric=1)
    again = rebucket(run, build(run), 25).dfg
    assert np.count_nonzero(again.of(Cls.COMMUNICATION) & (again.rank == 0)) == 2
    assert step_ms(again) == pytest.approx(20 + 40.1 + 0.05 + 5, abs=0.5)


def twice_backward(*, sends):
    """Gradients of a backward pass before that which sends all; the earlier one may send its last one, too."""
    first, *rows = ddp_step((1, 2), (1, 1), since=450)
    rows = [row for row in rows if row.name != "forward"]
    rows += [
        op("forward", 0, 10),
        *accumulated(15, 1, shapes=True),
        *accumulated(60, 2, shapes=True),
        op("again", 105, 40),
    ]
    rows += launched(75, 700, 110, 50, 2) if sends else []
    return run_of({rank: [first, *rows] for rank in (0, 1)})


def test_gradients_of_a_pass_that_sends_none_are_none_of_the_buckets():
    run = twice_backward(sends=False)
    assert moved_mib(rebucket(run, build(run), 25).dfg) == [3]


def mixed_up():
    """The second bucket holds the first gradients."""
    rows = ddp_step((1, 3), (1, 1))
    first, second = (row.args for row in rows if row.name == ALL_REDUCE)
    first.in_elements, second.in_elements = second.in_elements, first.in_elements
    return run_of({0: rows, 1: rows})


def annotated():
    rows = [*ddp_step((1, 1), (1, 1)), op("FullyShardedDataParallel._post_backward_hook", 110, 5)]
    return run_of({0: rows, 1: rows})


@pytest.mark.parametrize(
    ("run", "mb", "reason"),
    [
        (run_with((1, 1, 1), (1, 1, 1), shapes=False), 0.5, "--shapes"),
        (run_with((1, 2), (2,), shapes=False), 2, "--shapes"),
        (mixed_up(), 25, "in order of arrival"),
        (run_with((1, 1), (1, 1), name="ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"), 25, "collectives other than"),
        (annotated(), 25, "sharded"),
        (twice_backward(sends=True), 25, "several backward passes"),
        (run_of({0: ddp_step((1, 2), (2,)), 1: ddp_step((2, 1), (2,))}), 25, "differ between ranks in size or order"),
        (run_of({rank: ddp_step((1, 1), (1, 1)) for rank in (0, 1)}, world=3), 25, "missing"),
        (run_of({0: ddp_step((1, 1), (1, 1)), 1: ddp_step((1, 1), (2,))}), 25, "matched|share"),
        (
            run_of({rank: [row for row in ddp_step((1, 1), (1, 1)) if row.name != EVALUATE] for rank in (0, 1)}),
            25,
            "no recorded gra",
        ),
    ],
)
def test_unsupported_runs_are_declined(run, mb, reason):
    dfg = build(run)
    with pytest.raises(NotBuckets, match=reason):
        rebucket(run, dfg, mb)
    (answer,) = what_if(run, dfg, [f"bucket_mb={mb}"])
    assert not answer.answered
    assert "gradient buckets" in (answer.reason or "")


def test_a_faster_network_makes_new_buckets_faster_too():
    run = run_with((1, 2, 1, 2), (1, 1, 1, 1))
    (answer,) = what_if(run, build(run), ["bucket_mb=25,network=2x"])
    assert answer.predicted_us == pytest.approx((40 + 60.1 + 5) * MS, rel=0.01)
