"""Collectives, sends and receives across ranks: which calls match, and which rank waits for which."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from esprof.replay.building.build import Built, build, build_counted
from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind
from esprof.replay.engine.timeline import replay, strict
from esprof.replay.replayed import Replayed, answer
from esprof.replay.whatif.pricing import what_if
from esprof.run.run import Run
from esprof.run.schema import Table
from tests.cases.graph import Row, call, kernel, nccl, op, run_of, step

US = 1_000


def comm(word: str, start: float, end: float, correlation: int, size: int = 0, **args) -> list[Row]:
    """A NCCL kernel from `start` to `end` and its launch, 20 µs before; it moves `size` numbers."""
    name = f"ncclDevKernel_{'SendRecv' if word in ('send', 'recv') else word.title().replace('_', '')}"
    size_args = {"in_elements": size, "dtype": "Float"} if size else {}
    arguments = {"collective": word, "group_ranks": "[0, 1]"} | size_args | args
    return [
        call("cudaLaunchKernelExC", start - 20, 5, correlation),
        kernel(name, start, end - start, correlation, 20, **arguments),
    ]


def ranks_of(*rows: Sequence[Row], until: float = 1000) -> dict[int, list[Row]]:
    """A step on each rank, with an operation that reaches over it."""
    return {rank: [step(1, 0, until), op("aten::mm", 0, until), *mine] for rank, mine in enumerate(rows)}


def communications(dfg: Dfg, rank: int) -> list[tuple[int, int]]:
    """Start and duration of the communication of matched collectives on a rank, µs."""
    nodes = np.flatnonzero((dfg.collective >= 0) & (dfg.rank == rank) & dfg.of(Cls.COMMUNICATION))
    return [(int(dfg.recorded_ns[node]) // US, int(dfg.dur_ns[node]) // US) for node in nodes]


def waited_for(dfg: Dfg, rank: int) -> set[int]:
    """Ranks whose arrival the join before this rank's communication waits for."""
    (communication,) = np.flatnonzero((dfg.collective >= 0) & (dfg.rank == rank) & dfg.of(Cls.COMMUNICATION))
    edges = range(dfg.pred_ptr[communication], dfg.pred_ptr[communication + 1])
    joins = [int(dfg.pred_idx[e]) for e in edges if dfg.pred_kind[e] == Edge.RENDEZVOUS]
    return {int(dfg.rank[dfg.pred_idx[e]]) for join in joins for e in range(dfg.pred_ptr[join], dfg.pred_ptr[join + 1])}


def unmatched(built: Built) -> int:
    return int(built.dfg.of(Cls.RESIDUAL).sum())


# Point to point


def test_a_receiver_waits_for_its_sender():
    rows = ranks_of(comm("send", 500, 560, 1, 100, target_rank=1), comm("recv", 100, 570, 1, 100, source_rank=0))
    built = build_counted(run_of(rows))
    assert communications(built.dfg, 1) == [(500, 70)]
    assert waited_for(built.dfg, 1) >= {0}
    assert (built.counts.p2p, built.counts.p2p_matched) == (2, 2)
    run = run_of(rows)
    (network,) = what_if(run, build(run), ["network=2x"])
    assert network.answered


def test_a_sender_that_left_early_did_not_wait():
    """Its message was buffered for the receiver, which arrived 300 µs later: only the receiver waits."""
    rows = ranks_of(comm("send", 100, 150, 1, target_rank=1), comm("recv", 450, 480, 1, source_rank=0))
    dfg = build(run_of(rows))
    assert waited_for(dfg, 0) == set()
    assert communications(dfg, 0) == [(100, 50)]
    assert waited_for(dfg, 1) == {0}
    assert communications(dfg, 1) == [(450, 30)]


def test_a_sender_that_was_still_there_waited_for_its_receiver():
    rows = ranks_of(comm("send", 100, 500, 1, target_rank=1), comm("recv", 450, 505, 1, source_rank=0))
    dfg = build(run_of(rows))
    assert waited_for(dfg, 0) == waited_for(dfg, 1) == {0, 1}
    assert communications(dfg, 0) == [(450, 50)]


