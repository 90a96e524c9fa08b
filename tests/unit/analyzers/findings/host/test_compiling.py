"""ESP409: torch.compile compiles in the recorded steps; calls of compiled code in ESP401."""

import pytest

from esprof.analyzers import diagnose
from tests.cases.findings import ungrouped
from tests.cases.graph import launched, op, run_of, step

STEP = 10_000.0


def steps(*, slow: tuple[int, ...], compile_us: float = 4_000, region: str = "Torch-Compiled Region: 0/1") -> list:
    """Six steps of 5 ms of compiled code; the steps `slow` compile for `compile_us` before it, as torch 2.13 records it."""
    rows, at = [], 0.0
    for n in range(6):
        begin, named = at, "Torch-Compiled Region: 0/0"
        if n in slow:
            rows += [
                op("dynamo", at, compile_us + 200),
                op("_compile.compile_inner (dynamo_timed)", at + 100, compile_us),
                op("backend_compile", at + 200, compile_us / 2),
                op("OutputGraph.call_user_compiler (dynamo_timed)", at + 210, compile_us / 3),
            ]
            at, named = at + compile_us + 200, region
        rows += [op(named, at, 5_000), op("aten::mm", at + 100, 4_000)]
        at += 5_000
        rows.append(step(n, begin, at))
    return rows


def found(rows: list):
    return next((one for one in diagnose(run_of({0: rows})).findings if one.id == "ESP409"), None)


def test_recompilations_are_named_and_priced():
    finding = found(steps(slow=(2, 4)))
    assert finding.title == "torch.compile compiles in 2 of 5 steps, for up to 4.00 ms of a step, frame 0 again"
    assert finding.saving_us == pytest.approx(2 * 4_000 / 5, rel=0.01)
    assert 0 < finding.saving_low_us < finding.saving_us
    assert finding.evidence["in_steps"].value == "2, 4"
    assert finding.evidence["frames_compiled"].value == {"0": 2}
    assert "TORCH_LOGS=recompiles" in finding.advice


def test_a_compilation_in_every_step_is_certain():
    finding = found(steps(slow=tuple(range(6))))
    assert finding.what_if == "compile=0"
    assert finding.saving_us == pytest.approx(4_000, rel=0.01)


def test_the_first_compilation_has_no_saving():
    rows = [row for row in steps(slow=(0,), region="Torch-Compiled Region: 0/0") if row.ts < 3 * 5_000 + 4_000]
    finding = found(rows)
    assert finding.saving_us == 0
    assert "again" not in finding.title
    assert "later steps do not have this time" in finding.advice


def test_compiled_steps_that_compile_nothing_are_not_reported():
    assert found(steps(slow=())) is None
    assert found(steps(slow=(3,), compile_us=40)) is None


@pytest.mark.parametrize(("inner", "breaks"), [("Torch-Compiled Region: 1/0", 1), ("aten::mm", 0)])
def test_regions_inside_others_are_graph_breaks(inner, breaks):
    rows, number = [], 0
    for n in range(5):
        rows.append(step(n, STEP * n, STEP * (n + 1)))
        for m in range(50):
            at, number = STEP * n + 200 * m, number + 1
            rows += [op("Torch-Compiled Region: 0/0", at, 190), op(inner, at + 50, 130)]
            rows += launched("triton_poi_fused_add_0", at + 100, at + 110, 20, number)
    (host,) = [one for one in ungrouped(run_of({0: rows})) if one.id == "ESP401"]
    assert host.evidence["compiled_regions_per_step"].value == 50 * (1 + breaks)
    assert host.evidence["graph_breaks_per_step"].value == 50 * breaks
