"""ESP112: ranks that train on other mixes of classes than chance explains."""

import pytest

from esprof.analyzers import diagnose
from esprof.run.run import Run
from tests.cases.graph import ddp_rank, op, run_of
from tests.cases.labels import labelled

SKEWED = {0: {0: 900, 1: 100}, 1: {0: 100, 1: 900}}
EVEN = {0: {0: 520, 1: 480}, 1: {0: 480, 1: 520}}


def job(norm: str | None = None) -> Run:
    own = [op(norm, 1_000.0, 100.0)] if norm else []
    return run_of({rank: [*ddp_rank(), *own] for rank in (0, 1)})


def found(labels, of: Run | None = None) -> list:
    return [one for one in diagnose(labelled(labels, of or job())).findings if one.id == "ESP112"]


def test_ranks_that_differ_are_reported_with_what_chance_explains():
    (finding,) = found(SKEWED)
    assert (finding.ranks, finding.severity, finding.confidence) == ((0, 1), "info", "high")
    assert "40 % of the samples of rank 0 would need another class" in finding.title
    assert finding.evidence["distance"].value == {"0": 0.4, "1": 0.4}
    assert finding.evidence["distance_by_chance"].of(0) == pytest.approx(0.009, abs=0.001)
    assert finding.evidence["samples"].value == {"0": 1000, "1": 1000}
    assert finding.evidence["its_share"].value == {"0": 0.9, "1": 0.1}
    assert finding.evidence["has_batch_norm"].value is False
    assert (finding.saving_us, finding.what_if) == (0.0, None)


def test_batch_norm_is_named():
    (finding,) = found(SKEWED, job("aten::batch_norm"))
    assert (finding.severity, finding.evidence["has_batch_norm"].value) == ("warning", True)
    assert "GroupNorm" in finding.advice


def test_batch_norm_that_exchanges_statistics_does_no_harm():
    (finding,) = found(SKEWED, job("aten::batch_norm_gather_stats_with_counts"))
    assert finding.evidence["has_batch_norm"].value is False


@pytest.mark.parametrize(
    "labels",
    [
        {},
        EVEN,
        {0: {0: 4, 1: 1}, 1: {0: 1, 1: 4}},  # Too few to be sure.
        {0: {0: 100_000, 1: 90_000}, 1: {0: 90_000, 1: 100_000}},  # Certain, but small.
    ],
)
def test_what_chance_explains_or_is_small_is_not_reported(labels):
    assert not found(labels)


def test_only_the_ranks_that_differ_are_named():
    even = {rank: {0: 500, 1: 500} for rank in range(7)}
    of = run_of({rank: ddp_rank() for rank in range(8)})
    (finding,) = found(even | {7: {0: 1000}}, of)
    assert finding.ranks == (7,)
    assert finding.title.startswith("rank 7 trains on another mix")