def test_sends_and_receives_pair_by_rank_not_by_sequence_number():
    """Each rank numbers its own sends and receives: rank 1's first is rank 0's second."""
    rows = ranks_of(
        [*comm("send", 100, 110, 1, 10, target_rank=2, sequence_in_group=1, group_ranks="[0, 1, 2]"),
         *comm("send", 200, 210, 2, 20, target_rank=1, sequence_in_group=2, group_ranks="[0, 1, 2]")],
        comm("recv", 50, 220, 1, 20, source_rank=0, sequence_in_group=1, group_ranks="[0, 1, 2]"),
        comm("recv", 50, 120, 1, 10, source_rank=0, sequence_in_group=1, group_ranks="[0, 1, 2]"),
    )  # fmt: skip
    dfg = build(run_of(rows))
    assert communications(dfg, 1) == [(200, 20)]
    assert communications(dfg, 2) == [(100, 20)]


def test_a_send_without_its_peer_stays_unexplained_and_is_counted():
    built = build_counted(run_of(ranks_of(comm("send", 100, 150, 1, target_rank=2), []), world=3))
    assert (built.counts.p2p, built.counts.p2p_matched) == (1, 0)
    assert unmatched(built) == 1
    assert built.unmatched == {0: 1, 1: 0}


def test_batched_sends_and_receives_stay_unmatched():
    """`batch_isend_irecv` launches after the calls that describe its sends and receives, so peers are unknown."""

    def batch() -> list[Row]:
        return [
            *(op("record_param_comms", at, 10) for at in (100, 120)),
            call("cudaLaunchKernelExC", 140, 5, 1),
            kernel("ncclDevKernel_SendRecv", 160, 100, 1, 20),
        ]

    built = build_counted(run_of(ranks_of(batch(), batch())))
    assert (built.counts.p2p, built.counts.collectives) == (2, 0)
    assert unmatched(built) == 2


def test_an_all_to_all_of_send_recv_kernels_is_a_collective():
    def exchange(start: float) -> list[Row]:
        return [op("record_param_comms", start - 30, 40), *comm("alltoall", start, 500, 1)]

    rows = ranks_of(exchange(100), exchange(400))
    for mine in rows.values():
        for row in mine:
            if row.name.startswith("nccl"):
                row.name = "ncclDevKernel_SendRecv"
    dfg = build(run_of(rows))
    assert communications(dfg, 0) == communications(dfg, 1) == [(400, 100)]


# Collectives with a root


def rooted(word: str, *spans: tuple[float, float], root: int = 0, world: int | None = None) -> Run:
    """A collective over the ranks' `spans`, the first of a group of so many; its root is known."""
    everybody = str(list(range(world or len(spans))))
    rows = ranks_of(*(comm(word, start, end, 1, group_ranks=everybody) for start, end in spans))
    run = run_of(rows, world=world)
    tables = {}
    for rank in run.ranks:
        arrow = run.events(rank).arrow
        is_comm = run.events(rank).is_kind("collective")
        peers = pa.array(np.where(is_comm, root, -1), pa.int32(), mask=~is_comm)
        tables[rank] = Table(arrow.set_column(arrow.column_names.index("peer"), "peer", peers))
    return Run(run.meta, lambda name, rank: tables[rank] if name == "events" else None)


def test_of_a_broadcast_all_wait_for_the_root_alone():
    dfg = build(rooted("broadcast", (300, 330), (100, 350), (600, 620)))
    assert waited_for(dfg, 1) == {0}
    assert waited_for(dfg, 2) == {0}
    assert waited_for(dfg, 0) == set()
    assert communications(dfg, 1) == [(300, 50)]
    assert communications(dfg, 2) == [(600, 20)]


def test_a_root_that_was_still_there_waited_for_all():
    dfg = build(rooted("broadcast", (300, 640), (100, 650), (600, 640)))
    assert all(waited_for(dfg, rank) == {0, 1, 2} for rank in range(3))
    assert communications(dfg, 0) == [(600, 40)]


