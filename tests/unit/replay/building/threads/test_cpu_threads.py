"""Graphs of CPU jobs: two ranks on gloo, a DataLoader with and without recorded workers; expected times by hand."""

import itertools

import numpy as np
import pytest

from esprof.core.errors import InputError
from esprof.replay import Replayed
from esprof.replay.building.build import build, build_counted
from esprof.replay.dfg import Cls, Edge, LaneKind
from esprof.replay.engine.timeline import class_totals, critical_path, replay, strict
from esprof.replay.steps import steps_of
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import GLOO, ddp_rank, gloo, load_call, op, run_of, stage, step

MS = 1_000_000


def node(dfg, rank: int, name: str) -> int:
    found = [n for n in range(dfg.nodes) if dfg.rank[n] == rank and dfg.label(n) == name]
    assert len(found) == 1, (name, found)
    return found[0]


def test_waiting_for_a_peer_is_not_work_and_communication_starts_with_the_last_arrival():
    dfg = build(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))
    for rank in (0, 1):
        communication = node(dfg, rank, "gloo:all_reduce")
        assert dfg.recorded_ns[communication] == 40 * MS
        assert dfg.dur_ns[communication] == 4 * MS
        assert dfg.cls[communication] == Cls.COMMUNICATION
    timeline = replay(dfg)
    assert timeline.step_ns().tolist() == [50 * MS]


def test_compute_on_gloo_threads_belongs_to_its_collectives():
    """An all-gather copies its chunks on gloo's thread: neither work of the rank, nor a thread of its own."""
    copies = [op("aten::copy_", 40_500, 100, tid=GLOO), op("aten::select", 43_000, 50, tid=GLOO)]
    with_copies, without = (
        build(run_of({rank: [*ddp_rank(slow=10 * rank), *more] for rank in (0, 1)})) for more in (copies, [])
    )
    assert with_copies.lanes == without.lanes
    assert with_copies.nodes == without.nodes
    other = build(run_of({rank: [*ddp_rank(), op("aten::add", 20_000, 100, tid=77)] for rank in (0, 1)}))
    assert len(other.lanes) == len(without.lanes) + 2


def test_the_wait_for_collectives_keeps_no_time_of_its_own():
    built = build_counted(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))
    dfg = built.dfg
    waiting = node(dfg, 0, "wait for collectives")
    assert dfg.dur_ns[waiting] == 0
    assert dfg.recorded_ns[waiting] == 44 * MS
    assert dfg.residual_ns[waiting] == 0
    kinds = {Edge(dfg.pred_kind[e]) for e in range(dfg.pred_ptr[waiting], dfg.pred_ptr[waiting + 1])}
    assert kinds == {Edge.LANE, Edge.BY_TIME}
    assert built.counts.waits_inferred == 2


def test_the_waiter_may_run_before_the_collective_records_its_end():
    rows = ddp_rank()
    rows[-1] = op("Optimizer.step", 43_800, 6_200)  # 0.2 ms before the collective's recorded end
    dfg = build(run_of({0: rows, 1: ddp_rank(slow=10)}))
    assert dfg.recorded_ns[node(dfg, 0, "wait for collectives")] == 43_800_000
    assert not [n for n in range(dfg.nodes) if dfg.rank[n] == 0 and dfg.cls[n] == Cls.HOST_GAP]


def test_a_backward_pass_is_known_by_the_name_of_its_last_operation():
    """The thread continues 2 ms before the collective's recorded end: too early for a gap after anything else."""
    for name, waits in (("AddmmBackward0", True), ("aten::addmm", False)):
        rows = ddp_rank()
        rows[-1:] = [op(name, 30_100, 100), op("Optimizer.step", 42_000, 8_000)]
        dfg = build(run_of({0: rows, 1: ddp_rank(slow=10)}))
        assert any(dfg.label(n) == "wait for collectives" for n in dfg.nodes_of(0)) == waits


def test_a_collective_whose_thread_was_preempted_ended_before_the_next_one():
    """Rank 0's first all-reduce is noted 6 ms late: both its ranks went on long before that, and so they do in replay."""

    def rows(noted: float) -> list:
        return [
            step(1, 0, 40_000),
            op("autograd::engine::evaluate_function: A", 0, 12_000),
            *gloo(10_000, 10_010, noted, tid=20),
            *gloo(11_000, 11_010, 24_000, tid=21),
            op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 24_050, 950),
            op("Optimizer.step", 25_000, 15_000),
        ]

    dfg = build(run_of({0: rows(30_000), 1: rows(22_000)}))
    timeline = replay(dfg)
    assert (timeline.start_ns == dfg.recorded_ns).all()
    link = [n for n in range(dfg.nodes) if dfg.rank[n] == 0 and dfg.cls[n] == Cls.COMMUNICATION]
    assert [int(dfg.recorded_ns[n] + dfg.dur_ns[n]) for n in link] == [24 * MS, 24 * MS]


