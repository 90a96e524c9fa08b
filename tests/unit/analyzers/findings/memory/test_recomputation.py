"""ESP504 and `recompute=0`: activations that are computed again in the backward pass."""

import pytest

from esprof.analyzers import diagnose
from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import call, launched, numbered, op, run_of, step

MS, STEP = 1_000.0, 100_000.0
ENGINE = "autograd::engine::evaluate_function: "


def steps(*inside, ranks=1):
    """Six steps of 100 ms: 40 ms forward, 60 ms backward, in which one node runs the operations `inside`, as (name, start
    in ms, duration in ms, sequence number)."""
    rows = []
    for n in range(6):
        at = STEP * n
        rows += [
            step(n, at, at + STEP),
            numbered("aten::linear", at, 40 * MS, 10 * n),
            numbered(f"{ENGINE}AddmmBackward0", at + 40 * MS, 60 * MS, 10 * n, forward_thread=1),
        ]
        for name, begin, took, number in inside:
            row = op(name, at + begin * MS, took * MS)
            rows.append(row if number is None else numbered(name, row.ts, row.dur, 10 * n + number))
    return run_of(dict.fromkeys(range(ranks), rows))


RECOMPUTED = [("aten::layer_norm", 41, 5, 1), ("aten::linear", 47, 13, 2), ("aten::mm", 62, 30, None)]


def found(run):
    return next((one for one in diagnose(run).findings if one.id == "ESP504"), None)


def test_a_second_forward_pass_is_named_and_priced():
    finding = found(steps(*RECOMPUTED))
    assert finding.what_if == "recompute=0"
    assert finding.saving_us == pytest.approx(19 * MS, rel=0.01)  # from the first such operation to the last
    assert finding.evidence["recomputing_per_step"].value == {"0": 19_000_000}
    assert finding.title == "Activations are computed again for 19.0 ms of the backward pass"


@pytest.mark.parametrize(
    "inside",
    [
        [("aten::mm", 41, 50, None)],  # a usual backward pass
        [("aten::mm", 41, 20, 1), ("aten::mul", 62, 20, 2)],  # a gradient of a gradient
        [("aten::convolution_backward", 41, 50, 1)],  # the same
        [("aten::linear", 41, 0.2, 1)],  # too short
    ],
)
def test_other_work_of_the_backward_pass_is_not_recomputation(inside):
    assert found(steps(*inside)) is None


def test_gpu_work_that_recomputation_launches_is_removed():
    rows, long = [], 91.3 * MS
    for n in range(6):
        at, number = long * n, 100 * n
        rows += [step(n, at, at + long), numbered("aten::linear", at, MS, 10 * n)]
        rows += launched("forward", at + 100, at + 200, 30 * MS, number + 1)
        rows += [
            numbered(f"{ENGINE}AddmmBackward0", at + 2 * MS, 4 * MS, 10 * n, forward_thread=1),
            numbered("aten::linear", at + 2.1 * MS, MS, 10 * n + 1),
        ]
        rows += launched("again", at + 2.2 * MS, at + 31 * MS, 20 * MS, number + 2)
        rows += launched("backward", at + 4 * MS, at + 51.1 * MS, 40 * MS, number + 3)
        rows.append(call("cudaDeviceSynchronize", at + 7 * MS, 84.2 * MS, number + 4))
    run = run_of({0: rows})
    (answer,) = what_if(run, build(run), ["recompute=0"])
    assert answer.saving_us == pytest.approx(20 * MS, rel=0.05)


def test_a_run_without_recomputation_declines():
    run = steps()
    (answer,) = what_if(run, build(run), ["recompute=0"])
    assert answer.reason == "no forward operation was recorded inside a backward pass"
