"""The distance of ranks' mixes of classes from that of all, and what chance makes of it."""

import math

import numpy as np
import pytest

from esprof.analyzers.findings.data.label_mixes import LabelMixes
from tests.cases.labels import labelled

CLASSES = np.arange(10)


def mixes(counts: np.ndarray) -> LabelMixes:
    return LabelMixes(tuple(range(len(counts))), np.arange(counts.shape[1]), counts)


def dealt(share: float, ranks: int, samples: int, seed: int = 0) -> np.ndarray:
    """Samples of ten equal classes of which `share` are dealt by label, the others at random."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(CLASSES, samples // 10))
    rank = np.where(np.arange(samples) < share * samples, labels % ranks, random.integers(ranks, size=samples))
    return np.array([np.bincount(labels[rank == one], minlength=10) for one in range(ranks)])


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8, 1.0])
def test_a_share_dealt_by_label_is_the_distance_but_for_ones_own_part(share):
    found = mixes(dealt(share, ranks=5, samples=200_000))
    assert found.distance == pytest.approx(np.full(5, share * (1 - 1 / 5)), abs=0.01)
    assert found.excess.min() > 0.1
    assert found.p_value < 1e-9


@pytest.mark.parametrize(("samples", "expected"), [(100, 0.120), (1_000, 0.037), (10_000, 0.012)])
def test_chance_beside_many_other_samples_has_a_closed_form(samples, expected):
    """Of ten equal classes: Σ sqrt(2 p (1 - p) / (π n)) / 2."""
    counts = np.array([[samples // 10] * 10, [10**9] * 10])
    assert mixes(counts).by_chance[0] == pytest.approx(expected, abs=0.001)
    assert mixes(counts).by_chance[0] == pytest.approx(5 * math.sqrt(2 * 0.1 * 0.9 / (math.pi * samples)), rel=1e-4)


@pytest.mark.parametrize(("ranks", "samples"), [(2, 500), (4, 1_000), (8, 8_000)])
def test_chance_is_what_random_ranks_have_on_average(ranks, samples):
    found = [mixes(dealt(0.0, ranks, samples, seed)) for seed in range(200)]
    ratio = np.mean([one.distance.mean() for one in found]) / np.mean([one.by_chance.mean() for one in found])
    assert ratio == pytest.approx(1.0, abs=0.03)


def test_random_ranks_are_seldom_significant():
    p_values = np.array([mixes(dealt(0.0, 4, 2_000, seed)).p_value for seed in range(100)])
    assert np.count_nonzero(p_values < 0.01) <= 6
    assert 0.35 < p_values.mean() < 0.65


def test_equal_mixes_have_no_distance():
    found = mixes(np.array([[30, 10], [3, 1]]))
    assert (found.distance.tolist(), found.p_value) == ([0.0, 0.0], 1.0)


def test_ranks_may_have_classes_of_their_own():
    found = LabelMixes.of(labelled({0: {7: 5}, 1: {2: 5, 9: 5}}))
    assert (found.ranks, found.classes.tolist()) == ((0, 1), [2, 7, 9])
    assert found.counts.tolist() == [[0, 5, 0], [5, 0, 5]]
    assert found.distance.tolist() == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize("labels", [{}, {0: {1: 5}}, {0: {1: 5}, 1: {}}, {0: {1: 5}, 1: {1: 0}}])
def test_a_single_rank_with_labels_tells_nothing(labels):
    assert LabelMixes.of(labelled(labels)) is None