def test_a_pause_inside_the_backward_pass_is_no_wait_for_a_collective_that_ends_soon_after():
    rows = ddp_rank()
    rows[-1:-1] = [op("autograd::engine::evaluate_function: ReluBackward0", 42_000, 100)]
    dfg = build(run_of({0: rows, 1: ddp_rank(slow=10)}))
    waiting = node(dfg, 0, "wait for collectives")
    assert dfg.recorded_ns[waiting] == 44 * MS


def test_ranks_of_one_host_need_no_doubt_about_their_clocks():
    """Each rank records the end when its thread is scheduled; communication began when both had arrived."""
    near, far = ddp_rank(), ddp_rank(slow=10)
    near[-2].dur, far[-2].dur = 10_400, 800
    dfg = build(run_of({0: near, 1: far}, hosts={0: "a", 1: "a"}))
    for rank, length in ((0, 400_000), (1, 800_000)):
        communication = node(dfg, rank, "gloo:all_reduce")
        assert (dfg.recorded_ns[communication], dfg.dur_ns[communication]) == (40 * MS, length)


def test_waiting_in_the_queue_of_busy_threads_is_no_latency():
    """One communication thread, held by the first all-reduce until rank 1 arrives; the second is queued. With a
    rank 1 that is not late, nothing keeps the second from following at once."""

    def rows(late: float) -> list:
        first, second = 1_000 + late, 2_000 + late
        return [
            step(1, 0, 32_000),
            op("forward", 0, 980 + late),
            *gloo(first - 10, first, 22_000),
            op("autograd::engine::evaluate_function: B", first + 10, 900),
            *gloo(second - 10, max(second, 22_000), 23_000),
            op("end", 23_010, 8_990),
        ]

    run = run_of({0: rows(0), 1: rows(20_000)})
    (answer,) = what_if(run, build(run), ["straggler=fix"])
    assert answer.predicted_us == pytest.approx(32_000 - 20_000, abs=50)


def test_a_call_that_returns_when_its_collective_ends_waited_for_it():
    rows = [step(1, 0, 10_000), op("a", 0, 1_000), *gloo(1_000, 1_010, 6_000), op("b", 6_020, 3_980)]
    next(row for row in rows if row.name.startswith("c10d")).dur = 5_010
    run = run_of({0: rows, 1: rows})
    dfg = build(run)
    assert dfg.dur_ns[node(dfg, 0, "c10d::allreduce_")] == 20_000
    (answer,) = what_if(run, dfg, ["network=2x"])
    assert answer.predicted_us == pytest.approx(10_000 - 4_990 / 2)


def test_replay_without_residuals_still_gives_the_step():
    dfg = build(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))
    assert replay(strict(dfg)).step_ns().tolist() == [50 * MS]


def test_the_critical_path_passes_through_the_late_rank_and_sums_to_the_step():
    dfg = build(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))
    pieces = critical_path(replay(dfg), 0, 0)
    totals = class_totals(pieces)
    assert sum(totals.values()) == 50 * MS
    assert totals["host_gap"] == 11 * MS  # 10 ms on rank 1, and 1 ms between the all-reduce and the optimizer
    assert totals["communication"] == 4 * MS
    assert {piece.rank for piece in pieces if piece.start_ns < 40 * MS} == {1}
    for before, after in itertools.pairwise(pieces):
        assert before.end_ns == after.start_ns


def test_straggler_fix_gives_back_exactly_the_late_ranks_gap():
    run = run_of({0: ddp_rank(), 1: ddp_rank(slow=10)})
    (answer,) = what_if(run, build(run), ["straggler=fix"])
    assert answer.answered
    assert answer.predicted_us == pytest.approx(40_000, abs=10)
    assert "rank 1" in (answer.note or "")


def test_network_and_cpu_scale_only_their_own_work():
    run = run_of({0: ddp_rank(), 1: ddp_rank(slow=10)})
    network, cpu, both, same = what_if(run, build(run), ["network=2x", "cpu=2x", "network=2x,cpu=2x", "cpu=1x"])
    assert network.predicted_us == pytest.approx(48_000, abs=1)
    assert cpu.predicted_us == pytest.approx(4_000 + 23_000, abs=10)
    assert both.predicted_us == pytest.approx(2_000 + 23_000, abs=10)
    assert same.predicted_us == 50_000
    assert same.speedup == 1.0


