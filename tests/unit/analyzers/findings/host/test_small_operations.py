"""ESP408 on CPUs: runs of small operations."""

import pytest

from esprof.analyzers import diagnose
from tests.cases.graph import op, run_of, step

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


def test_a_loop_of_small_operations_is_named_without_a_saving():
    finding = found(200, 20)
    assert finding.title == "200 operations a step take less than 0.050 ms each, and 5.00 ms together"
    assert finding.evidence["small_operations_per_step"].value == {"0": 200}
    assert finding.saving_us == 0
    assert diagnose(job(200, 20)).verdict.endswith(f" Without a price: {finding.title}.")


@pytest.mark.parametrize(("count", "took_us", "gap_us"), [(80, 20, 5), (15, 40, 5), (60, 80, 5), (60, 20, 100)])
def test_few_long_or_spread_operations_are_no_storm(count, took_us, gap_us):
    assert found(count, took_us, gap_us) is None
