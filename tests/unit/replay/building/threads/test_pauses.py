"""Operations that wait inside for a collective, as hooks of a backward pass do, and operations that compute meanwhile."""

import msgspec
import pytest

from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import gloo, op, run_of, step

MS = 1_000_000
HOOK = "autograd::engine::evaluate_function: PostBackward"


def waits(dfg, rank=0):
    """When waits for collectives end on a rank, in ms."""
    return [int(dfg.recorded_ns[n]) / MS for n in range(dfg.nodes) if is_wait(dfg, n) and dfg.rank[n] == rank]


def is_wait(dfg, n):
    return dfg.label(n) == "wait for collectives"


def job(*rows):
    """Two equal ranks with one step of 40 ms."""
    mine = [step(1, 0, 40_000), *rows]
    return run_of({0: mine, 1: mine})


def network_2x(run, dfg):
    (answer,) = what_if(run, dfg, ["network=2x"])
    return answer.predicted_us


def hook(begin):
    """1 ms of work, a collective of 10 ms that is awaited at once, 1 ms of work on its result."""
    return [
        op(HOOK, begin, 12_000),
        op("aten::clone", begin, 990),
        *gloo(begin + 995, begin + 1_000, begin + 11_000),
        op("aten::copy_", begin + 11_100, 800),
    ]


def test_an_operation_waits_for_the_collective_that_it_issues_and_then_works_on():
    run = job(op("forward", 0, 1_000), *hook(1_000), *hook(13_000), op("Optimizer.step", 25_000, 15_000))
    dfg = build(run)
    assert waits(dfg) == [12, 24]
    assert network_2x(run, dfg) == pytest.approx(40_000 - 2 * 10_000 / 2, abs=20)


def test_the_rest_of_an_operation_is_its_own_work():
    dfg = build(job(op("forward", 0, 1_000), *hook(1_000), op("Optimizer.step", 13_000, 27_000)))
    own = [int(dfg.dur_ns[n]) for n in range(dfg.nodes) if dfg.label(n) == HOOK and dfg.rank[n] == 0]
    assert own == [995_000, MS]


def test_a_reduce_scatter_is_matched_with_gloos_all_reduce():
    rows = [
        msgspec.structs.replace(row, name="c10d::_reduce_scatter_base_") if row.name == "c10d::allreduce_" else row
        for row in hook(1_000)
    ]
    run = job(op("forward", 0, 1_000), *rows, op("Optimizer.step", 13_000, 27_000))
    dfg = build(run)
    assert waits(dfg) == [12]
    assert network_2x(run, dfg) == pytest.approx(40_000 - 10_000 / 2, abs=20)


def test_an_operation_that_computes_does_not_wait_for_a_collective_that_ends_in_it_once():
    """The collective is under way through two kernels of 10 ms, and ends right before the second of them does."""
    kernels = [op("mine::kernel", 1_010, 10_000), op("mine::kernel", 11_010, 10_000)]
    run = job(op("forward", 0, 1_000), *gloo(1_000, 1_005, 20_900), *kernels, op("Optimizer.step", 21_010, 18_990))
    dfg = build(run)
    assert waits(dfg) == []
    assert network_2x(run, dfg) == pytest.approx(40_000, abs=20)


def test_a_site_that_mostly_waits_also_waits_when_its_thread_is_preempted():
    late = hook(25_000)
    late[-1] = op("aten::copy_", 36_900, 90)  # 0.9 ms later: no longer at once.
    late[-2].dur = 9_000
    run = job(op("forward", 0, 1_000), *hook(1_000), *hook(13_000), *late, op("Optimizer.step", 37_000, 3_000))
    assert waits(build(run)) == [12, 24, 35]


@pytest.mark.parametrize("name", ["aten::mm", "aten::embedding_dense_backward"])
def test_pytorchs_own_operators_wait_for_no_collective_whatever_ends_in_them(name):
    run = job(op("forward", 0, 1_000), *gloo(1_000, 1_005, 20_900), op(name, 1_010, 20_000), op("end", 21_010, 18_990))
    dfg = build(run)
    assert waits(dfg) == []


def test_an_operation_that_ends_while_its_collective_is_under_way_has_not_waited():
    """Like a bucket of DDP: the wait follows the backward pass."""
    run = job(
        op(HOOK, 0, 5_000),
        *gloo(1_000, 1_005, 20_000),
        op(HOOK, 5_000, 5_000),
        op("Optimizer.step", 20_100, 19_900),
    )
    assert waits(build(run)) == [20]