def test_more_of_a_resource_is_never_slower_although_the_first_step_gains_most():
    """A worker makes a batch each 40 ms, ahead of a long first step. Where that step ends sooner, the later batches are not
    there yet, so that the later steps, which alone count, wait for them."""
    rows, stages, now = [], [], 0.0
    for n in range(6):
        ready, work = 40_000.0 * (n + 1), 100_000 if n == 0 else 20_000
        got = max(now + 100, ready + 100)
        rows += [step(n, now, got + work), load_call(now, got), op("train", got, work)]
        stages += [stage("fetch", n, ready - 40_000, ready, prefetch=9), stage("next", n, now, got, prefetch=9)]
        now = got + work
    pricer = Replayed.of(run_of({0: rows}, stages={0: stages})).pricer
    specs = tuple(f"kernel[train]={factor}x" for factor in (2, 1.2, 1, 0.9, 0.5))
    predicted = [answer.predicted_us for answer in pricer.answers(specs)]
    assert predicted == sorted(predicted)
    assert predicted[0] == predicted[2] == pytest.approx(24_000, rel=0.01)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("gpu=2x", "no GPU"),
        ("data=0", "no data loader"),
        ("rank7.cpu=2x", "not in this run"),
        ("device[H100].cpu=2x", "no rank"),
        ("kernel[nothing]=2x", "no kernel"),
        ("bucket_mb=50", "no recorded gradient"),
        ("compress=powersgd:4", "no recorded gradient"),
        ("loader.workers=4", "no DataLoader"),
        ("storage=2x", "no DataLoader"),
        ("cache=0.5", "no DataLoader"),
        ("assign=plan.json", "elastic job"),
        ("cpu=2x,bucket_mb=50", "no recorded gradient"),
    ],
)
def test_terms_without_evidence_are_declined_with_the_reason(spec, reason):
    run = run_of({0: ddp_rank(), 1: ddp_rank(slow=10)})
    (answer,) = what_if(run, build(run), [spec])
    assert not answer.answered
    assert answer.predicted_us is None
    assert reason in (answer.reason or "")


def test_straggler_fix_is_declined_for_a_single_rank():
    run = run_of({0: [step(1, 0, 100), op("a", 0, 100)]})
    (answer,) = what_if(run, build(run), ["straggler=fix"])
    assert not answer.answered
    assert "two ranks" in (answer.reason or "")


def test_straggler_fix_is_declined_when_the_ranks_do_different_things():
    rows = ddp_rank(slow=10)
    other = [op(f"other::{n}", 1000 * n, 900) if n < 10 else row for n, row in enumerate([*rows, *[None] * 6])]
    other = [step(1, 0, 50_000), *[op(f"other::{n}", 3000 * n, 2900) for n in range(13)], *gloo(39_990, 40_000, 44_000)]
    run = run_of({0: ddp_rank(), 1: [*other, op("Optimizer.step", 45_000, 5_000)]})
    (answer,) = what_if(run, build(run), ["straggler=fix"])
    assert not answer.answered
    assert "counterpart" in (answer.reason or "")


def loading(worker_rows: bool) -> dict:
    """Two steps; each asks for a batch at its start and gets it 30 ms later, made by a worker in 40 ms."""
    rows = [
        step(1, 0, 50_000), load_call(0, 30_000), op("train", 30_000, 20_000),
        step(2, 50_000, 100_000), load_call(50_000, 80_000), op("train", 80_000, 20_000),
    ]  # fmt: skip
    stages = [
        stage("fetch", 0, -10_000, 29_500, prefetch=1),
        stage("fetch", 1, 30_000, 79_500, prefetch=1),
        stage("next", 0, 0, 30_000, prefetch=1),
        stage("next", 1, 50_000, 80_000, prefetch=1),
    ]
    return {"ranks": {0: rows}, "stages": {0: stages} if worker_rows else None}


def test_a_batch_is_made_on_the_workers_lane_and_next_waits_for_it():
    case = loading(worker_rows=True)
    dfg = build(run_of(case["ranks"], stages=case["stages"]))
    made = [n for n in range(dfg.nodes) if dfg.label(n) == "make batch"]
    assert [int(dfg.dur_ns[n]) for n in made] == [39_500_000, 49_500_000]
    nexts = np.flatnonzero(dfg.on(LaneKind.CPU) & dfg.of(Cls.DATA))
    assert dfg.dur_ns[nexts].tolist() == [500_000, 500_000]  # the median of taking a batch over
    assert replay(strict(dfg)).step_ns().tolist() == [50 * MS, 50 * MS]


def test_a_stage_that_the_job_calls_next_is_none_of_the_loaders():
    case = loading(worker_rows=True)
    own = [
        {"kind": "stage", "name": "next", "pid": 100, "start_ns": row["start_ns"] - 10, "end_ns": row["end_ns"] + 10}
        for row in case["stages"][0]
        if row["kind"] == "next"
    ]
    without, beside = (build(run_of(case["ranks"], stages={0: case["stages"][0] + more})) for more in ([], own))
    assert replay(strict(beside)).step_ns().tolist() == replay(strict(without)).step_ns().tolist()
    assert beside.edges == without.edges