def test_of_a_reduction_the_root_waits_for_all_and_who_left_early_for_none():
    dfg = build(rooted("reduce", (100, 650), (200, 230), (600, 640)))
    assert waited_for(dfg, 0) == {1, 2, 0}
    assert waited_for(dfg, 1) == set()
    assert communications(dfg, 0) == [(600, 50)]


def test_without_a_known_root_all_wait_for_all():
    rows = ranks_of(comm("broadcast", 300, 330, 1), comm("broadcast", 320, 350, 1))
    dfg = build(run_of(rows))
    assert waited_for(dfg, 0) == waited_for(dfg, 1) == {0, 1}


# Which calls are one


def sized(*sizes: int, first: int = 0) -> list[Row]:
    """An all-reduce each 100 µs, of these sizes; the first at `first` x 100 µs."""
    rows = []
    for turn, size in enumerate(sizes, first):
        rows += comm("allreduce", 100 + 100 * turn, 160 + 100 * turn, turn + 1, size)
    return rows


def test_a_lost_call_does_not_shift_the_matches_of_others():
    whole, lost = sized(10, 20, 30, 40), [*sized(10, 20), *sized(40, first=3)]
    built = build_counted(run_of(ranks_of(whole, lost)))
    assert built.counts.collectives_matched == 6
    assert built.unmatched == {0: 1, 1: 0}
    assert communications(built.dfg, 0) == [(100, 60), (200, 60), (400, 60)]


def test_calls_that_threads_started_in_another_order_are_matched_by_size():
    built = build_counted(run_of(ranks_of(sized(10, 20, 10, 30), sized(20, 10, 10, 30))))
    assert built.counts.collectives_matched == 8
    assert built.unmatched == {0: 0, 1: 0}


def test_sizes_that_no_rank_shares_are_unmatched():
    built = build_counted(run_of(ranks_of(sized(10, 20), sized(30, 40))))
    assert built.counts.collectives_matched == 0


def test_groups_are_matched_each_for_itself():
    def both(pair: str, late: float) -> list[Row]:
        return [
            *comm("allreduce", 100 + late, 200, 1, group_ranks=pair),
            *comm("allreduce", 300 + late, 420, 2, group_ranks="[0, 1, 2, 3]"),
        ]

    dfg = build(
        run_of(
            ranks_of(*(both("[0, 1]" if rank < 2 else "[2, 3]", 10 * rank) for rank in range(4))),
            subgroups=[(0, 1), (2, 3)],
        )
    )
    assert [start for start, _ in communications(dfg, 0)] == [110, 330]
    assert [start for start, _ in communications(dfg, 2)] == [130, 330]


def test_collectives_belong_to_the_step_that_launched_them():
    """Rank 0's GPU lags by a step: its first all-reduce runs in the second step, but belongs to the first."""
    rows = {}
    for rank, behind in enumerate((150, 0)):
        rows[rank] = [step(1, 0, 100), op("aten::mm", 0, 100), step(2, 100, 400), op("aten::mm", 100, 300)]
        rows[rank] += nccl(50, 70 + behind, 240, 1) + nccl(150, 250, 300, 2)
    dfg = build(run_of(rows))
    assert communications(dfg, 0) == communications(dfg, 1) == [(220, 20), (250, 50)]


@pytest.mark.parametrize("step_count", [1, 3])
def test_several_steps_form_one_graph_and_carry_over_a_backlog(step_count):
    """The GPU takes 150 µs a step, the host 100: each step's kernel starts when the one before is done."""
    rows: list[Row] = []
    for n in range(step_count):
        rows += [step(n, 100 * n, 100 * n + 100), op("aten::mm", 100 * n, 100)]
        rows += [call("cudaLaunchKernel", 100 * n + 10, 5, n + 1), kernel("gemm", 20 + 150 * n, 150, n + 1)]
    dfg = build(run_of({0: rows}))
    assert replay(strict(dfg)).end_ns[dfg.on(LaneKind.STREAM)].max() == (20 + 150 * step_count) * US


