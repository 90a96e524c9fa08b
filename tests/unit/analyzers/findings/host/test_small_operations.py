"""ESP408 on CPUs: small operations."""

import pytest

from esprof.analyzers import diagnose
from esprof.analyzers.findings.host.small_operations import saved_by_half
from esprof.replay.building.build import build
from esprof.replay.ranks.pipeline import Pipeline
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import launched, op, run_of, step

STEP = 10_000.0


def job(count: int, took_us: float, gap_us: float = 5.0):
    """Six steps of 10 ms: so many operations in a row, then a long one to the end of the step."""
    rows = []
    for n in range(6):
        at = STEP * n
        rows.append(step(n, at, at + STEP))
        for _ in range(count):
            rows += [op("aten::linear", at, took_us), op("aten::addmm", at + 1, took_us - 2)]
            at += took_us + gap_us
        rows.append(op("aten::conv2d", at, STEP * (n + 1) - at))
    return run_of({0: rows})


def found(*how: float):
    return next((one for one in diagnose(job(*how)).findings if one.id == "ESP408"), None)


def test_small_operations_are_named_with_a_bound_of_what_larger_ones_save():
    diagnosis = diagnose(job(200, 20))
    (finding,) = diagnosis.findings
    assert finding.id == "ESP408"
    assert finding.title == "200 operations a step take less than 0.050 ms each, and 5.00 ms together"
    assert finding.evidence["small_operations_per_step"].value == {"0": 200}
    assert finding.is_bound
    assert finding.saving_us == pytest.approx(200 * 25, abs=1)
    assert finding.saving_low_us >= finding.saving_us / 2
    assert diagnosis.verdict == f"{finding.title}. No fix saves more than 5.00 ms of a step of 10.0 ms."


@pytest.mark.parametrize(("count", "took_us", "gap_us"), [(100, 20, 5), (60, 80, 5), (60, 20, 100)])
def test_few_long_or_spread_operations_are_none(count, took_us, gap_us):
    assert found(count, took_us, gap_us) is None


def test_long_operations_and_long_gaps_stay():
    run = job(20, 20, gap_us=100)
    (answer,) = what_if(run, build(run), ["small_operations=0"])
    assert answer.saving_us == pytest.approx(20 * 20, abs=1)
    assert answer.predicted_us == pytest.approx(STEP - 20 * 20, abs=1)


def test_on_a_gpu_launches_are_the_question():
    rows = [
        row
        for n in range(3)
        for row in (step(n, n * STEP, (n + 1) * STEP), *launched("add", n * STEP, n * STEP + 20, 5, n))
    ]
    run = run_of({0: rows})
    (answer,) = what_if(run, build(run), ["small_operations=0"])
    assert "launches=graph" in answer.reason


@pytest.mark.parametrize(
    ("stages", "micro_batches", "share", "saved"),
    [
        (2, 16, 0.2, 0.1 - (1 / 9 - 1 / 17)),
        (2, 16, 0.1, 0.05 - (1 / 9 - 1 / 17)),
        (2, 4, 0.3, 0.15 - (1 / 3 - 1 / 5)),
        (8, 16, 0.2, 0.1 - (7 / 15 - 7 / 23)),
        (2, 1, 0.9, 0.0),
    ],
)
def test_half_as_many_micro_batches_save_half_of_the_calls_less_what_the_bubble_grows(
    stages, micro_batches, share, saved
):
    pipeline = Pipeline((tuple(range(stages)),), micro_batches, 1)
    assert saved_by_half(pipeline, share) == pytest.approx(saved)