def test_without_the_workers_the_stall_is_still_data_and_no_residual():
    case = loading(worker_rows=False)
    run = run_of(case["ranks"])
    dfg = build(run)
    assert dfg.residual_ns.sum() == 0
    totals = class_totals(critical_path(replay(dfg), 0, 1))
    assert totals["data"] == 60 * MS
    (answer,) = what_if(run, dfg, ["data=0"])
    assert answer.predicted_us == pytest.approx(20_000, abs=1)


def test_data_0_takes_away_the_stall_and_nothing_else():
    case = loading(worker_rows=True)
    run = run_of(case["ranks"], stages=case["stages"])
    (answer,) = what_if(run, build(run), ["data=0"])
    assert answer.predicted_us == pytest.approx(20_000, abs=1)


def test_a_worker_asks_for_its_next_batch_only_when_one_was_taken_over():
    case = loading(worker_rows=True)
    dfg = build(run_of(case["ranks"], stages=case["stages"]))
    second = [n for n in range(dfg.nodes) if dfg.label(n) == "make batch"][1]
    sources = {Edge(dfg.pred_kind[e]) for e in range(dfg.pred_ptr[second], dfg.pred_ptr[second + 1])}
    assert Edge.THREAD in sources


def test_a_rank_that_loads_itself_works_in_next():
    rows = [step(1, 0, 50_000), load_call(0, 30_000, worker=False), op("train", 30_000, 20_000)]
    dfg = build(run_of({0: rows}))
    (made,) = np.flatnonzero(dfg.of(Cls.DATA))
    assert dfg.dur_ns[made] == 30 * MS
    assert dfg.lanes[dfg.lane[made]].role == "main"


def test_clocks_of_two_hosts_are_brought_together():
    far = ddp_rank(slow=10)
    for row in far:
        row.ts += 20_000
    more = {0: ddp_rank(), 1: far}
    for rank, rows in more.items():
        late = 20_000 * rank
        for n in range(1, 4):
            rows += gloo(30_000 + late + n, 44_000 + late + n * 100, 44_050 + late + n * 100, tid=20 + n)
    built = build_counted(run_of(more, hosts={0: "a", 1: "b"}))
    shifts = {rank: built.clocks.correction_ns(rank) for rank in (0, 1)}
    assert shifts[0] - shifts[1] == 20 * MS
    assert replay(built.dfg).step_ns().tolist() == [50 * MS]


def test_ranks_without_a_common_step_are_an_error():
    a, b = [step(1, 0, 10), op("a", 0, 10)], [step(2, 0, 10), op("a", 0, 10)]
    with pytest.raises(InputError, match="no recorded step in common"):
        build(run_of({0: a, 1: b}))


def test_the_longest_unbroken_stretch_of_common_steps_counts():
    rows = [row for n in (1, 2, 5, 6, 7) for row in (step(n, n * 10, n * 10 + 10), op("a", n * 10, 10))]
    assert steps_of(run_of({0: rows})).all == (5, 6, 7)


def test_an_unawaited_collective_costs_nothing_and_ends_with_the_next_wait():
    """A hundred all-reduces that end while the thread works; then a backward pass, after which DDP waits for all."""
    rows = [step(1, 0, 40_000), op("a", 0, 1_000)]
    for n in range(100):
        at = 1_000 + 100.0 * n
        rows += [*gloo(at, at + 10, at + 60), op("b", at + 5, 95)]
    rows += [op("autograd::engine::evaluate_function: B", 11_000, 9_000), op("optimizer", 30_000, 10_000)]
    dfg = build(run_of({0: rows, 1: rows}))
    waiting = node(dfg, 0, "wait for collectives")
    sources = dfg.pred_idx[dfg.pred_ptr[waiting] : dfg.pred_ptr[waiting + 1]]
    assert sum(dfg.label(int(source)) == "gloo:all_reduce" for source in sources) == 100


def test_a_batch_of_before_the_window_makes_room_for_the_next_all_the_same():
    case = loading(worker_rows=True)
    early = stage("fetch", 0, -50_000, -20_000, prefetch=1)
    stages = [early if row["kind"] == "fetch" and row["batch"] == 0 else row for row in case["stages"][0]]
    dfg = build(run_of(case["ranks"], stages={0: stages}))
    (made,) = [n for n in range(dfg.nodes) if dfg.label(n) == "make batch"]
    sources = dfg.pred_idx[dfg.pred_ptr[made] : dfg.pred_ptr[made + 1]]
    assert [dfg.cls[source] for source in sources] == [Cls.DATA]
