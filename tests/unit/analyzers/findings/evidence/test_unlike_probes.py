"""ESP905 on jobs with eight transfers a step, 1 MiB in 20 ms each, and on links that were measured as fast, or not."""

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
def test_transfers_that_are_clearly_not_what_was_measured_are_told(times):
    (cause,) = found(link(0, PER_BYTE / times))
    assert cause.evidence["recorded_over_measured"].value == pytest.approx(times, rel=0.01)
    assert cause.evidence["collectives"].value == 8
    assert cause.ranks == (0, 1)


def test_transfers_like_those_that_were_measured_are_not():
    assert found(link(0, PER_BYTE)) == []
    assert found(link(0, PER_BYTE * 1.1)) == []


def test_without_probes_or_of_another_collective_nothing_is_said():
    assert found() == []
    assert found(link(0, PER_BYTE / 2, name="all_gather")) == []


def test_sizes_beyond_the_curve_and_few_transfers_tell_nothing():
    assert found(link(0, PER_BYTE / 2, sizes=(1 << 10, 1 << 12))) == []
    assert found(link(0, PER_BYTE / 2), sizes=(1, 1), buckets=(2,)) == []
