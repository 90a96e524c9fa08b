"""ESP308: models that stay alike for several steps."""

import pytest

from esprof.analyzers.findings.communication.accuracy_losses import accuracy_losses
from esprof.replay.replayed import Replayed
from esprof.run.run import Run
from tests.cases.findings import ungrouped
from tests.cases.gloo_buckets import run_with
from tests.cases.graph import run_of
from tests.cases.labels import travelled

UPDATE = "Optimizer.step#SGD.step"


def job(loss_by_every: dict[int, float], comparisons: int = 3) -> Run:
    """Two ranks whose own models are right in 90 % of their samples."""
    rows = [
        (100 * every + number, every, 0.9, 0.9 - loss - 0.01 * (number % 2))
        for every, loss in loss_by_every.items()
        for number in range(comparisons)
    ]
    return travelled({0: rows, 1: rows}, run_with((1, 1, 2), (1, 1, 1), last=UPDATE))


def found(run: Run) -> list:
    return [one for one in ungrouped(Replayed.of(run)) if one.id == "ESP308"]


def test_the_largest_number_of_steps_that_keeps_models_alike_is_advised():
    (finding,) = found(job({2: 0.0, 8: 0.01, 32: 0.2}))
    assert finding.what_if == "sync_every=8"
    assert finding.evidence["steps_apart"].value == 8
    assert finding.evidence["accuracy_loss"].value == pytest.approx(0.01 + 0.01 / 3, abs=1e-4)
    assert 0.02 < finding.evidence["accuracy_loss_at_most"].value < 0.05
    assert finding.evidence["too_far_apart"].value == "32"
    # A step of 96 ms has 58 ms of all-reduces that are not hidden; an average takes 80 ms, an eighth of it in each step.
    assert finding.saving_us == pytest.approx(1000 * (58 - 80 / 8), rel=0.02)


@pytest.mark.parametrize(
    ("losses", "comparisons"),
    [
        ({}, 3),
        ({8: 0.2}, 3),  # Models differ too much.
        ({8: 0.045}, 3),  # They may differ too much.
        ({1: 0.0}, 3),  # They are averaged in each step.
        ({8: 0.0}, 2),  # Two comparisons are too few.
    ],
)
def test_other_models_are_not(losses, comparisons):
    assert not found(job(losses, comparisons))


def test_a_job_without_gradients_to_exchange_gets_no_advice():
    rows = [(number, 8, 0.9, 0.9) for number in range(3)]
    assert not found(travelled({0: rows, 1: rows}))


def test_a_comparison_that_a_rank_lacks_is_left_out():
    both, one = (1, 4, 0.9, 0.8), (2, 4, 0.9, 0.1)
    assert accuracy_losses(travelled({0: [both, one], 1: [(1, 4, 0.7, 0.5)]}))[4].tolist() == pytest.approx([0.15])
    assert accuracy_losses(run_of({0: []})) == {}
