"""ESP602 and ESP603: saves in the background."""

import pytest

from esprof.analyzers.findings.checkpoint.background_saves import RULE
from esprof.analyzers.recorded_job import RecordedJob
from tests.cases.saving_runs import job_that_saves


def found(**job):
    return list(RULE.of_job(RecordedJob(job_that_saves(**job))))


def test_steps_that_a_save_slows():
    (cause,) = found(stops_ms=1, writes_ms=300, slows_ms=20)
    assert cause.id == "ESP602"
    assert cause.title.endswith(" instead of 100.1 ms while a save is written in the background")
    assert 1e-6 * cause.measured.saving_ns == pytest.approx(0.2 * 20, rel=0.2)


def test_a_save_that_waits_for_the_one_before():
    (cause,) = found(every=2, usual_ms=60, stops_ms=80, writes_ms=250)
    assert cause.id == "ESP603"
    assert 1e-6 * cause.measured.saving_ns == pytest.approx(25, rel=0.1)
    assert cause.advice.startswith("Save every ")


@pytest.mark.parametrize(
    "job",
    [
        {"stops_ms": 1, "writes_ms": 300},
        {"stops_ms": 50},
        {"name": "forward"},
        {"steps": 20, "stops_ms": 1, "writes_ms": 300, "slows_ms": 20},
    ],
    ids=["as fast as others", "not in the background", "no saves", "few saves"],
)
def test_no_finding(job):
    assert found(**job) == []
