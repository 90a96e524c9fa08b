"""What holds for every job, whatever its shape."""

from collections import defaultdict
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.known.changes import changed, true_steps
from benchmarks.known.jobs import SHAPES, job
from benchmarks.known.machine import run
from benchmarks.known.program import Kind
from tests.cases.properties import thorough

JOBS = st.tuples(st.sampled_from(list(SHAPES)), st.integers(0, 1))
STEPS = 2
"""Of each job: more are like them."""


@cache
def made(shape, seed):
    """Jobs and their timelines, kept: examples that are drawn again cost nothing."""
    one = job(shape, seed, steps=STEPS)
    return one, run(one.program)


def on_streams(timeline):
    lanes = defaultdict(list)
    for row in timeline.rows:
        if isinstance(row.lane, int):
            lanes[row.rank, row.lane].append(row)
    return lanes.values()


@given(JOBS)
@thorough(15)
def test_a_stream_does_one_thing_at_a_time_in_the_order_of_its_launches(which):
    one, timeline = made(*which)
    for rows in on_streams(timeline):
        for before, after in pairwise(rows):
            assert before.end + one.program.spacing_ns <= after.start


@given(JOBS)
@thorough(15)
def test_no_kernel_begins_before_its_launch_ends(which):
    _, timeline = made(*which)
    calls = {(row.rank, row.correlation): row for row in timeline.rows if row.correlation and isinstance(row.lane, str)}
    for rows in on_streams(timeline):
        assert all(row.start > calls[row.rank, row.correlation].end for row in rows)


@given(JOBS)
@thorough(15)
def test_every_transfer_takes_its_time_after_the_last_member_came(which):
    one, timeline = made(*which)
    ns = one.program.drawn
    ends = defaultdict(set)
    for row in timeline.rows:
        if "nccl" in row.name and isinstance(row.lane, int):
            ends[row.end].add(row.rank)
    for collective, (begin, end) in zip(one.program.collectives, timeline.collectives, strict=True):
        handling = max((ns[cost] for cost in collective.handling), default=0)
        assert end - begin == ns[collective.latency] + ns[collective.bytes] + handling
        assert collective.handling or set(collective.members) <= ends[end]


@given(JOBS)
@thorough(10)
def test_twice_the_durations_are_twice_the_steps(which):
    one, timeline = made(*which)
    program = one.program
    if program.spacing_ns:
        return  # It is the device's, and no duration.
    doubled = run(program, [2 * cost for cost in program.drawn])
    assert doubled.step_ns() == {number: 2 * ns for number, ns in timeline.step_ns().items()}


@given(JOBS)
@thorough(5)
def test_a_job_is_the_same_each_time(which):
    _, timeline = made(*which)
    assert run(job(*which, steps=STEPS).program) == timeline


@given(JOBS, st.sampled_from(["gpu=2x", "communication=0", "data=0", "cpu=2x", "gpu=2x,network=2x"]))
@thorough(10)
def test_less_work_ends_no_later(which, scenario):
    one, timeline = made(*which)
    faster = run(one.program, changed(one.program, scenario))
    # All threads take what they take in a fixed order, so the machine is monotonous.
    assert max(row.end for row in faster.rows) <= max(row.end for row in timeline.rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_factor_of_one_changes_nothing(shape):
    one, timeline = made(shape, 0)
    assert true_steps(one.program, "gpu=1x,cpu=1x,network=1x,host=1x") == timeline.step_ns()


def test_other_buckets_leave_all_but_the_transfers_as_it_was():
    own, other = (job("buckets", 1, mb, steps=STEPS).program for mb in (None, 10_000.0))
    assert len(other.collectives) < len(own.collectives)
    kernels, carried = (
        [[cost.ns for cost in one.costs if cost.kind is kind] for one in (own, other)]
        for kind in (Kind.KERNEL, Kind.BYTES)
    )
    assert kernels[0] == kernels[1]
    assert sum(carried[0]) == pytest.approx(sum(carried[1]), rel=1e-6)


@pytest.mark.slow
def test_a_planted_cause_is_on_its_rank_and_mended():
    one = next(one for seed in range(50) if (one := job("gloo", seed)).plant and one.plant.kind is Kind.CPU)
    excess = [cost for cost in one.program.costs if cost.excess]
    assert {cost.rank for cost in excess} == {one.plant.rank}
    mended = changed(one.program, "straggler=fix")
    assert sum(one.program.drawn) - sum(mended) == sum(cost.excess for cost in excess)
