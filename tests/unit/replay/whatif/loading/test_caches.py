"""What-ifs on caches, and on the order of reads, of a job whose steps wait for data."""

import numpy as np
import pytest

from esprof.core.errors import UsageError
from esprof.replay import Replayed
from esprof.replay.answer import WhatIf
from esprof.replay.whatif.loading.hit_curve import HitCurve
from esprof.run.run import Run
from tests.cases.loading import loading_job

ITEMS = 240
ROUNDS = np.concatenate([np.random.default_rng(n).permutation(ITEMS) for n in range(4)])
"""Keys of one pass in which each sample is read four times, once in each round."""


def answer(run: Run, scenario: str) -> WhatIf:
    (found,) = Replayed.of(run, max_error_pct=100).pricer.answers([scenario])
    return found


def step_ms(hits: float, missed: float = 1.0) -> float:
    """Step with this share of hits, if the recorded reads had `missed` from storage: 45 ms of a batch are reads."""
    return 15 + 45 * (1 - hits) / missed


@pytest.mark.parametrize(
    ("scenario", "policy"), [("cache=0.3", "minio"), ("cache[lru]=0.7", "lru"), ("cache[fifo]=0.5", "fifo")]
)
def test_hits_are_counted_in_the_recorded_reads_and_the_answer_says_so(scenario, policy):
    found = answer(loading_job(keys=ROUNDS), scenario)
    expected = HitCurve.of(ROUNDS, ITEMS).rate(policy, float(scenario.split("=")[1]))
    assert found.predicted_us == pytest.approx(1000 * max(20, step_ms(expected.rate)), rel=0.03)
    assert (
        f"{100 * expected.rate:.0f} % of the reads are hits, counted in {expected.reads} recorded reads" in found.note
    )


def test_without_recorded_reads_the_hits_follow_from_a_formula_and_the_answer_says_so():
    assert (
        "50 % of the reads are hits, by a formula: each pass reads each sample once"
        in answer(loading_job(), "cache=0.5").note
    )
    # So they do if less than a pass was recorded, which reads no sample twice.
    assert "by a formula" in answer(loading_job(keys=ROUNDS[:ITEMS]), "cache[lru]=0.5").note


def test_too_few_reads_that_are_no_fresh_shuffle_are_declined():
    assert "record two passes" in answer(loading_job(keys=np.arange(ITEMS)), "cache[lru]=0.5").reason


@pytest.mark.parametrize(
    ("scenario", "hits"),
    [
        ("order=sequential,cache[lru]=0.1", 0.75),
        ("order[1]=shuffle,cache[fifo]=0.1", 0.75),
        ("cache[lru]=0.1,order=sequential", 0.75),
    ],
)
def test_an_order_in_which_repeats_follow_each_other_has_their_hits(scenario, hits):
    found = answer(loading_job(keys=ROUNDS), scenario)
    assert found.predicted_us == pytest.approx(1000 * step_ms(hits), rel=0.03)


def test_a_cache_that_is_there_is_as_large_as_its_hits_show():
    """An LRU cache with 20 % of hits in these rounds holds about 56 % of the samples. Three of four reads are repeats."""
    run = loading_job(keys=ROUNDS, read_bytes=800_000, read_chars=1_000_000)
    assert answer(run, "order=sequential").predicted_us == pytest.approx(1000 * step_ms(0.75, missed=0.8), rel=0.03)
    # In another order each time, the cache answers a fifth of the first reads, too.
    assert answer(run, "order[1]=shuffle").predicted_us == pytest.approx(1000 * step_ms(0.8, missed=0.8), rel=0.05)


@pytest.mark.parametrize(
    ("more", "scenario", "reason"),
    [
        ({}, "order=shuffle", "record a map-style dataset with --sample-keys"),
        ({"keys": ROUNDS}, "order=shuffle", "add a cache, such as cache[lru]=0.2"),
        ({"keys": ROUNDS, "cpu_ms": 60}, "order=shuffle", "its time is CPU time"),
    ],
)
def test_an_order_needs_keys_and_a_cache(more, scenario, reason):
    assert reason in answer(loading_job(**more), scenario).reason


@pytest.mark.parametrize("scenario", ["order=random", "order[0]=shuffle", "order[x]=shuffle"])
def test_what_is_no_order_is_refused(scenario):
    with pytest.raises(UsageError):
        answer(loading_job(), scenario)
