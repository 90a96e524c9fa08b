"""Ranks to blame for a delay: own work beyond that of counterparts, across all groups."""

import numpy as np
import pytest

from esprof.core.statistics import trimmed_mean
from esprof.replay.building.build import build
from esprof.replay.dfg import Cls
from esprof.replay.ranks.arrivals import held_ns
from esprof.replay.ranks.blame import Blame
from esprof.replay.ranks.counterparts import counterparts, roles_of
from esprof.replay.whatif.scenario import Declined
from esprof.replay.whatif.terms.straggler import fix_stragglers
from tests.cases.graph import call, gloo, kernel, launched, load_call, node, nodes_of, op, run_of, step

MS = 1000.0


def blame_of(run) -> Blame:
    dfg = build(run)
    return Blame(dfg, dfg.marks.steps)


def reduced(group: tuple[int, ...], at: float, end: float, correlation: int) -> list:
    """An all-reduce of these ranks, launched at `at` and running until `end`, for which the CPU waits."""
    args = {"collective": "allreduce", "group_ranks": list(group), "in_elements": 1000, "dtype": "Float"}
    return [
        call("cudaLaunchKernelExC", at, 5, correlation),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 10, end - at - 10, correlation, stream=20, **args),
        call("cudaStreamSynchronize", at + 10, end - at, correlation + 1),
    ]


def two_by_two(slow: int, extra: float) -> dict[int, list]:
    """Four ranks that reduce in pairs after 10 ms, and 1 ms later across the pairs; `slow` takes `extra` ms more.

    So its neighbour comes late to the second all-reduce.
    """
    near = {rank: (0, 1) if rank < 2 else (2, 3) for rank in range(4)}
    far = {rank: (rank % 2, rank % 2 + 2) for rank in range(4)}
    ranks = {}
    for rank in range(4):
        own = (10 + (extra if rank == slow else 0)) * MS
        first = (10.1 + (extra if slow in near[rank] else 0)) * MS
        second = (10.1 + extra + 1.3) * MS  # One rank of each pair across is late.
        ranks[rank] = [
            step(1, 0, second + 2 * MS),
            op("aten::mm", 0, own),
            *reduced(near[rank], own, first, 1),
            op("aten::gelu", first + 20, MS),
            *reduced(far[rank], first + 20 + MS, second, 3),
            op("aten::item", second + 20, 2 * MS - 20),
        ]
    return ranks


@pytest.mark.parametrize("slow", range(4))
def test_neighbours_that_are_late_because_of_a_rank_are_not_to_blame(slow):
    blame = blame_of(run_of(two_by_two(slow, 5), subgroups=[(0, 1), (2, 3), (0, 2), (1, 3)]))
    assert blame.slow_ranks == (slow,)
    assert blame.late_ns[0, slow] == pytest.approx(5e6, abs=1e4)
    assert np.delete(blame.late_ns[0], slow).tolist() == [0, 0, 0]


def test_work_that_delays_nobody_is_no_blame():
    """Rank 1 works longer while it waits for the collective anyway: the link is busy until then."""

    def rows(beside: float) -> list:
        return [
            step(1, 0, 40 * MS),
            op("aten::mm", 0, 5 * MS),
            *gloo(5 * MS, 5 * MS + 5, 30 * MS),
            op("aten::beside", 5 * MS + 10, beside * MS),
            op("aten::item", 30 * MS + 10, 10 * MS - 10),
        ]

    assert blame_of(run_of({0: rows(2), 1: rows(20)})).late_ns.tolist() == [[0, 0]]


def stage_of_pipeline(rank: int, kernels: int) -> list:
    """A stage that runs so many kernels of 1 ms; then rank 0 sends to rank 1, and both reduce."""
    done = 100 + kernels * MS
    args = {"in_elements": 1000, "dtype": "Float", "source_rank": 0, "target_rank": 1, "group_ranks": [0, 1]}
    rows = [step(1, 0, 12 * MS), op("aten::mm", 0, 90)]
    for n in range(kernels):
        rows += launched(f"gemm {n}", 2 * n, 100 + n * MS, MS, n + 1)
    word = "recv" if rank else "send"
    rows += [
        call("cudaLaunchKernelExC", 80, 5, 50),
        kernel(
            "ncclDevKernel_SendRecv(send)", done + 5 if not rank else 95, 8 * MS, 50, stream=20, collective=word, **args
        ),
        call("cudaStreamSynchronize", 95, 11 * MS, 51),
    ]
    return rows


