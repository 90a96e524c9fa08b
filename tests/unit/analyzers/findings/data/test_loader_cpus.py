"""ESP113: loader workers that use the CPUs for which training threads wait."""

import pytest

from esprof.analyzers import diagnose
from tests.cases.findings import ungrouped
from tests.cases.graph import EPOCH_NS, load_call, op, run_of, stage, step
from tests.cases.step_runs import step_table

MS, NS = 1000.0, 1_000_000
BOTH = (0, 1)


def job(batch_ms, *, ready_ms=40, cpus=(0, 1)):
    """Two ranks with six steps of 100 ms, in which the training thread runs for 50 ms and waits `ready_ms` for a CPU. Their
    batches are ready; a worker has made each in `batch_ms` of CPU time."""
    rows, stages = [], []
    for n in range(1, 7):
        at = 100 * MS * n
        rows += [step(n, at, at + 100 * MS), load_call(at, at + 10), op("aten::mm", at + 20, 99.9 * MS)]
        stages += [
            stage("fetch", n, at - 199 * MS, at - 160 * MS) | {"cpu_ns": round(batch_ms * NS)},
            stage("next", n, at, at + 10),
        ]
    steps = step_table(
        [100] * 6,
        start_ns=EPOCH_NS + 100 * NS,
        first=1,
        phase="timed",
        cpu_ns=[50 * NS] * 6,
        ready_ns=[ready_ms * NS] * 6,
    )
    return run_of(
        dict.fromkeys(BOTH, rows),
        stages=dict.fromkeys(BOTH, stages),
        steps=dict.fromkeys(BOTH, steps),
        cpus=dict.fromkeys(BOTH, cpus),
    )


def found(run):
    return [one for one in ungrouped(run) if one.id == "ESP113"]


def test_workers_that_take_the_cpus_are_named_before_the_wait():
    first = diagnose(job(40)).findings[0]
    assert (first.id, [one.id for one in first.symptoms]) == ("ESP113", ["ESP404"])
    assert first.saving_us == pytest.approx(40 * MS, rel=0.02)
    assert first.title == (
        "Loader workers use the CPUs for which ranks 0–1 wait up to 40.0 ms a step: batches take up to 40.0 ms of CPU "
        "time a step"
    )
    assert first.evidence["batch_cpu"].of(0) == 40 * NS
    assert first.evidence["cpus"].value == 2


def test_no_more_is_saved_than_the_workers_ran():
    (finding,) = found(job(24))
    assert finding.saving_us == pytest.approx(24 * MS, rel=0.02)


@pytest.mark.parametrize(
    "how",
    [
        {"batch_ms": 16},  # most of the wait has another cause
        {"batch_ms": 40, "cpus": tuple(range(8))},  # there are CPUs for all of that
        {"batch_ms": 40, "ready_ms": 2},  # hardly any wait
    ],
)
def test_other_waits_are_not_blamed_on_workers(how):
    assert found(job(**how)) == []
