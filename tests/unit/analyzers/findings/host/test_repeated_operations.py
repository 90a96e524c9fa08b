"""ESP408 on CPUs: loops of Python over the same operations."""

import pytest

from esprof.analyzers import diagnose
from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import gloo, numbered, op, python, run_of, step

STEP = 10_000.0
SMALL = ("aten::slice", "aten::mul", "aten::sum")


def job(items: int, took_us: float = 20.0, modules: int = 1):
    """Six steps of 10 ms: a loop over items with three operations each, then a long one whose backward pass has a node for
    each item, of 30 µs, and an own node."""
    rows = []
    for n in range(6):
        at = STEP * n
        rows += [step(n, at, at + STEP), python("nn.Module: GPT", at, 1)]
        for item in range(items):
            rows.append(python(f"nn.Module: GPT.{item % modules}", at, took_us))
            for number, name in enumerate(SMALL):
                rows.append(numbered(name, at, took_us, sequence=1_000 * n + 3 * item + number))
                at += took_us + 1
        rows.append(numbered("aten::linear", at, 2_000, sequence=1_000 * n + 900))
        at += 2_000
        rows.append(numbered("AddmmBackward0", at, 2_000, sequence=1_000 * n + 900, forward_thread=1))
        at += 2_000
        for item in range(items):
            rows.append(numbered("SumBackward0", at, 30, sequence=1_000 * n + 3 * item + 2, forward_thread=1))
            at += 30
        rows.append(op("aten::add_", at, STEP * (n + 1) - at))
    return run_of({0: rows})


def found(run):
    return [one for one in diagnose(run).findings if one.id == "ESP408"]


def test_a_loop_is_named_and_priced_with_its_backward_pass():
    (finding,) = found(job(40))
    assert finding.title == "The same 3 operations run 40 times in a row; such loops take 2.52 ms of a step"
    assert finding.evidence["operations_in_loops_per_step"].value == {"0": 120}
    assert finding.saving_us == pytest.approx(40 * 3 * 21 + 40 * 30, abs=40)


def test_long_operations_of_a_loop_compute():
    run = job(15, took_us=80.0)
    (answer,) = what_if(run, build(run), ["loops=0"])
    gaps = 15 * 3 - 1
    assert answer.saving_us == pytest.approx(15 * 30 + gaps, abs=1)


@pytest.mark.parametrize(("items", "modules"), [(10, 1), (40, 40)])
def test_few_iterations_and_layers_of_a_model_are_none(items, modules):
    assert not any("in a row" in one.title for one in found(job(items, modules=modules)))


def rank_with(items: int):
    """Six steps of 10 ms of a rank: a loop over items, an operation of 2 ms, and an all-reduce that ends after 7 ms."""
    rows = []
    for n in range(6):
        begin = at = STEP * n
        rows += [step(n, at, at + STEP), python("nn.Module: GPT", at, 1)]
        for name in SMALL * items:
            rows.append(op(name, at, 20))
            at += 21
        rows += [op("aten::linear", at, 2_000), *gloo(at + 2_000, at + 2_005, begin + 7_000)]
        rows.append(op("aten::add_", begin + 7_000, 3_000))
    return rows


def test_a_loop_of_one_rank_delays_the_others():
    diagnosis = diagnose(run_of({0: rank_with(0), 1: rank_with(15)}))
    finding = diagnosis.findings[0]
    assert (finding.id, finding.ranks) == ("ESP201", (1,))
    assert finding.title.startswith(
        "Rank 1 delays the other ranks by loops that it alone runs. The same 3 operations run 15"
    )
    assert finding.saving_us == pytest.approx(15 * 3 * 21, rel=0.1)
    assert "ESP408" in {one.id for one in finding.symptoms}
    assert "ESP201" not in {one.id for one in diagnose(run_of({0: rank_with(15), 1: rank_with(15)})).findings}