def test_stages_with_different_compute_have_different_roles():
    unlike = build(run_of({0: stage_of_pipeline(0, 5), 1: stage_of_pipeline(1, 2)}))
    alike = build(run_of({0: stage_of_pipeline(0, 2), 1: stage_of_pipeline(1, 2)}))
    assert (roles_of(unlike).tolist(), roles_of(alike).tolist()) == ([0, 1], [0, 0])
    blame = Blame(unlike, (1,))
    computing = unlike.of(Cls.COMPUTE)
    assert np.isnan(blame.peers.others[computing]).all()
    assert (blame.excess_ns[computing] == 0).all()


def test_a_stage_with_a_slow_cpu_is_slow_in_the_calls_that_no_other_stage_makes_too():
    def rows(rank: int) -> list:
        adds = [op("aten::add", 11_110 + 30 * n, 10 * (1 + rank)) for n in range(9)]
        return [*stage_of_pipeline(rank, 5 - 3 * rank), *adds, *([op("aten::bmm", 11_500, 300)] if rank else [])]

    dfg = build(run_of({rank: rows(rank) for rank in (0, 1)}))
    fixed = fix_stragglers(Blame(dfg, (1,)), [1]).dfg
    assert fixed.dur_ns[node(dfg, "aten::bmm", rank=1)] == 150_000
    assert set(fixed.dur_ns[nodes_of(dfg, "aten::add", rank=1)]) == {10_000}


def one_step(*ops: tuple[str, float]) -> list:
    """Operations (name, ms) one after the other, and an all-reduce."""
    rows, at = [], 0.0
    for name, length in ops:
        rows.append(op(name, at, length * MS))
        at += length * MS
    return [step(1, 0, 100 * MS), *rows, *gloo(80 * MS, 80 * MS + 5, 90 * MS), op("end", 90 * MS, 10 * MS)]


def test_counterparts_are_compared_with_all_other_ranks():
    lengths = [10, 20, 40]
    dfg = build(run_of({rank: one_step(("aten::mm", length)) for rank, length in enumerate(lengths)}))
    found = counterparts(dfg, dfg.dur_ns, roles_of(dfg))
    nodes = [next(n for n in range(dfg.nodes) if dfg.label(n) == "aten::mm" and dfg.rank[n] == r) for r in range(3)]
    assert (found.others[nodes] / 1e6).tolist() == [30, 25, 15]
    assert (found.median[nodes] / 1e6).tolist() == [20, 20, 20]
    assert found.mean[nodes] / 1e6 == pytest.approx(np.mean(lengths))


@pytest.mark.parametrize(("ranks", "excess_ms"), [(2, 3.5), (3, 7)])
def test_extra_work_of_a_rank_counts_as_zero_on_the_others(ranks, excess_ms):
    usual, more = one_step(("aten::mm", 10)), one_step(("aten::mm", 10), ("aten::mm", 7))
    dfg = build(run_of(dict.fromkeys(range(ranks - 1), usual) | {ranks - 1: more}))
    blame = Blame(dfg, (1,))
    again = max(n for n in range(dfg.nodes) if dfg.label(n) == "aten::mm" and dfg.rank[n] == ranks - 1)
    assert blame.peers.others[again] == 0
    assert blame.excess_ns[again] == excess_ms * 1e6
    assert blame.peers.mean[again] == pytest.approx(7e6 / ranks)


def test_work_that_no_other_rank_has_is_removed():
    usual, more = one_step(("aten::mm", 10)), one_step(("aten::mm", 10), ("CheckedBackward", 40))
    run = run_of({0: usual, 1: usual, 2: more})
    blame = Blame(build(run), (1,))
    fixed = fix_stragglers(blame, [2])
    extra = next(n for n in range(blame.dfg.nodes) if blame.dfg.label(n) == "CheckedBackward")
    assert fixed.dfg.dur_ns[extra] == 0


