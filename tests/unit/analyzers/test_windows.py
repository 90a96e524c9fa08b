"""Diagnosis of serving traces: steps by annotations, blocks of repeated work, and windows without either."""

import pytest

from esprof import load
from esprof.analyzers import diagnose
from esprof.analyzers.ops.over_ranks import ops_run
from esprof.analyzers.summary.summary import summarize
from esprof.replay import Replayed
from esprof.reports.html.page import render_html
from esprof.reports.terminal.diagnosis import draw_diagnosis
from esprof.reports.terminal.ops import render_text
from tests.cases import serving
from tests.cases.kineto import document, kernel, launch, row, write


@pytest.fixture
def run_of(tmp_path):
    return lambda rows: load(write(tmp_path / "trace.json", document(*rows)))


@pytest.mark.parametrize("name", [serving.SGLANG, serving.VLLM, None])
def test_a_decode_step_behind_a_queue_is_bound_by_the_gpu(run_of, name):
    diagnosis = diagnose(run_of(serving.decode(8, name=name)))
    assert diagnosis.step_us == pytest.approx(6_800, abs=15)
    assert diagnosis.explained_pct > 99
    assert [finding.id for finding in diagnosis.findings] == ["ESP704"]


def test_a_server_that_waits_for_its_tokens_before_each_step_is_bound_by_that_wait(run_of):
    diagnosis = diagnose(run_of(serving.decode(8, ahead=False)))
    assert diagnosis.findings[0].id == "ESP405"
    assert diagnosis.unit == "step"
    assert diagnosis.throughput is not None


def test_blocks_are_no_steps(run_of):
    run = run_of(serving.decode(8, name=None))
    diagnosis, operations = diagnose(run), ops_run(run)
    assert diagnosis.unit == operations.unit == "block"
    assert diagnosis.throughput is None
    assert diagnosis.verdict.startswith("A block takes 6.80 ms")
    for text in (draw_diagnosis(diagnosis), render_text(operations)):
        assert "steps/s" not in text
        assert "A step" not in text


def test_a_single_launch_is_a_window_and_no_host_limits_it(run_of):
    rows = [row("aten::mm", 0, 40), launch(20, 1), kernel(40, 1, dur=200)]
    diagnosis = diagnose(run_of(rows))
    assert diagnosis.unit == "window"
    assert diagnosis.verdict.startswith("The window takes 0.24 ms")
    assert not diagnosis.findings
    assert diagnosis.throughput is None


def test_kernels_may_run_on_after_the_last_operation(run_of):
    rows = [row("aten::mm", 0, 40), launch(20, 1), kernel(40, 1, dur=3_000), launch(30, 2), kernel(3_040, 2, dur=500)]
    (rank,) = diagnose(run_of(rows)).breakdown
    assert (rank.compute, rank.step_us) == (3_500, 3_540)


@pytest.mark.parametrize(
    ("decode", "prefill"),
    [(serving.SGLANG, "step[EXTEND bs=2 toks=4096]"), (serving.VLLM, "execute_context_2(4096)_generation_14(14)")],
)
def test_a_prefill_among_decode_steps_is_left_out(run_of, decode, prefill):
    names = [*[decode] * 6, prefill, *[decode] * 6]
    rows = []
    for number, name in enumerate(names):
        begin, dur = 20_000 * number, 15_000 if name == prefill else 5_000
        rows += [row(name, begin, 300, cat="user_annotation"), launch(begin + 50, number)]
        rows += [
            kernel(begin + 60, number, dur=dur),
            row("cudaStreamSynchronize", begin + 320, dur, cat="cuda_runtime"),
        ]
    replayed = Replayed.of(run_of(rows))
    assert 6 not in replayed.steps.steady
    assert "another kind of pass" in str(replayed.steps.left_out[6])
    assert len(replayed.steps.steady) == 10


def test_the_page_of_a_window_has_no_rates(run_of):
    page = render_html(summarize(run_of(serving.decode(8, name=None))))
    assert "steps/s" not in page
    assert "Block time" in page