# A rank that the run lacks


def lacking(*rows: Sequence[Row]) -> Run:
    """A run of these ranks and one more rank without a trace."""
    return run_of(ranks_of(*rows), world=len(rows) + 1)


def test_members_are_matched_without_a_missing_one_and_a_note_reports_it():
    """The last recorded member arrived at 200 µs: communication cannot have begun before."""
    three = {"group_ranks": "[0, 1, 2]"}
    run = lacking(comm("allreduce", 100, 300, 1, **three), comm("allreduce", 200, 300, 1, **three))
    replayed = Replayed.of(run)
    assert communications(replayed.built.dfg, 0) == communications(replayed.built.dfg, 1) == [(200, 100)]
    assert replayed.built.unmatched == {0: 0, 1: 0}
    answered = answer(replayed, ["network=2x"])
    assert (answered.coverage.collectives_matched, answered.coverage.collectives_partial) == (2, 2)
    assert "waiting for rank 2 cannot be separated from communication" in answered.what_if[0].note
    (warning,) = (one for one in answered.warnings if one.code == "collectives-partial")
    assert warning.ranks == (2,)


def test_a_complete_run_has_no_partial_collective_and_no_note():
    answered = answer(Replayed.of(run_of(ranks_of(sized(10, 20), sized(10, 20)))), ["network=2x"])
    assert answered.coverage.collectives_partial == 0
    assert "cannot be separated" not in (answered.what_if[0].note or "")


def test_a_collective_much_longer_than_similar_ones_waited_for_the_missing_member():
    """Four all-reduces of one size take 60, 50, 200 and 60 µs: the third waited for the missing rank."""
    spans = [(100, 160), (200, 250), (300, 500), (600, 660)]
    mine = [
        row
        for turn, (start, end) in enumerate(spans, 1)
        for row in comm("allreduce", start, end, turn, 10, group_ranks="[0, 1, 2]")
    ]
    dfg = build(lacking(mine, mine))
    assert communications(dfg, 0) == [(100, 60), (200, 50), (440, 60), (600, 60)]
    is_join = dfg.rank < 0
    assert dfg.residual_ns[is_join].tolist() == [0, 0, 140 * US, 0]


def test_in_a_complete_run_a_long_collective_is_communication():
    mine = [row for turn, end in enumerate((160, 250, 500), 1) for row in comm("allreduce", 100 * turn, end, turn, 10)]
    assert communications(build(run_of(ranks_of(mine, mine))), 0) == [(100, 60), (200, 50), (300, 200)]


def test_a_single_recorded_member_is_unmatched():
    built = build_counted(lacking(comm("allreduce", 100, 200, 1)))
    assert (built.counts.collectives_matched, unmatched(built)) == (0, 1)


def test_receivers_without_a_recorded_root_are_unmatched():
    built = build_counted(rooted("broadcast", (100, 300), (200, 300), root=2, world=3))
    assert (built.counts.collectives_matched, unmatched(built)) == (0, 2)


def test_a_receiver_waits_for_its_root_whether_or_not_the_others_are_here():
    dfg = build(rooted("broadcast", (100, 130), (300, 350), world=3))
    assert waited_for(dfg, 1) == {0}
    assert communications(dfg, 1) == [(300, 50)]


def test_collectives_entered_in_opposite_order_are_separated_and_counted():
    """Neither can wait for the other: an event that would identify the calls is missing."""
    reduce_first = comm("allreduce", 100, 200, 1) + comm("allgather", 300, 400, 2)
    gather_first = comm("allgather", 100, 200, 1) + comm("allreduce", 300, 400, 2)
    replayed = Replayed.of(run_of(ranks_of(reduce_first, gather_first)))
    counts = replayed.built.counts
    assert counts.edges_dropped > counts.guesses_dropped == 0
    (warning,) = (warning for warning in replayed.warnings if warning.code == "cycle-broken")
    assert warning.message.startswith(f"{counts.edges_dropped} dependencies dropped because they formed a cycle")
