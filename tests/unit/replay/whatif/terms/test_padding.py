"""`padding=0`: which work shrinks with tokens, which with pairs of tokens, and which stays."""

import numpy as np
import pytest

from esprof.replay.building.build import build
from esprof.replay.ranks.blame import Blame
from esprof.replay.whatif.apply import apply
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import what_if
from esprof.replay.whatif.scenario import Scenario
from tests.cases.graph import Row, launched, nodes_of, op, run_of, step
from tests.cases.step_runs import step_table

LENGTHS = np.array([512, 128, 64, 64, 300, 17, 480, 256])
TOKENS, PAIRS = 8 * 512, 8 * 512**2
COUNTS = {
    "tokens": TOKENS,
    "padding": TOKENS - LENGTHS.sum(),
    "pairs": PAIRS,
    "padding_pairs": PAIRS - (LENGTHS**2).sum(),
}
STEPS, STEP_US = 6, 21_000.0
OF_TOKENS, OF_PAIRS = 0.5554, 0.6791
EXACT_OF_TOKENS, EXACT_OF_PAIRS = COUNTS["padding"] / TOKENS, COUNTS["padding_pairs"] / PAIRS


def job(work, *, ranks=(0,), **counts):
    """Steps of 21 ms, each with the rows that `work` makes from 10 µs after it begins."""
    begins = [STEP_US * n for n in range(STEPS)]
    rows: list[Row] = [row for n, at in enumerate(begins, 1) for row in (step(n, at, at + STEP_US), *work(at + 10, n))]
    columns = {name: [value] * STEPS for name, value in (COUNTS | counts).items()}
    steps = step_table([STEP_US / 1000] * STEPS, first=1, phase="timed", samples=[8] * STEPS, **columns)
    return run_of(dict.fromkeys(ranks, rows), steps=dict.fromkeys(ranks, steps))


def saved_us(run, spec: str = "padding=0") -> float:
    (answer,) = what_if(run, build(run), [spec])
    assert answer.answered, answer.reason
    return answer.saving_us


@pytest.mark.parametrize(
    ("operation", "share"),
    [
        ("aten::addmm", OF_TOKENS),
        ("autograd::engine::evaluate_function: AddmmBackward0", OF_TOKENS),
        ("aten::_log_softmax", OF_TOKENS),
        ("aten::bmm", OF_PAIRS),
        ("aten::_softmax", OF_PAIRS),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", OF_PAIRS),
    ],
)
def test_attention_shrinks_with_pairs_and_all_else_with_tokens(operation, share):
    run = job(lambda at, n: [op(operation, at, 10_000), op("Optimizer.step", at + 10_000, 10_000)])
    assert saved_us(run) == pytest.approx(10_000 * share, abs=2)


@pytest.mark.parametrize(
    "operation", ["aten::add_", "Optimizer.step#SGD.step", "c10d::allreduce_", "aten::_foreach_add_"]
)
def test_work_on_parameters_stays(operation):
    run = job(lambda at, n: [op(operation, at, 10_000), op("aten::mm", at + 10_000, 10_000)])
    assert saved_us(run) == pytest.approx(10_000 * OF_TOKENS, abs=2)


def test_operations_that_an_optimizer_calls_stay():
    nested = [("Optimizer.step#SGD.step", 10_000), ("aten::mul", 9_000)]
    run = job(lambda at, n: [op("aten::mm", at + 10_000, 10_000), *(op(name, at, took) for name, took in nested)])
    assert saved_us(run) == pytest.approx(10_000 * OF_TOKENS, abs=2)


def test_kernels_belong_to_the_operation_that_launches_them():
    def work(at: float, n: int) -> list[Row]:
        return [
            op("aten::linear", at, 40),
            op("aten::addmm", at + 5, 30),
            *launched("sgemm", at + 10, at + 50, 4_000, 10 * n),
            op("aten::_flash_attention_forward", at + 60, 30),
            *launched("flash_fwd", at + 70, at + 4_050, 4_000, 10 * n + 1),
            op("aten::_fused_adamw_", at + 100, 30),
            *launched("multi_tensor", at + 110, at + 8_050, 4_000, 10 * n + 2),
            op("aten::gelu", at + 140, 30),
            *launched("elementwise", at + 150, at + 12_050, 4, 10 * n + 3),
        ]

    run = job(work)
    dfg = build(run)
    changed = apply(Scenario(run, Blame(dfg, dfg.marks.steps), dfg), parse("padding=0")).dfg
    left = {name: {int(changed.dur_ns[node]) for node in nodes_of(dfg, name)} for name in ("sgemm", "flash_fwd")}
    assert left == {"sgemm": {round(4e6 * (1 - EXACT_OF_TOKENS))}, "flash_fwd": {round(4e6 * (1 - EXACT_OF_PAIRS))}}
    for name in ("multi_tensor", "elementwise"):
        assert np.array_equal(changed.dur_ns[nodes_of(dfg, name)], dfg.dur_ns[nodes_of(dfg, name)])


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"padding": None}, "no step has counts of padding"),
        ({"tokens": None}, "no step has counts of padding"),
        ({"padding": TOKENS}, "no step has counts of padding"),
        ({"padding": 0, "padding_pairs": 0}, "hold no padding"),
    ],
)
def test_without_counts_or_padding_it_is_declined(counts, reason):
    run = job(lambda at, n: [op("aten::mm", at, 10_000)], **counts)
    (answer,) = what_if(run, build(run), ["padding=0"])
    assert not answer.answered
    assert reason in answer.reason


def test_without_lengths_attention_shrinks_with_tokens():
    run = job(lambda at, n: [op("aten::bmm", at, 10_000)], pairs=None, padding_pairs=None)
    (answer,) = what_if(run, build(run), ["padding=0"])
    assert answer.saving_us == pytest.approx(10_000 * OF_TOKENS, abs=2)
    assert "lengths of single sequences are unknown" in answer.note


def test_short_operations_are_overhead():
    run = job(lambda at, n: [op("aten::mm", at + 100 * i, 20) for i in range(100)] + [op("aten::mm", at + 10_000, 30)])
    assert saved_us(run) == pytest.approx(10, abs=1)


def test_a_rank_of_its_own():
    run = job(lambda at, n: [op("aten::mm", at, 10_000)], ranks=(0, 1))
    assert saved_us(run, "rank1.padding=0") <= saved_us(run)
