"""Who is to blame for a delay: own work beyond that of counterparts, followed through all groups."""

import numpy as np
import pytest

from esprof.replay.blame import Blame, held_ns
from esprof.replay.building.build import build
from esprof.replay.counterparts import counterparts, roles_of
from esprof.replay.dfg import Cls
from tests.cases.graph import call, gloo, kernel, launched, op, run_of, step

MS = 1000.0


def blame_of(run) -> Blame:
    dfg = build(run)
    return Blame(dfg, dfg.marks.steps)


def reduced(group: tuple[int, ...], at: float, end: float, correlation: int) -> list:
    """An all-reduce of these ranks, launched at `at` and running until `end`, for which the CPU waits."""
    told = {"collective": "allreduce", "group_ranks": list(group), "in_elements": 1000, "dtype": "Float"}
    return [
        call("cudaLaunchKernelExC", at, 5, correlation),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 10, end - at - 10, correlation, stream=20, **told),
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
    told = {"in_elements": 1000, "dtype": "Float", "source_rank": 0, "target_rank": 1, "group_ranks": [0, 1]}
    rows = [step(1, 0, 12 * MS), op("aten::mm", 0, 90)]
    for n in range(kernels):
        rows += launched(f"gemm {n}", 2 * n, 100 + n * MS, MS, n + 1)
    word = "recv" if rank else "send"
    rows += [
        call("cudaLaunchKernelExC", 80, 5, 50),
        kernel(
            "ncclDevKernel_SendRecv(send)", done + 5 if not rank else 95, 8 * MS, 50, stream=20, collective=word, **told
        ),
        call("cudaStreamSynchronize", 95, 11 * MS, 51),
    ]
    return rows


def test_stages_that_compute_unlike_things_play_unlike_roles():
    unlike = build(run_of({0: stage_of_pipeline(0, 5), 1: stage_of_pipeline(1, 2)}))
    alike = build(run_of({0: stage_of_pipeline(0, 2), 1: stage_of_pipeline(1, 2)}))
    assert (roles_of(unlike).tolist(), roles_of(alike).tolist()) == ([0, 1], [0, 0])
    blame = Blame(unlike, (1,))
    computing = unlike.of(Cls.COMPUTE)
    assert np.isnan(blame.peers.others[computing]).all()
    assert (blame.excess_ns[computing] == 0).all()


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


def test_what_a_rank_does_once_more_has_no_counterpart():
    usual = one_step(("aten::mm", 10))
    dfg = build(run_of({0: usual, 1: usual, 2: one_step(("aten::mm", 10), ("aten::mm", 7))}))
    blame = Blame(dfg, (1,))
    again = max(n for n in range(dfg.nodes) if dfg.label(n) == "aten::mm" and dfg.rank[n] == 2)
    assert np.isnan(blame.peers.others[again])
    assert blame.excess_ns[again] == 7e6


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
