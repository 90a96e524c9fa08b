"""Comparison of slow ranks with the others: more work, slower execution, or unknown."""

import numpy as np
import pytest

from esprof.analyzers import diagnose
from esprof.analyzers.findings.ranks.more_work import Comparison, compare
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.replay import Replayed
from esprof.run.run import Run
from tests.cases.findings import ungrouped
from tests.cases.graph import EPOCH_NS, Row, gloo, op, run_of, step
from tests.cases.step_runs import step_table

MS = 1000.0


def rank(forward_ms: float, optimizer_ms: float, operations: int = 1) -> list:
    """Steps of 100 ms: a forward pass, an all-reduce that ends at 70 ms, and the optimizer."""
    rows = []
    for n in range(7):
        at = n * 100 * MS
        rows += [step(n, at, at + 100 * MS)]
        rows += [op("aten::linear", at + k * forward_ms * MS, forward_ms * MS - 1) for k in range(operations)]
        rows += gloo(at + operations * forward_ms * MS, at + operations * forward_ms * MS + 5, at + 70 * MS)
        optimizer = Row(
            ph="X", cat="user_annotation", name="Optimizer.step#SGD.step", pid=100, tid=1, ts=at + 70 * MS, dur=25 * MS
        )
        rows += [optimizer, op("aten::_foreach_add_", at + 70 * MS + 10, optimizer_ms * MS)]
    return rows


def job(slow: list, usual: list | None = None, **columns) -> Run:
    """Two ranks, the second slow; `columns` of the steps table, a value for each of the ranks."""
    run = run_of({0: usual or rank(30, 5), 1: slow})
    steps = {
        of: step_table(
            [100] * 7, start_ns=EPOCH_NS, phase="timed", **{name: [v[of]] * 7 for name, v in columns.items()}
        )
        for of in (0, 1)
    }
    return Run(run.meta, lambda name, of: steps[of] if name == "steps" else run.recorded(name, of))


def straggler(run: Run):
    return next(one for one in diagnose(run).findings if one.id.startswith("ESP20"))


def compared_with(run: Run) -> Comparison:
    """Rank 1 against the others."""
    return compare(Case(Replayed.of(run), RecordedJob(run)), [1])


def test_a_rank_with_more_tokens_has_more_work():
    found = straggler(job(rank(60, 5), tokens=(100, 200)))
    assert found.title == "Rank 1 delays the other ranks: more work: 2.0 times the tokens"
    assert "has more work" in found.advice
    assert found.evidence["work_ratio"].value == 2
    assert found.evidence["compute_time_ratio"].value > 1.5


@pytest.mark.parametrize(("cpu_ms", "expected"), [((35, 65), "more work"), ((35, 37), "with the same amount of work")])
def test_longer_compute_without_more_cpu_time_is_the_same_work(cpu_ms, expected):
    """A quota throttles the rank, but not in its optimizer."""
    found = straggler(job(rank(60, 5), cpu_ns=[ms * 1_000_000 for ms in cpu_ms]))
    assert expected in found.title


def test_a_rank_with_equal_tokens_and_operations_is_slower():
    found = straggler(job(rank(60, 9), rank(30, 6), tokens=(320, 320)))
    assert found.title == "Rank 1 delays the other ranks: slower compute, with the same amount of work"
    assert "needs more time for the same work" in found.advice


def test_equal_numbers_of_samples_do_not_prove_equal_work():
    found = straggler(job(rank(60, 5), samples=(32, 32)))
    assert found.title == "Rank 1 delays the other ranks: more work"
    unknown = straggler(job(rank(60, 7.2), samples=(32, 32)))
    assert unknown.title == "Rank 1 delays the other ranks: slower compute"


def test_an_optimizer_that_takes_as_long_indicates_more_work():
    found = straggler(job(rank(60, 5)))
    assert found.title.endswith("more work")
    assert found.evidence["optimizer_time_ratio"].value == pytest.approx(1)


def test_an_optimizer_that_takes_longer_too_indicates_slower_execution():
    assert "with the same amount of work" in straggler(job(rank(60, 10))).title


def test_more_operations_are_more_work():
    compared = compared_with(job(rank(20, 5, operations=3), rank(20, 5)))
    assert (compared.unit, compared.amount) == ("operations", pytest.approx(5 / 3))
    assert compared.is_more_work


@pytest.mark.parametrize("optimizer_ms", [0.1, 7.2])
def test_the_title_states_neither_without_evidence(optimizer_ms):
    # An optimizer is no evidence if it is very short, or if it is slower by half as much as everything else.
    usual = rank(30, min(optimizer_ms, 5))
    found = straggler(job(rank(60, optimizer_ms), usual))
    assert found.title == "Rank 1 delays the other ranks: slower compute"
    assert np.isfinite(found.evidence["compute_time_ratio"].value)


def test_one_slow_operation_is_neither_more_work_nor_a_slower_device():
    def rows(slow_ms: float) -> list:
        found = []
        for n in range(7):
            at = n * 100 * MS
            found += [
                step(n, at, at + 100 * MS),
                op("aten::gelu", at, slow_ms * MS),
                op("aten::linear", at + 40 * MS, 20 * MS),
            ]
            found += gloo(at + 65 * MS, at + 65 * MS + 5, at + 70 * MS)
            optimizer = Row(
                ph="X",
                cat="user_annotation",
                name="Optimizer.step#SGD.step",
                pid=100,
                tid=1,
                ts=at + 70 * MS,
                dur=9 * MS,
            )
            found += [optimizer, op("aten::_foreach_add_", at + 70 * MS + 10, 5 * MS)]
        return found

    assert compared_with(job(rows(30), rows(10))).is_more_work is None


def pausing(gap_ms: float, forward_ms: list[float]) -> list:
    """Steps of 100 ms: a pause and a forward pass of this length, an all-reduce that ends at 70 ms, and 25 ms of work."""
    rows = []
    for n, forward in enumerate(forward_ms):
        at, ready = n * 100 * MS, (n * 100 + 1 + gap_ms + forward) * MS
        rows += [
            step(n, at, at + 100 * MS),
            op("zero_grad", at, MS),
            op("aten::linear", ready - forward * MS, forward * MS - 1),
            *gloo(ready, ready + 5, at + 70 * MS),
            op("aten::add_", at + 70 * MS + 10, 25 * MS),
        ]
    return rows


@pytest.mark.parametrize(("longer", "id"), [(0, "ESP201"), (12, "ESP202")], ids=["scatters", "is longer"])
def test_compute_that_only_scatters_is_not_slower(longer, id):
    """Some forward passes of rank 1 are longer and as many shorter; its pauses are longer in each step."""
    scattered = [25 + longer + by for by in (8, -8, 8, -8, 8, -8, 0)]
    run = job(pausing(6, scattered), pausing(1, [25] * 7))
    (found,) = (one for one in ungrouped(run) if one.id.startswith("ESP20"))
    assert found.id == id
    assert found.evidence["delay_alone"].value["1"] > found.evidence["delay_alone_next_rank"].value
