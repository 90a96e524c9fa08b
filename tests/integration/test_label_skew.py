"""Ranks that train on digits dealt by label, over gloo: their labels, and how far their models drift apart."""

import json
import sys
from pathlib import Path

import pytest

from esprof.analyzers import diagnose
from esprof.analyzers.findings.communication.accuracy_losses import accuracy_losses
from esprof.analyzers.findings.data.label_mixes import LabelMixes
from esprof.replay.replayed import Replayed
from tests.cases.record import JOBS, Ended, ranks, record, run

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
JOB = ROOT / "benchmarks" / "jobs" / "skewed.py"


def recorded(folder: Path, *options: object) -> Ended:
    ended = record(
        folder / "run", ranks(2, JOB, *options), {"PYTHONPATH": str(ROOT)}, skip=3, warmup=1, steps=10, stack_steps=0
    )
    assert ended.code == 0, ended.stderr
    return ended


@pytest.fixture(scope="module")
def by_label(tmp_path_factory) -> Ended:
    """Each rank has five classes of its own."""
    return recorded(tmp_path_factory.mktemp("by_label"), "--share", 1, "--norm", "batch", "--apart", 2, 48)


@pytest.fixture(scope="module")
def at_random(tmp_path_factory) -> Ended:
    return recorded(tmp_path_factory.mktemp("at_random"), "--share", 0, "--apart", 2, 48)


def test_labels_tell_which_ranks_differ(by_label, at_random):
    mixes = LabelMixes.of(by_label.run)
    steps = 40 + 5 * (2 + 48)
    assert mixes.counts.sum(axis=1).tolist() == [32 * steps] * 2
    # All digits by label: 1 - 1/2, but for classes of unlike size.
    assert mixes.distance.tolist() == pytest.approx([0.5, 0.5], abs=0.02)
    (finding,) = [one for one in diagnose(by_label.run).findings if one.id == "ESP112"]
    assert (finding.ranks, finding.severity) == ((0, 1), "warning")
    assert finding.evidence["has_batch_norm"].value is True
    assert "ESP112" not in {one.id for one in diagnose(at_random.run).findings}
    assert LabelMixes.of(at_random.run).excess.max() < 0.05


def test_models_drift_apart_with_the_steps_apart_and_the_labels(by_label, at_random):
    (skewed, printed), (even, _) = (
        (accuracy_losses(ended.run), json.loads(ended.stdout)) for ended in (by_label, at_random)
    )
    assert {every: losses.tolist() for every, losses in skewed.items()} == {
        int(every): pytest.approx(one["losses"]) for every, one in printed.items()
    }
    assert skewed[48].mean() > 0.2 > 0.05 > even[48].mean()
    assert skewed[48].mean() > skewed[2].mean() + 0.1


def test_the_time_of_local_steps_is_predicted_from_the_steps_together(at_random):
    pricer = Replayed.of(at_random.run, max_error_pct=100.0).pricer
    (answer, often) = pricer.answers(["sync_every=8", "sync_every=2"])
    assert (answer.answered, often.answered) == (True, True), answer.reason
    assert answer.predicted_us < often.predicted_us


def test_batches_of_unlike_shapes_and_scores_that_are_none_are_refused():
    ended = run(ranks(2, JOBS / "wrong_travels.py"))
    assert ended.code == 0, ended.stderr
    assert ended.stdout.count("batches of the ranks differ in shapes or types") == 2
    assert ended.stdout.count("scores must be from 0 to 1") == 2
    assert ended.stdout.count("every is 0, but must be at least 1") == 2


def test_without_other_ranks_there_is_nothing_to_compare():
    code = "import esprof, torch; esprof.labels([1, 2]); esprof.ModelTravel((torch.zeros(1),), None)"
    ended = run([sys.executable, "-c", code])
    assert ended.code == 1
    assert "no process group of several ranks" in ended.stderr