def test_work_that_the_others_do_by_another_name_has_no_counterpart():
    usual, other = one_step(("aten::mm", 10), ("gemm on A100", 30)), one_step(("aten::mm", 10), ("gemm on V100", 40))
    blame = Blame(build(run_of({0: usual, 1: usual, 2: other})), (1,))
    with pytest.raises(Declined, match="has a counterpart on the other ranks"):
        fix_stragglers(blame, [2])


def test_a_launch_that_waits_for_room_is_no_work():
    rows = [
        step(1, 0, 10 * MS),
        op("aten::mm", 0, 9 * MS),
        call("cudaLaunchKernel", 10, 8 * MS, 1),
        kernel("gemm", 8 * MS + 50, 100, 1),
        *gloo(9 * MS, 9 * MS + 5, 9.5 * MS),
    ]
    dfg = build(run_of({0: rows, 1: rows}))
    held = held_ns(dfg, (0, 1))
    assert held.max() == 8e6 - 20_000
    assert set(dfg.cls[held > 0].tolist()) == {Cls.LAUNCH}


def steps_of(*late: float) -> list:
    """A step of 200 ms for each entry: so many ms without an operation, 20 ms of work, an all-reduce, and 10 ms of work."""
    rows = []
    for number, extra in enumerate(late, 1):
        at = number * 200 * MS
        end = at + 150 * MS
        rows += [
            step(number, at, at + 200 * MS),
            op("zero_grad", at, MS),
            op("forward", at + (1 + extra) * MS, 20 * MS),
            *gloo(at + (21 + extra) * MS, at + (21 + extra) * MS + 5, end),
            op("end", end + 10, at + 200 * MS - end - 20),
        ]
    return rows


def test_a_hiccup_of_another_rank_hides_no_slow_one():
    """Rank 1 sleeps in six of seven steps; in the seventh, rank 0 stops for longer than all of that."""
    run = run_of({0: steps_of(0, 0, 0, 120, 0, 0, 0), 1: steps_of(9, 9, 9, 0, 9, 9, 9)})
    assert blame_of(run).slow_ranks == (1,)


@pytest.mark.parametrize(
    "late_ms", [(12, 7, 12, 26, 21, 25, 22), (24, 30, 23, 21, 10, 7, 11)], ids=["by how much", "by how often"]
)
def test_a_rank_that_is_always_last_is_slow_however_its_delay_scatters(late_ms):
    """All of it is in one of hundreds of gaps: no category is significant among so many, the delay itself is."""
    names = [op(f"op {n}", 10 + n, 1) for n in range(300)]
    run = run_of({0: [*steps_of(*[0] * 7), *names], 1: [*steps_of(*late_ms), *names]})
    assert blame_of(run).slow_ranks == (1,)


@pytest.mark.parametrize(("late_steps", "slow"), [(1, (1,)), (2, ()), (3, ())])
def test_a_slow_rank_delays_the_steps_more_than_one_that_is_not_slow(late_steps, slow):
    """Rank 1 sleeps a little in all steps, rank 2 long in few of them: too few to be more than chance."""
    late = [50 if n < late_steps else 0 for n in range(7)]
    blame = blame_of(run_of({0: steps_of(*[0] * 7), 1: steps_of(*[9] * 7), 2: steps_of(*late), 3: steps_of(*[0] * 7)}))
    assert blame.slow_ranks == slow
    assert (trimmed_mean(blame.late_ns)[1] > trimmed_mean(blame.late_ns)[2]) == bool(slow)


@pytest.mark.parametrize(("other", "slow"), [((10,) * 7, (1,)), ((30,) * 7, (1, 2))])
def test_a_rank_in_the_shadow_of_a_slower_one_is_not_listed(other, slow):
    """Rank 1 sleeps 40 ms in each step. Without it, rank 2 holds the job up little or much."""
    run = run_of({0: steps_of(*[0] * 7), 1: steps_of(*[40] * 7), 2: steps_of(*other), 3: steps_of(*[0] * 7)})
    blame = blame_of(run)
    assert blame.slow_ranks == slow


def test_a_hiccup_makes_no_slow_rank():
    run = run_of({0: steps_of(*[0] * 7), 1: steps_of(0, 0, 0, 120, 0, 0, 0)})
    assert blame_of(run).slow_ranks == ()


