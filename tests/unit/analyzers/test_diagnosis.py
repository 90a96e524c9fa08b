"""Each rule on synthetic runs with and without its cause."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from esprof.analyzers import diagnose, summarize
from esprof.analyzers.evidence import Evidence, by_step
from esprof.analyzers.finding import Finding
from esprof.analyzers.findings import PAGES
from esprof.analyzers.summary.timeline_excerpt import MAX_BARS
from esprof.core.types import NS_PER_MS as MS
from esprof.replay import answer
from esprof.replay.building.build import build
from esprof.replay.whatif.terms.balance import stage_ns
from esprof.reports.terminal.diagnosis import draw_diagnosis
from esprof.reports.terminal.replay import draw_replay
from esprof.run.run import Run, RunWarning
from tests.cases.findings import ungrouped
from tests.cases.graph import (
    EPOCH_NS,
    call,
    ddp_rank,
    gloo,
    kernel,
    launched,
    load_call,
    nccl,
    nccl_ranks,
    op,
    python,
    run_of,
    stage,
    step,
)
from tests.cases.step_runs import step_table


def found(run, id: str) -> Finding:
    findings = {finding.id: finding for finding in ungrouped(run)}
    assert id in findings, findings.keys()
    return findings[id]


def loading_rank(stall: float, make: float) -> tuple[list, list]:
    """Steps of 100 ms: `stall` ms in the loader, 50 ms of compute, and an all-reduce that ends at 99 ms. The loader's worker
    makes each batch in `make` ms, after it has delivered the previous one."""
    rows, stages = [], []
    for n in range(1, 6):
        at = n * 100_000.0
        rows += [
            step(n, at, at + 100_000),
            load_call(at, at + stall * 1000),
            op("aten::linear", at + stall * 1000, 40_000),
            op("autograd::engine::evaluate_function: B", at + stall * 1000 + 40_000, 10_000),
            *gloo(at + stall * 1000 + 49_990, at + stall * 1000 + 49_995, at + 99_000),
            op("Optimizer.step", at + 99_100, 900),
        ]
        stages += [
            stage("fetch", n, at - 99_900 + stall * 1000, at - 99_900 + stall * 1000 + make * 1000, prefetch=1),
            stage("next", n, at, at + stall * 1000, prefetch=1),
        ]
    return rows, stages


def loading_run(ranks: dict[int, tuple[float, float]]):
    cases = {rank: loading_rank(stall, make) for rank, (stall, make) in ranks.items()}
    return run_of({r: rows for r, (rows, _) in cases.items()}, stages={r: stages for r, (_, stages) in cases.items()})


def test_equally_stalled_ranks_are_one_finding():
    stall = found(loading_run({0: (47.0, 98.8), 1: (48.0, 98.8)}), "ESP101")
    assert set(stall.ranks) == {0, 1}
    assert stall.saving_us > 40_000


@pytest.mark.parametrize("slow", [0, 1])
def test_an_input_stall_names_the_stalled_rank_and_not_its_waiting_peer(slow):
    run = loading_run({rank: (48.0, 98.8) if rank == slow else (1.0, 20.0) for rank in (0, 1)})
    stall = found(run, "ESP101")
    assert stall.ranks == (slow,)
    assert stall.confidence == "high"
    assert 40_000 < stall.saving_us < 49_000
    assert diagnose(run).findings[0].id == "ESP101"
    assert stall.evidence["loader_workers"].value == 1
    assert "num_workers=2" in stall.advice
    assert not any(finding.id.startswith("ESP2") for finding in diagnose(run).findings)


@pytest.mark.parametrize("workers", [True, False])
def test_the_time_of_an_unrecorded_batch_is_unknown(workers):
    """A trace without stages: unrecorded workers or the rank itself make the batches."""
    rows = [load_call(row.ts, row.ts + row.dur, worker=workers) if "DataLoader" in row.name else row
            for row in loading_rank(48.0, 98.8)[0]]  # fmt: skip
    stall = found(run_of({0: rows, 1: rows}), "ESP101")
    assert ("batch" in stall.evidence) == (not workers)
    assert ("loader_workers" in stall.evidence) == (not workers)
    assert ("training process makes each batch" in stall.advice) == (not workers)
    (faster,) = answer(run_of({0: rows, 1: rows}), ["cpu=2x"]).what_if
    assert ("assumes that they keep up" in (faster.note or "")) == workers


@pytest.mark.parametrize("slow", [0, 1])
def test_the_slower_of_several_stalled_loaders_is_also_late(slow):
    run = loading_run({rank: (48.0, 98.8) if rank == slow else (20.0, 70.0) for rank in (0, 1)})
    assert set(found(run, "ESP101").ranks) == {0, 1}
    late = found(run, "ESP206")
    assert late.ranks == (slow,)
    assert 0 < late.saving_us < found(run, "ESP101").saving_us


def scattered_loads(slow_ms: list[float], work_ms: float) -> Run:
    """Four ranks and five steps of 100 ms that each begin with a batch of about 5 ms, made in the rank. Rank 2 spends so
    many ms more on its batches, and `work_ms` more in an operation."""

    def rows(rank: int) -> list:
        made, extra = [], work_ms if rank == 2 else 0
        for n, (usual, slow) in enumerate(zip((5.1, 4.2, 5.6, 4.8, 5.3), slow_ms, strict=True), 1):
            at, batch = n * 100_000.0, 1000 * (usual + 0.3 * rank + (slow if rank == 2 else 0))
            ready = at + batch + 10
            launch = ready + 1000 * (20 + extra)
            made += [
                step(n, at, at + 100_000),
                load_call(at, at + batch, worker=False),
                op("aten::linear", ready, 1000 * (20 + extra) - 10),
                *gloo(launch, launch + 5, at + 75_000),
                op("Optimizer.step", at + 75_010, 24_980),
            ]
        return made

    return run_of({rank: rows(rank) for rank in range(4)})


SCATTERED = [18.0, 3.0, 30.0, 2.5, 8.0]


def test_a_rank_with_nothing_longer_than_its_batches_is_late_by_them():
    """Its batches scatter too much for a test, but fixing them gives all that fixing the rank does."""
    late = found(scattered_loads(SCATTERED, 0), "ESP206")
    assert late.ranks == (2,)
    assert late.saving_us == pytest.approx(1000 * sum(SCATTERED) / 5, rel=0.15)


@pytest.mark.parametrize(("slow_ms", "work_ms"), [(SCATTERED, 25), ([0.2, 0, 40.0, 0, 0.1], 0)])
def test_batches_are_not_the_reason_beside_other_work_or_for_a_hiccup(slow_ms, work_ms):
    findings = ungrouped(scattered_loads(slow_ms, work_ms))
    assert "ESP206" not in {one.id for one in findings}
    assert any(one.id in ("ESP201", "ESP202", "ESP203") for one in findings) == bool(work_ms)


def test_ranks_that_wait_as_long_as_a_rank_that_is_late_for_another_reason_are_listed_with_it():
    """Without its batches, the late rank alone would save as much: but once it is mended, all the others wait for theirs."""
    run = scattered_loads([0.0] * 5, 25)
    assert found(run, "ESP101").ranks == (0, 1, 2, 3)
    assert len(found(run, "ESP202").ranks) == 1


def test_equally_slow_loaders_make_no_rank_late():
    run = loading_run({0: (48.0, 98.8), 1: (48.0, 98.8)})
    assert not any(finding.id.startswith("ESP2") for finding in diagnose(run).findings)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_straggler_has_a_source_location(slow):
    ranks = {rank: ddp_rank(slow=10 if rank == slow else 0) for rank in (0, 1)}
    gap = {
        "before": "aten::linear", "after": "autograd::engine::evaluate_function: AddmmBackward0",
        "frame": "train.py(42): forward", "call": "<built-in function sleep>", "dur_ns": 9_000_000,
    }  # fmt: skip
    straggler = found(run_of(ranks, stacks={slow: [gap]}), "ESP201")
    assert straggler.ranks == (slow,)
    assert straggler.saving_us == pytest.approx(10_000, abs=10)
    assert straggler.saving_pct == pytest.approx(20, abs=0.1)
    assert straggler.saving_device_hours_per_day == pytest.approx(0.2 * 2 * 24, abs=0.1)
    assert "ESP205" not in {finding.id for finding in diagnose(run_of(ranks)).findings}
    assert straggler.evidence["python_line"].of(slow) == "train.py(42): forward"
    assert straggler.evidence["python_call"].of(slow) == "<built-in function sleep>"
    assert "aten::linear" in straggler.evidence["lost_in"].of(slow)


def test_device_hours_count_only_recorded_ranks():
    """Two ranks of a job of 128: whether a fix would help the others is unknown."""
    ranks = {rank: ddp_rank(slow=10 * rank) for rank in (0, 1)}
    here, job = run_of(ranks), run_of(ranks, world=128)
    assert found(job, "ESP201").saving_device_hours_per_day == found(here, "ESP201").saving_device_hours_per_day
    assert diagnose(job).missing_ranks == tuple(range(2, 128))
    assert diagnose(here).missing_ranks == ()
    assert "on 2 of 128 ranks" in draw_diagnosis(diagnose(job))
    assert "on 2 of 128 ranks" in draw_replay(answer(job))


def test_slower_compute_is_distinguished_from_sleep():
    slow = [row for row in ddp_rank(slow=10) if row.name != "aten::linear"] + [op("aten::linear", 0, 20_000)]
    assert found(run_of({0: ddp_rank(), 1: slow}), "ESP202").ranks == (1,)
    assert "module" not in found(run_of({0: ddp_rank(), 1: slow}), "ESP202").evidence


def test_modules_enclosing_the_slow_operation_are_named_if_recorded():
    slow = [row for row in ddp_rank(slow=10) if row.name != "aten::linear"] + [op("aten::linear", 0, 20_000)]
    slow += [
        python("nn.Module: GPT_0", 0, 20_500),
        python("nn.Module: Block_3", 0, 20_200),
        python("nn.Module: Head_0", 20_300, 100),
    ]
    straggler = found(run_of({0: ddp_rank(), 1: slow}), "ESP202")
    assert straggler.evidence["module"].of(1) == "GPT_0 › Block_3"


def test_modules_that_the_recorder_names_by_their_place_are_named_once():
    slow = [row for row in ddp_rank(slow=10) if row.name != "aten::linear"] + [op("aten::linear", 0, 20_000)]
    places = ["DistributedDataParallel", "GPT", "GPT.blocks.3", "GPT.blocks.3.mlp"]
    slow += [op(f"nn.Module: {place}", 0, 20_500 - at) for at, place in enumerate(places)]
    straggler = found(run_of({0: ddp_rank(), 1: slow}), "ESP202")
    assert straggler.evidence["module"].of(1) == "DistributedDataParallel › GPT.blocks.3.mlp"


@pytest.mark.parametrize(("hook_ms", "linear_ms", "id"), [(9, 10, "ESP201"), (1, 19, "ESP202"), (9, 18, "ESP202")])
def test_time_inside_one_operation_is_distinguished_from_a_slower_cpu(hook_ms, linear_ms, id):
    """On rank 1 a hook, the computation, or both take longer than the 1 and 10 ms on rank 0."""

    def rows(hook: float, linear: float) -> list:
        found = []
        for number in range(1, 5):
            at = number * 50_000.0
            late = at + (hook + linear) * 1000
            found += [
                step(number, at, at + 50_000),
                op("mine::hook", at, hook * 1000),
                op("aten::linear", at + hook * 1000, linear * 1000),
                *gloo(late, late + 5, at + 40_000),
                op("Optimizer.step", at + 40_010, 9_990),
            ]
        return found

    straggler = found(run_of({0: rows(1, 10), 1: rows(hook_ms, linear_ms)}), id)
    assert ("time inside mine::hook" in straggler.title) == (id == "ESP201")
    assert ("neither a slower CPU" in straggler.advice) == (id == "ESP201")


def test_the_line_of_a_gap_is_found_for_any_operation_names():
    forward = "encode → decode"
    ranks = {rank: ddp_rank(slow=10 * rank) for rank in (0, 1)}
    for row in ranks[0] + ranks[1]:
        row.name = forward if row.name == "aten::linear" else row.name
    gap = {
        "before": forward, "after": "autograd::engine::evaluate_function: AddmmBackward0",
        "frame": "train.py(42): forward", "call": None, "dur_ns": 9_000_000,
    }  # fmt: skip
    straggler = found(run_of(ranks, stacks={1: [gap]}), "ESP201")
    assert straggler.evidence["python_line"].of(1) == "train.py(42): forward"


def test_an_operation_named_like_a_gap_gets_no_line():
    forward = "encode → decode"
    slow = [row for row in ddp_rank(slow=10) if row.name != "aten::linear"] + [op(forward, 0, 20_000)]
    usual = [row for row in ddp_rank() if row.name != "aten::linear"] + [op(forward, 0, 10_000)]
    gap = {"before": "encode", "after": "decode", "frame": "train.py(42): forward", "call": None, "dur_ns": 9_000_000}
    straggler = found(run_of({0: usual, 1: slow}, stacks={1: [gap]}), "ESP202")
    assert straggler.evidence["lost_in"].of(1) == forward
    assert "python_line" not in straggler.evidence


def test_two_stragglers_that_mask_each_other_are_priced_together():
    """Ranks 0 and 1 are each late for a different all-reduce: fixing only one gains little."""

    def rows(rank: int) -> list:
        late = {0: 20_000.0, 1: 0.0, 2: 0.0}[rank], {0: 0.0, 1: 20_000.0, 2: 0.0}[rank]
        first = 10_000 + late[0]
        second = 31_000 + 10_000 + late[1]
        return [
            step(1, 0, 70_000),
            op("forward", 0, 10_000),
            op("head", first - 100, 50),
            *gloo(first, first + 5, 31_000, tid=8),
            op("middle", 31_010, 9_980),
            op("tail", second - 100, 50),
            *gloo(second, second + 5, 62_000, tid=9),
            op("end", 62_010, 7_990),
        ]

    straggler = found(run_of({rank: rows(rank) for rank in range(3)}), "ESP201")
    assert straggler.ranks == (0, 1)
    assert straggler.saving_us > 35_000


def test_ranks_late_in_different_steps_are_a_load_imbalance():
    def rows(rank: int) -> list:
        found = []
        for n in range(1, 5):
            at, late = n * 50_000.0, 5_000.0 if n % 2 == rank else 0.0
            found += [
                step(n, at, at + 50_000),
                op("forward", at, 20_000 + late),
                *gloo(at + 20_000 + late, at + 20_005 + late, at + 30_000),
                op("end", at + 30_010, 19_990),
            ]
        return found

    run = run_of({0: rows(0), 1: rows(1)})
    (imbalance,) = (f for f in ungrouped(run) if f.id.startswith("ESP2"))
    assert (imbalance.id, imbalance.ranks) == ("ESP205", (0, 1))
    # Balanced, each forward takes 22.5 ms; recorded, 20 and 25 ms alternate between the ranks.
    assert imbalance.saving_us == pytest.approx(2_500, abs=10)
    # The first of four steps is left out.
    assert imbalance.evidence["latest_in_steps"].value == {"0": 2, "1": 1}
    straggler, balance = answer(run, ["straggler=fix", "balance=fix"]).what_if
    assert straggler.speedup == 1.0
    assert "no rank is significantly slower" in (straggler.note or "")
    assert balance.predicted_us == pytest.approx(47_500, abs=10)


def est_load_of(*late_ms: tuple[float, float]):
    """Two ranks; `late_ms` has the additional ms of each rank in each step, in gaps among many operations."""

    def rows(rank: int) -> list:
        found = []
        for n, late in enumerate(late_ms, start=1):
            at = n * 100_000.0
            ready = at + 20_000 + late[rank] * 1000
            found += [
                step(n, at, at + 100_000),
                *[op(f"op {k}", at + k, 1) for k in range(50)],
                op("forward", at + 100, 9_000),
            ]
            found += [
                op("last", ready - 500, 500),
                *gloo(ready, ready + 5, at + 60_000),
                op("end", at + 60_010, 39_980),
            ]
        return found

    return run_of({0: rows(0), 1: rows(1)})


def test_one_outlier_of_another_rank_is_no_load_imbalance():
    run = est_load_of((0, 1), (0, 1), (30, 0), (0, 1), (0, 1), (0, 1), (0, 1), (0, 1))
    assert not [finding for finding in diagnose(run).findings if finding.id == "ESP205"]


def test_a_load_imbalance_names_where_each_rank_loses_most():
    imbalance = found(est_load_of((0, 9), (12, 0), (0, 15), (10, 0), (0, 12), (14, 0), (0, 9), (11, 0)), "ESP205")
    assert imbalance.ranks == (0, 1)
    assert imbalance.evidence["lost_in"].of(0) == "forward → last"


def stage_of_pipeline(rank: int, first_ms: int, second_ms: int) -> list:
    """Stage `rank` of two, with four micro-batches per step. The second stage computes a micro-batch while the first
    computes the next one."""
    both = {"in_elements": 1000, "dtype": "Float", "group_ranks": [0, 1]}
    args = {**both, "source_rank": 0, "target_rank": 1, "collective": "recv" if rank else "send"}
    step_us = 1_000 * (4 * max(first_ms, second_ms) + min(first_ms, second_ms)) + 2_000
    rows, correlation = [], 1
    for number in range(1, 6):
        at = number * step_us
        rows += [step(number, at, at + step_us), op("forward", at, 200)]
        computed = passed = at + 100.0
        for batch in range(4):
            sent = at + 100 + (batch + 1) * first_ms * 1_000 + 25
            begin = passed if rank else sent - 20
            rows += [
                call("cudaLaunchKernelExC", at + 10 + batch, 1, correlation),
                kernel("ncclDevKernel_SendRecv", begin, sent - begin, correlation, stream=20, **args),
            ]
            start, passed = (max(computed, sent + 5) if rank else computed), sent
            length = 1_000 * (second_ms if rank else first_ms)
            rows += launched(f"layer {rank}", at + 50 + batch, start, length, correlation + 1)
            computed = start + length
            correlation += 2
        done = at + step_us - 500
        rows += nccl(at + 80, max(computed, passed) + 5, done, correlation, collective="allreduce", **both)
        rows += [call("cudaDeviceSynchronize", at + 100, done + 10 - at - 100, correlation + 1)]
        rows += [op("aten::item", done + 20, at + step_us - done - 30)]
        correlation += 2
    return rows


def test_a_pipeline_stage_with_longer_compute_is_named():
    uneven = run_of({rank: stage_of_pipeline(rank, 1, 3) for rank in (0, 1)})
    stage_imbalance = found(uneven, "ESP207")
    assert stage_imbalance.ranks == (1,)
    assert stage_imbalance.evidence["compute_per_step"].value == {"0": 4_000_000, "1": 12_000_000}
    # One batch through the first stage and four through the second: 13 ms, and 10 ms where each takes 2 ms.
    assert stage_imbalance.saving_us == pytest.approx(3_000, abs=50)


def test_equal_pipeline_stages_are_no_finding():
    even = run_of({rank: stage_of_pipeline(rank, 2, 2) for rank in (0, 1)})
    assert "ESP207" not in {finding.id for finding in diagnose(even).findings}
    (declined,) = answer(run_of({0: ddp_rank(), 1: ddp_rank()}), ["balance[stages]=fix"]).what_if
    assert "not stages of a pipeline" in (declined.reason or "")


def test_scattered_durations_are_no_load_imbalance():
    """Twelve operations of 1 ms, alternately 0.1 ms longer or shorter on the two ranks, and an all-reduce."""

    def rows(rank: int) -> list:
        found = []
        for n in range(6):
            at = now = n * 30_000.0
            found.append(step(n, at, at + 30_000))
            for number in range(12):
                length = 1_000 + (100.0 if (number + rank) % 2 else -100.0) + (n + rank) % 2
                found.append(op(f"operation {number}", now, length))
                now += length
            found += [*gloo(now, now + 5, at + 20_000), op("end", at + 20_010, 9_990)]
        return found

    run = run_of({rank: rows(rank) for rank in (0, 1)})
    assert not any(finding.id.startswith("ESP2") for finding in diagnose(run).findings)


def test_one_outlier_is_no_straggler_but_repeated_delays_are():
    def rows(rank: int, late_steps: tuple[int, ...]) -> list:
        found = []
        for n in range(10):
            at, late = n * 60_000.0, 20_000.0 if rank == 1 and n in late_steps else 0.0
            found += [
                step(n, at, at + 60_000),
                op("forward", at, 10_000 + late),
                *gloo(at + 10_000 + late, at + 10_005 + late, at + 40_000),
                op("end", at + 40_010, 19_990),
            ]
        return found

    def named(late_steps: tuple[int, ...]) -> list:
        run = run_of({rank: rows(rank, late_steps) for rank in range(8)})
        return [finding.ranks for finding in diagnose(run).findings if finding.id.startswith("ESP2")]

    assert named((4,)) == []
    assert named((1, 2, 4, 5, 6, 8, 9)) == [(1,)]


def test_a_delay_counts_once_for_several_collectives():
    def rows(late: float) -> list:
        first, second = 20_000 + late, 20_100 + late
        held = [*gloo(first, first + 5, 41_000, tid=8), *gloo(second, second + 5, 41_500, tid=9)]
        return [step(1, 0, 50_000), op("forward", 0, 19_990 + late), *held, op("end", 41_510, 8_490)]

    straggler = found(run_of({0: rows(0), 1: rows(20_000)}), "ESP202")
    assert straggler.evidence["late_per_step"].of(1) == pytest.approx(20.1 * MS, abs=0.1 * MS)


def test_equal_ranks_have_no_straggler():
    ids = [finding.id for finding in diagnose(run_of({0: ddp_rank(), 1: ddp_rank()})).findings]
    assert not any(id.startswith(("ESP1", "ESP2")) for id in ids)


def test_exposed_communication_saves_only_its_own_time():
    exposed = found(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}), "ESP301")
    assert exposed.saving_us == pytest.approx(4_000, abs=1)
    assert exposed.evidence["sent_per_step_and_rank"] == Evidence(4_000, "bytes")


def test_launch_bound_hosts_are_named_on_gpu_jobs_only():
    rows = [step(1, 0, 10_000)]
    for n in range(50):
        rows += [op("aten::add", n * 200, 150), *launched("k", n * 200 + 100, n * 200 + 110, 20, n + 1)]
    assert found(run_of({0: rows}), "ESP401").saving_pct == pytest.approx(50, abs=2)
    assert "ESP401" not in [f.id for f in diagnose(run_of({0: ddp_rank(), 1: ddp_rank()})).findings]


def test_an_allocator_outlier_is_named_and_not_steady_state():
    rows = []
    for n in range(5):
        at = n * 1000.0
        rows += [step(n, at, at + 1000), op("aten::add", at, 990), *launched("k", at + 10, at + 20, 10, n + 1)]
        if n == 3:
            rows.append(call("cudaMalloc", at + 100, 800, 900 + n))
    diagnosis = diagnose(run_of({0: rows}))
    assert diagnosis.steps == (1, 2, 4)
    outlier = next(finding for finding in diagnosis.findings if finding.id == "ESP501")
    assert outlier.evidence["outliers"] == by_step({3: 1_000_000}, "ns")
    assert outlier.evidence["outliers_without_allocator"] == by_step({3: 200_000}, "ns")


def test_missing_ranks_and_unmatched_collectives_are_findings():
    run = run_of({0: nccl_ranks()[0]}, world=4)
    assert found(run, "ESP903").ranks == (1, 2, 3)
    assert found(run, "ESP902").evidence == {"collectives": Evidence(1), "matched": Evidence(0)}


def test_missing_features_of_torch_are_one_finding():
    run = run_of({0: nccl_ranks()[0]})
    assert "ESP904" not in {finding.id for finding in diagnose(run).findings}
    lacks = tuple(RunWarning("torch-lacks", f"torch 2.6.0: {what}") for what in ("no this", "no that"))
    older = Run(
        msgspec.structs.replace(run.meta, warnings=lacks),
        lambda name, rank: run.events(rank) if name == "events" else None,
    )
    assert found(older, "ESP904").evidence == {"lacks": Evidence("torch 2.6.0: no this; torch 2.6.0: no that")}


def test_unexplained_waits_lower_confidence():
    rows = [step(1, 0, 10_000), op("a", 0, 100), call("cudaStreamSynchronize", 200, 9_000, 1), op("b", 9_300, 100)]
    assert found(run_of({0: rows}), "ESP901").evidence["explained"].value < 0.2


def test_every_finding_has_a_page():
    ids = (
        *(f"ESP{number}" for number in range(101, 114)),
        "ESP201",
        "ESP202",
        "ESP203",
        "ESP204",
        "ESP205",
        "ESP206",
        "ESP207",
        "ESP208",
        "ESP301",
        "ESP302",
        "ESP303",
        "ESP304",
        "ESP305",
        "ESP306",
        "ESP307",
        "ESP308",
        "ESP309",
        "ESP310",
        "ESP401",
        "ESP402",
        "ESP403",
        "ESP404",
        "ESP405",
        "ESP406",
        "ESP407",
        "ESP408",
        "ESP409",
        "ESP410",
        "ESP501",
        "ESP502",
        "ESP503",
        "ESP504",
        "ESP601",
        "ESP602",
        "ESP603",
        "ESP701",
        "ESP702",
        "ESP703",
        "ESP704",
        "ESP705",
        "ESP706",
        "ESP707",
        "ESP708",
        "ESP801",
        "ESP802",
        "ESP803",
        "ESP804",
        "ESP805",
        "ESP806",
        "ESP807",
        "ESP808",
        "ESP901",
        "ESP902",
        "ESP903",
        "ESP904",
        "ESP905",
    )
    assert set(ids) == set(PAGES)
    assert all(page.family for page in PAGES.values())


def test_the_report_is_bounded_and_counts_omitted_bars():
    rows = [step(1, 0, 200_000)]
    for n in range(9_000):
        rows.append(op(f"op {n % 7}", n * 20, 9 if n % 2 else 15))
    report = summarize(run_of({0: rows}))
    assert report.timeline.shown <= MAX_BARS
    assert report.timeline.total >= 9_000
    assert len(msgspec.json.encode(report)) < 1_000_000
    assert all(
        bar.start_us >= 0 and bar.start_us + bar.dur_us <= report.timeline.span_us + 1 for bar in report.timeline.bars
    )


def test_pinning_memory_in_a_thread_is_no_allocator_finding():
    rows = []
    for n in range(6):
        at = 10_000.0 * n
        rows += [step(n + 1, at, at + 10_000), op("aten::mm", at + 10, 9_000), *launched("k", at + 50, at + 60, 300, n)]
        if n == 3:
            rows.append(call("cudaHostAlloc", at + 100, 4_000, 900, tid=555))
    diagnosis = diagnose(run_of({0: rows}))
    assert diagnosis.steps == (2, 3, 4, 5, 6)  # A window's first step is left out.
    assert "ESP501" not in {finding.id for finding in diagnosis.findings}


def load_imbalance(rank: int, own: str) -> list:
    """Six steps of two all-reduces: rank 0 is 3 ms late for the first, and rank 1, because of `own`, for the second."""
    rows = []
    for n in range(6):
        at, first = 20_000.0 * n, 4_000.0 + (3_000 if rank == 0 else 0)
        ends, extra = at + 7_070, 3_000.0 if rank == 1 else 0.0
        second = ends + 4_010 + extra
        rows += [
            step(n + 1, at, at + 20_000),
            op("aten::mm", at, first),
            *nccl(at + first, at + first + 20, ends, 4 * n + 1),
            call("cudaStreamSynchronize", at + first + 10, ends - at - first, 4 * n + 2),
            op("aten::mm2", ends + 10, 4_000),
            *([op(own, ends + 4_010, extra)] if extra else []),
            *nccl(second, second + 20, ends + 7_080, 4 * n + 3),
            call("cudaStreamSynchronize", second + 10, ends + 7_080 - second, 4 * n + 4),
            op("aten::item", ends + 7_090, at + 20_000 - ends - 7_090),
        ]
    return rows


@pytest.mark.parametrize("own", ["aten::mm2", "aten::only_here"])
def test_slow_ranks_are_named_even_if_work_has_no_counterpart(own):
    findings = diagnose(run_of({rank: load_imbalance(rank, own) for rank in range(4)})).findings
    assert [finding.ranks for finding in findings if finding.id.startswith("ESP2")] == [(0, 1)]


def test_the_longest_input_stall_is_in_the_title():
    def rows(stall: float) -> list:
        return [
            step(1, 0, 100_000),
            load_call(0, stall, worker=False),
            op("aten::linear", stall, 20_000),
            *gloo(stall + 20_000, stall + 20_010, 90_000),
            op("end", 90_010, 9_990),
        ]

    stalled = found(run_of({0: rows(35_000), 1: rows(65_000)}), "ESP101")
    assert stalled.ranks == (0, 1)
    assert stalled.title == "Ranks 0–1 wait up to 65.0 ms a step for input data"
    assert stalled.command.endswith("--what-if rank0-1.data=0")


def test_a_single_operation_counts_as_slower_compute():
    """The only operation takes four times as long on rank 1."""

    def rows(linear: float) -> list:
        found = []
        for number in range(1, 6):
            at = number * 100_000.0
            late = at + linear * 1000
            found += [
                step(number, at, at + 100_000),
                op("aten::linear", at, linear * 1000),
                *gloo(late, late + 5, at + 90_000),
                op("Optimizer.step", at + 90_010, 100),
            ]
        return found

    assert found(run_of({0: rows(10), 1: rows(40)}), "ESP202").ranks == (1,)


def test_steps_of_zero_length_are_accepted():
    steps = step_table([50, *[0] * 20], start_ns=EPOCH_NS, first=1, phase=["timed", *["plain"] * 20])
    assert diagnose(run_of({0: ddp_rank()}, steps={0: steps})).throughput.steps_per_s > 0


def test_stage_time_ignores_missing_steps_and_slower_ranks():
    dfg = build(run_of({rank: stage_of_pipeline(rank, 1, 3) for rank in (0, 1)}))
    lost = replace(dfg, dur_ns=np.where((dfg.rank == 0) & (dfg.step == 3), 0, dfg.dur_ns))
    assert stage_ns([lost], np.array([0, 1]), dfg.marks.steps).tolist() == [4e6, 12e6]
    # The slower of two ranks of one stage may be a straggler.
    assert stage_ns([lost], np.array([0, 0]), dfg.marks.steps).tolist() == [4e6]
