"""ESP701: padding tokens."""

import pytest

from esprof.analyzers import diagnose
from tests.cases.graph import op, run_of, step
from tests.cases.step_runs import step_table

STEP_MS = 10


def job(
    tokens: list[int | None], padding: list[int | None], *, computing: str = "aten::addmm", within: str = "aten::add"
):
    rows = []
    for number in range(1, len(tokens) + 1):
        at = number * STEP_MS * 1000.0
        rows += [step(number, at, at + 10_000), op(computing, at, 8_000), op(within, at + 1, 10)]
        rows.append(op("Optimizer.step", at + 8_000, 2_000))
    counts = {"tokens": tokens, "padding": padding, "samples": [8] * len(tokens)}
    table = step_table([STEP_MS] * len(tokens), first=1, phase="timed", **counts)
    return run_of({0: rows}, steps={0: table})


def found(run) -> list:
    return [finding for finding in diagnose(run).findings if finding.id == "ESP701"]


def test_half_of_all_tokens_cost_half_of_the_work_that_is_proportional_to_tokens():
    (finding,) = found(job([800] * 6, [400] * 6))
    assert finding.title == "50 % of the tokens are padding"
    assert finding.saving_us == pytest.approx(4_000, abs=1)
    assert finding.saving_low_us >= finding.saving_us / 2
    assert finding.evidence["one_length_for_all"].value is True
    assert "to the same length" in finding.advice
    assert finding.what_if == "padding=0"
    assert finding.evidence["padding"].of(0) == 0.5
    assert finding.evidence["padding_of_attention"].of(0) is None
    assert finding.confidence == "low"


def test_batches_of_different_lengths_should_be_sorted_or_packed():
    (finding,) = found(job([800, 400, 960, 1600, 640, 800], [400, 200, 480, 800, 320, 400]))
    assert finding.evidence["one_length_for_all"].value is False
    assert "pack several into one row" in finding.advice


@pytest.mark.parametrize(
    "run",
    [
        job([800] * 6, [70] * 6),  # little padding
        job([800] * 6, [None] * 6),  # no mask
        job([None] * 6, [400] * 6),  # no tokens
        job([800] * 6, [800] * 6),  # only padding: no usable mask
        job([800] * 6, [400] * 6, computing="aten::add"),  # no work that is known to depend on tokens
        job([800] * 6, [400] * 6, within="aten::_pack_padded_sequence"),
    ],
)
def test_padding_that_is_small_unknown_or_free_is_not_reported(run):
    assert not found(run)