def test_a_slow_category_is_found_though_other_work_scatters():
    """Rank 1 sleeps 8 ms before each forward pass, and both spend up to 30 ms more or less on their batches."""

    def rows(rank: int) -> list:
        found, rng = [], np.random.default_rng(rank)
        for number in range(1, 4):
            at, batch = number * 200 * MS, rng.uniform(0, 30) * MS
            ready = at + batch + (8 * MS if rank else 0)
            found += [
                step(number, at, at + 200 * MS),
                load_call(at, at + batch, worker=False),
                op("forward", ready + 10, 20 * MS),
                *gloo(ready + 20 * MS + 10, ready + 20 * MS + 15, at + 150 * MS),
                op("end", at + 150 * MS + 10, 50 * MS - 20),
            ]
        return found

    blame = blame_of(run_of({0: rows(0), 1: rows(1)}))
    assert blame.slow_ranks == (1,)
    assert blame.persist(np.array([0, 1]), only=(Cls.DATA,)).tolist() == [False, False]


def test_work_from_before_the_first_step_has_counterparts_of_the_same_name():
    """The kernels of both ranks were launched before the trace began; rank 1's take twice as long."""

    def rows(length: float) -> list:
        backlog = [kernel("gemm", 100 + n * length, length, 500 + n) for n in range(4)]
        return [step(1, 0, 10 * MS), op("aten::mm", 0, 9 * MS), *backlog, *gloo(9 * MS, 9 * MS + 5, 9.5 * MS)]

    blame = blame_of(run_of({0: rows(500), 1: rows(1000)}))
    backlog = (blame.dfg.step < 0) & blame.dfg.of(Cls.COMPUTE)
    assert backlog.any()
    slow = backlog & (blame.dfg.rank == 1)
    assert set(blame.peers.others[slow].tolist()) == {500_000}


def test_categories_stay_distinct_with_more_than_256_names():
    names = [op(f"op {n}", 10 + n, 1) for n in range(300)]
    run = run_of({rank: [*steps_of(*[9 * rank] * 7), *names] for rank in (0, 1)})
    assert blame_of(run).persist(np.array([0, 1])).tolist() == [False, True]


@pytest.mark.slow
def test_ranks_that_are_alike_are_seldom_called_slow():
    """100 jobs of two ranks and three steps of ten operations that scatter by a fifth: chance makes one in a hundred."""

    def rows(rng: np.random.Generator) -> list:
        found = []
        for number in range(1, 4):
            at = clock = number * 10 * MS
            found += [step(number, at, at + 10 * MS)]
            for name in range(10):
                length = 100 * rng.normal(1, 0.2)
                found += [op(f"op {name}", clock, length)]
                clock += length
            found += [*gloo(clock, clock + 5, at + 5 * MS), op("end", at + 5 * MS + 10, 5 * MS - 20)]
        return found

    rng = np.random.default_rng(4)
    jobs = [blame_of(run_of({rank: rows(rng) for rank in (0, 1)})) for _ in range(100)]
    assert sum(bool(job.slow_ranks) for job in jobs) <= 4


@pytest.mark.parametrize(("pause_ms", "is_known"), [(5, True), (0.5, False)])
def test_a_sleep_is_none_of_a_stages_own_work(pause_ms, is_known):
    """One stage pauses before its all-reduce. A short pause may be of its role, a long one is not."""

    def rows(pause: float) -> list:
        at = (10 + pause) * MS
        return [
            step(1, 0, 50 * MS),
            op("aten::mm", 0, 10 * MS),
            op("aten::add", at, MS),
            *gloo(at + MS, at + MS + 5, 30 * MS),
            op("end", 30 * MS + 10, 19 * MS),
        ]

    dfg = build(run_of({0: rows(0), 1: rows(pause_ms)}))
    stages = np.array([0, 1])
    found = counterparts(dfg, dfg.dur_ns, stages)
    pause = dfg.names.index("aten::mm → aten::add")
    (gap,) = np.flatnonzero((dfg.rank == 1) & (dfg.name == pause))
    assert np.isnan(found.others[gap]) != is_known
