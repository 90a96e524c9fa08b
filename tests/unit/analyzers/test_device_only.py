"""Diagnosis of traces with GPU work alone."""

import pytest

from esprof import load
from esprof.analyzers import diagnose
from esprof.analyzers.ops.over_ranks import ops_run
from esprof.core.errors import InputError
from esprof.replay import Replayed
from esprof.reports.terminal.diagnosis import draw_diagnosis, draw_verdict
from esprof.reports.terminal.ops import render_text
from tests.cases import serving
from tests.cases.kineto import document, kernel, write


def on_gpu(rows, *also):
    return [one for one in rows if one["cat"] in ("kernel", "gpu_memcpy", *also)]


@pytest.fixture
def run_of(tmp_path):
    def of(*ranks):
        for rank, rows in enumerate(ranks):
            world = len(ranks)
            write(tmp_path / f"rank{rank}.json", document(*rows, rank=rank, world=world, host_name="here"))
        return load(tmp_path)

    return of


def tensor_parallel(late=0, steps=5):
    """Two ranks: in each step 500 µs of compute and an all-reduce of 100 µs; rank 1 starts `late` µs after rank 0."""

    def rank(own):
        rows = []
        for number in range(steps):
            begin = number * 1_000
            rows.append(kernel(begin, None, name="first", dur=300))
            rows.append(kernel(begin + 300 + own, None, name="gemm", dur=200))
            end = begin + 500 + late + 100
            rows.append(
                kernel(
                    begin + 500 + own,
                    None,
                    name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                    dur=end - begin - 500 - own,
                )
            )
        return rows

    return rank(0), rank(late)


def test_the_breakdown_and_the_kernels_of_a_server(run_of):
    run = run_of(on_gpu(serving.decode(8), "gpu_user_annotation"))
    diagnosis = diagnose(run)
    (rank,) = diagnosis.breakdown
    assert rank.step_us == pytest.approx(6_800, abs=1)
    assert rank.compute == pytest.approx(6_795, abs=5)
    assert (rank.host, rank.input_stall) == (0, 0)
    assert [finding.id for finding in diagnosis.findings] == ["ESP704"]
    assert "no-cpu-events" in {warning.code for warning in diagnosis.warnings}
    assert diagnosis.explained_pct is None
    assert "steps-by-annotation" in {warning.code for warning in diagnosis.warnings}
    for text in (draw_diagnosis(diagnosis), draw_verdict(diagnosis)):
        assert "6.80 ms" in text


def test_without_annotations_blocks_of_kernels_are_taken(run_of):
    diagnosis = diagnose(run_of(on_gpu(serving.decode(8))))
    assert diagnosis.unit == "block"
    assert diagnosis.step_us == pytest.approx(200, abs=10) or diagnosis.step_us == pytest.approx(6_800, abs=10)


def test_kernels_are_rows_of_the_table_of_operations(run_of):
    answer = ops_run(run_of(on_gpu(serving.decode(8), "gpu_user_annotation")))
    first = answer.ops[0]
    assert (first.kind, first.name) == ("kernel", "mlp_gemm")
    assert (first.calls, first.own_gpu_us) == (32, pytest.approx(3_200))
    assert answer.gpu_us == pytest.approx(6_795, abs=10)
    assert "mlp_gemm" in render_text(answer)


def test_exposed_communication_and_waiting_are_separated(run_of):
    even, late = (diagnose(run_of(*tensor_parallel(delay))).breakdown for delay in (0, 200))
    assert [(one.compute, one.exposed_communication, one.wait, one.idle) for one in even] == [(500, 100, 0, 400)] * 2
    assert [(one.exposed_communication, one.wait) for one in late] == [(100, 200), (100, 0)]


def test_a_rank_that_is_late_is_named_and_ranks_that_are_not_are_not(run_of):
    def late(delay):
        return [one.ranks for one in diagnose(run_of(*tensor_parallel(delay))).findings if one.id == "ESP201"]

    assert late(200) == [(1,)]
    assert late(0) == late(5) == []


def test_exposed_communication_is_a_bound(run_of):
    (finding,) = [one for one in diagnose(run_of(*tensor_parallel())).findings if one.id == "ESP301"]
    assert finding.is_bound
    assert finding.saving_us == pytest.approx(100)
    assert finding.what_if is None


def test_an_idle_gpu_has_no_known_cause(run_of):
    verdict = diagnose(run_of([kernel(1_000 * at, None, dur=300) for at in range(10)])).verdict
    assert "30 % of it compute" in verdict
    assert "an idle GPU, whose cause needs CPU events: 0.70 ms" in verdict


def test_replay_is_declined_with_the_reason(run_of):
    with pytest.raises(InputError, match="no CPU operation") as refused:
        Replayed.of(run_of(on_gpu(serving.decode(4))))
    assert "esprof diagnose" in refused.value.remedy


def test_a_single_kernel_is_a_window(run_of):
    diagnosis = diagnose(run_of([kernel(0, None, name="flash_fwd_kernel", dur=2_000)]))
    assert diagnosis.unit == "window"
    assert diagnosis.verdict.startswith("The window takes 2.00 ms")
