"""Unequal batches for plain data-parallel training on unequal devices, on synthetic runs."""

import pytest

from esprof.analyzers.advisors.job.batches import advise_batches
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.errors import EsprofError
from esprof.replay.replayed import Replayed
from esprof.reports.terminal.advice.placement import draw_batches
from tests.cases.elastic_runs import elastic_run

# Two ranks with one unrecorded "EST" each represent plain data-parallel training, with 4 samples per rank.
ONE_EACH = [[0], [1]]


def advised(run):
    return advise_batches(Replayed.of(run), JobSteps(run))


def test_the_faster_rank_gets_more_samples():
    found = advised(elastic_run(ONE_EACH, (10_000, 30_000), records_ests=False))
    assert [rank.samples for rank in found.decision] == [6, 2]
    assert [rank.weight for rank in found.decision] == [1.5, 0.5]  # The mean of all samples stays the mean.
    assert found.value == pytest.approx(15_000 + 60, rel=0.01)
    assert found.is_worth_it
    assert found.samples_below < 8
    assert "the training script must change" in draw_batches(found)


def test_equal_ranks_have_no_plan():
    found = advised(elastic_run(ONE_EACH, (10_000, 10_000), records_ests=False))
    assert [rank.samples for rank in found.decision] == [4, 4]
    assert not found.is_worth_it
    assert "No change recommended" in draw_batches(found)


def test_a_single_rank_is_rejected():
    with pytest.raises(EsprofError, match="number of samples"):
        advised(elastic_run([[0]], (10_000,), records_ests=False))
