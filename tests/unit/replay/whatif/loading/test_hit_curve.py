"""Hit curves of sequences of reads, against simulated caches, formulas and published figures."""

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.replay.whatif.loading import hit_curve
from esprof.replay.whatif.loading.hit_curve import HitCurve
from esprof.replay.whatif.loading.hit_rates import POLICIES
from esprof.replay.whatif.loading.orders import ReadOrder
from esprof.replay.whatif.loading.recorded_reads import RecordedReads
from tests.cases.caches import ACCESSES, KEYS, USES, embedding_accesses, simulated
from tests.cases.properties import thorough

SHARES = (0.05, 0.25, 0.5, 0.75, 0.9)


def shuffled(items: int, passes: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.permutation(items) for _ in range(passes)])


def zipf(items: int, reads: int) -> np.ndarray:
    """Reads with replacement, of which item n gets a share in proportion to 1 / n."""
    weight = 1 / np.arange(1, items + 1)
    return np.random.default_rng(0).choice(items, reads, p=weight / weight.sum())


def uniform(items: int, reads: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, items, reads)


def measured_lru(keys: np.ndarray, capacity: int, first: int) -> float:
    """Hit rate of a real LRU cache, that of the standard library, from read number `first` on."""
    cached = lru_cache(capacity)(lambda key: key)
    for key in keys[:first].tolist():
        cached(key)
    before = cached.cache_info().hits
    for key in keys[first:].tolist():
        cached(key)
    return (cached.cache_info().hits - before) / (len(keys) - first)


@pytest.mark.parametrize(
    "keys", [shuffled(400, 3), zipf(400, 2000), uniform(400, 2000)], ids=["epochs", "zipf", "uniform"]
)
def test_lru_rates_are_those_of_a_real_cache_for_every_size(keys):
    items = len(np.unique(keys))
    curve, known = HitCurve.of(keys, items), 0
    for capacity in range(1, items):
        found = curve.rate("lru", capacity / items)
        if found is not None:
            assert found.rate == pytest.approx(measured_lru(keys, capacity, len(keys) - found.reads)), capacity
            known += 1
    assert known > 0.9 * items


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("share", SHARES)
def test_counted_hits_of_fresh_shuffles_agree_with_the_formulas(policy, share):
    found = HitCurve.of(shuffled(5000, 6), 5000).rate(policy, share)
    assert found.rate == pytest.approx(POLICIES[policy](share, 1), abs=0.02)


def test_a_cache_that_never_replaces_keeps_the_items_that_were_read_first():
    keys = np.array([7, 7, 3, 5, 3, 9, 7, 3, 5, 9, 3, 7])
    # It holds 7 and 3; of the last eight reads five are of these.
    assert HitCurve.of(keys, 4).rate("minio", 0.5) == (5 / 8, 0, 8)


def test_reads_that_do_not_fill_the_cache_and_go_on_for_a_pass_are_too_few():
    assert HitCurve.of(shuffled(100, 1), 100).rate("lru", 0.5) is None
    keys = shuffled(100, 2)
    assert HitCurve.of(keys, 100).rate("lru", 0.5).reads == 100
    assert HitCurve.of(keys[:-51], 100).rate("lru", 0.5) is None
    # Of 1000 items 100 were read: nothing shows what a cache of 500 would hold.
    assert HitCurve.of(keys, 1000).rate("lru", 0.5) is None


def test_it_does_not_matter_where_in_a_pass_the_record_begins_and_ends():
    keys = shuffled(2000, 6)
    whole, part = HitCurve.of(keys, 2000), HitCurve.of(keys[700:-900], 2000)
    assert part.rate("lru", 0.6).rate == pytest.approx(whole.rate("lru", 0.6).rate, abs=0.02)


def test_an_empty_cache_never_hits_and_a_full_one_always():
    curve = HitCurve.of(shuffled(10, 1), 10)
    assert [curve.rate("lru", share).rate for share in (0, 0.01, 1)] == [0, 0, 1]


