"""ESP406: time that no recorded operation covers, on all ranks, where no stacks tell what ran."""

import msgspec
import pytest

from esprof.analyzers import diagnose
from tests.cases.graph import call, kernel, op, run_of, step
from tests.unit.analyzers.findings.host.test_recorded_python import LOAD, gpu_rank

MS = 1000.0


def found(*ranks, **more):
    diagnosis = diagnose(run_of(dict(enumerate(ranks)), **more))
    msgspec.json.encode(diagnosis)
    return [one for one in diagnosis.findings if one.id in ("ESP201", "ESP402", "ESP406")]


def test_time_of_all_ranks_without_operations_is_reported_with_its_place():
    (finding,) = found(*[gpu_rank(30)] * 2)
    assert (finding.id, finding.ranks) == ("ESP406", (0, 1))
    assert (
        finding.title
        == "Ranks 0–1 run no recorded operation for up to 30.0 ms of a step, most of it between aten::add → aten::mm"
    )
    assert finding.evidence["uncovered_per_step"].of(1) == pytest.approx(30_000_000, rel=0.02)
    assert finding.evidence["gaps_per_step_and_rank"].of("aten::add → aten::mm") == pytest.approx(1)
    assert finding.saving_us == pytest.approx(30 * MS, rel=0.02)
    assert finding.saving_us <= finding.evidence["uncovered_per_step"].of(0) / 1000 + 1
    assert "with_stack=True" in finding.advice
    assert "--stack-steps" in finding.advice
    assert finding.command is not None
    assert "python[^unrecorded code$]=0" in finding.command


def test_a_single_process_is_enough():
    assert [one.id for one in found(gpu_rank(30))] == ["ESP406"]


def test_with_known_lines_the_time_is_reported_once():
    assert [one.id for one in found(*[gpu_rank(30, LOAD)] * 2)] == ["ESP402"]


def test_time_of_one_rank_is_reported_as_its_lateness_only():
    (finding,) = found(gpu_rank(0, late_ms=30), gpu_rank(30), gpu_rank(0, late_ms=30))
    assert (finding.id, finding.ranks) == ("ESP201", (1,))
    assert finding.evidence["lost_in"].of(1) == "aten::add → aten::mm"


def test_of_two_ranks_both_must_spend_the_time():
    assert "ESP406" not in [one.id for one in found(gpu_rank(0, late_ms=30), gpu_rank(30))]


@pytest.mark.parametrize("waits_ms", [0, 0.9, 3])
def test_short_gaps_are_ordinary_python(waits_ms):
    assert found(*[gpu_rank(waits_ms)] * 2) == []


def test_a_wait_for_the_device_is_no_uncovered_time():
    rows = []
    for n in range(5):
        at = 50 * MS * n
        rows += [
            step(n, at, at + 50 * MS),
            op("aten::mm", at, 5 * MS),
            call("cudaLaunchKernel", at + 100, 5, 2 * n + 1),
        ]
        rows += [kernel("gemm", at + 110, 40 * MS, 2 * n + 1)]
        rows += [
            call("cudaStreamSynchronize", at + 5 * MS, 35.12 * MS, 2 * n + 2),
            op("aten::add", at + 40.2 * MS, 9.8 * MS),
        ]
    assert found(rows) == []


def test_a_gap_during_which_the_device_works_is_no_uncovered_time():
    rows = []
    for n in range(5):
        at = 50 * MS * n
        rows += [step(n, at, at + 50 * MS), op("aten::mm", at, 2 * MS), call("cudaLaunchKernel", at + 100, 5, n + 1)]
        rows += [kernel("gemm", at + 110, 49.5 * MS, n + 1), op("aten::add", at + 45 * MS, 5 * MS)]
    assert found(rows) == []
