"""ESP905 on a job with eight collectives a step, 1 MiB in 20 ms each, and measured curves that agree with it or not."""

import pytest

from esprof.analyzers.findings.evidence.unlike_probes import unlike_probes
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.replay import Replayed
from tests.cases.gloo_buckets import run_with
from tests.cases.probed import link, probes

MIB = 1 << 20
PER_BYTE = 20e6 / MIB


def found(*sweeps, sizes=(1,) * 8, buckets=(1,) * 8):
    run = run_with(sizes, buckets)
    run.probes = probes(*sweeps) if sweeps else None
    replayed = Replayed.of(run, max_error_pct=100)
    return list(unlike_probes(Case(replayed, RecordedJob(replayed.run))))


@pytest.mark.parametrize("times", [0.5, 2])
def test_collectives_that_differ_clearly_from_the_curve_are_reported(times):
    (cause,) = found(link(0, PER_BYTE / times))
    assert cause.evidence["recorded_over_measured"].value == pytest.approx(times, rel=0.01)
    assert cause.evidence["collectives"].value == 8
    assert cause.ranks == (0, 1)


def test_collectives_close_to_the_curve_are_not_reported():
    assert found(link(0, PER_BYTE)) == []
    assert found(link(0, PER_BYTE * 1.1)) == []


def test_nothing_is_reported_without_a_curve_of_the_same_collective():
    assert found() == []
    assert found(link(0, PER_BYTE / 2, name="all_gather")) == []


def test_nothing_is_reported_for_sizes_beyond_the_curve_or_few_collectives():
    assert found(link(0, PER_BYTE / 2, sizes=(1 << 10, 1 << 12))) == []
    assert found(link(0, PER_BYTE / 2), sizes=(1, 1), buckets=(2,)) == []
