"""ESP408 on CPUs: recurrent layers in loops of Python."""

import pytest

from esprof.analyzers import diagnose
from tests.cases.graph import op, run_of, step

STEP = 100_000.0


def found(calls: int, took_us: float, *, gap_us: float = 500.0, name: str = "aten::gru", inner: str = "aten::mm"):
    """Six steps of 100 ms: so many calls, each around another operation, then a long operation to the end of the step."""
    rows = []
    for n in range(6):
        at = STEP * n
        rows.append(step(n, at, at + STEP))
        for _ in range(calls):
            rows += [op(name, at, took_us), op(inner, at + 1, took_us - 2)]
            at += took_us + gap_us
        rows.append(op("aten::conv2d", at, STEP * (n + 1) - at))
    return next((one for one in diagnose(run_of({0: rows})).findings if one.id == "ESP408"), None)


def test_a_layer_that_is_called_for_each_time_step_is_named():
    finding = found(20, 1_000)
    assert (
        finding.title
        == "A recurrent layer is called 20 times a step, one time step after the other, which takes 29.5 ms"
    )
    assert finding.evidence["calls_per_step"].value == {"0": 20}
    assert finding.saving_us == 0
    assert found(20, 1_000, name="aten::lstm_cell") is not None


def test_a_call_of_a_whole_sequence_beside_the_loop_does_not_count():
    rows = []
    for n in range(6):
        at = STEP * n
        rows += [step(n, at, at + STEP), op("aten::gru", at, 20_000)]
        rows += [op("aten::gru", at + 21_000 + 1_500 * k, 1_000) for k in range(20)]
        rows.append(op("aten::conv2d", at + 60_000, 40_000))
    finding = next(one for one in diagnose(run_of({0: rows})).findings if one.id == "ESP408")
    assert finding.evidence["in_loops_per_step"].value == {"0": 29_500_000}


@pytest.mark.parametrize(
    ("calls", "took_us", "how"),
    [
        (4, 10_000, {}),  # four layers
        (4, 10_000, {"inner": "aten::gru"}),
        (12, 100, {"gap_us": 100}),  # short
        (12, 1_000, {"gap_us": 6_500}),  # between other work
        (20, 1_000, {"name": "aten::linear"}),
    ],
)
def test_layers_that_are_called_once_and_other_operations_are_not(calls, took_us, how):
    assert found(calls, took_us, **how) is None