@pytest.mark.parametrize("reads", [zipf, uniform])
def test_sampled_distances_give_the_exact_rates_within_a_hundredth(reads, monkeypatch):
    """At least 8192 items are in each of the samples."""
    keys = reads(40_000, 400_000)
    items = len(np.unique(keys))
    exact = HitCurve.of(keys, items)
    monkeypatch.setattr(hit_curve, "MAX_EXACT", 100_000)
    monkeypatch.setattr(hit_curve, "_SAMPLED_READS", 1000)
    sampled = HitCurve.of(keys, items)
    assert sampled.is_sampled
    for share in SHARES:
        one, other = exact.rate("lru", share), sampled.rate("lru", share)
        assert other.rate == pytest.approx(one.rate, abs=0.01)
        assert abs(other.rate - one.rate) < other.margin < 0.05


def test_two_servers_of_75_gib_over_146_gib_read_what_was_published():
    """CoorDL (VLDB 2021): each epoch gives each server another random half. Without coordination a server reads 35.5 GiB
    from storage if its cache never replaces an item. With LRU it would be 49 GiB; with the page cache of Linux, which lies
    in between, 45 GiB were measured."""
    rng, items = np.random.default_rng(0), 14_600
    halves = [rng.permutation(items)[: items // 2] for _ in range(16)]
    curve = HitCurve.of(np.concatenate(halves), items, items // 2)
    for policy, read_gib in (("minio", 35.5), ("lru", 49.1)):
        assert 73 * (1 - curve.rate(policy, 75 / 146).rate) == pytest.approx(read_gib, abs=0.6)
        assert 73 * (1 - POLICIES[policy](75 / 146, 2)) == pytest.approx(read_gib, abs=0.6)
    assert 73 * (1 - POLICIES["minio"](75 / 146, 2)) == pytest.approx(35.5, abs=0.01)


@thorough()
@given(st.lists(st.integers(0, 12), min_size=1, max_size=80), st.sampled_from(sorted(POLICIES)))
def test_each_policy_hits_as_a_simulated_cache_of_every_size(reads, policy):
    keys = np.array(reads)
    items = len(np.unique(keys))
    for capacity in range(1, items):
        found = HitCurve.of(keys, items).rate(policy, capacity / items)
        if found is not None:
            hits = simulated(reads, capacity, policy)[len(reads) - found.reads :]
            assert found.rate == pytest.approx(np.mean(hits))


EMBEDDINGS = embedding_accesses(4000)
HOT_KEYS, HOT_ACCESSES = np.cumsum(KEYS)[:-1], np.cumsum(ACCESSES)[:-1]
"""Shares of the most used keys of the published tables, and of the accesses to them."""


def test_a_cache_of_the_most_used_rows_of_embedding_tables_hits_the_published_share():
    """It never replaces a row, and reads the most used ones first."""
    rng = np.random.default_rng(0)
    for keys, accesses in zip(HOT_KEYS, HOT_ACCESSES, strict=True):
        held = round(keys * 4000)
        first = np.searchsorted(EMBEDDINGS, np.arange(held))
        rest = rng.permutation(np.delete(EMBEDDINGS, first))
        curve = HitCurve.of(np.concatenate([np.arange(held), rest]), 4000)
        assert curve.rate("minio", keys).rate == pytest.approx(accesses, abs=0.01)


def test_rows_of_embedding_tables_in_sequential_order_miss_once_each():
    shuffled_reads = np.random.default_rng(0).permutation(EMBEDDINGS)
    reads = RecordedReads(shuffled_reads, np.zeros(len(shuffled_reads), np.int64), 4000)
    hits = reads.ordered(ReadOrder(shuffled=False)).curve.rate("lru", 1 / 4000).rate
    assert hits == pytest.approx(1 - 1 / USES, abs=0.002)


def test_lru_hits_more_than_fifo_and_less_than_the_most_used_rows():
    """As for independent accesses in general (van den Berg and Gandolfi, Journal of Applied Probability, 1992)."""
    curve = HitCurve.of(np.random.default_rng(0).permutation(np.tile(EMBEDDINGS, 2)), 4000)
    for keys, accesses in zip(HOT_KEYS, HOT_ACCESSES, strict=True):
        lru, fifo = (curve.rate(policy, keys).rate for policy in ("lru", "fifo"))
        assert fifo < lru < accesses + 0.005
