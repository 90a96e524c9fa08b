"""Hit rates of caches against a simulation, and against published figures."""

import numpy as np
import pytest

from esprof.replay.whatif.loading.hit_rates import POLICIES, fifo, lru, minio

ITEMS = 2000


def simulated(share: float, moves_hits: bool) -> float:
    """Hit rate of epochs after the first of a list that replaces its head; hits move to the end for LRU."""
    held, rng, hits, reads = dict[int, None](), np.random.default_rng(1), 0, 0
    for epoch in range(4):
        for item in rng.permutation(ITEMS).tolist():
            is_hit = item in held
            if epoch:
                hits, reads = hits + is_hit, reads + 1
            if is_hit and moves_hits:
                del held[item]
            if not is_hit and len(held) >= share * ITEMS:
                del held[next(iter(held))]
            held[item] = None
    return hits / reads


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 0.9])
def test_hit_rates_equal_simulated_caches(share):
    assert lru(share) == pytest.approx(simulated(share, moves_hits=True), abs=0.02)
    assert fifo(share) == pytest.approx(simulated(share, moves_hits=False), abs=0.02)


@pytest.mark.parametrize(
    ("share", "hits"), [(0.25, 0.0342), (0.35, 0.07), (0.5, 0.1534), (0.65, 0.2826), (0.9, 0.6697)]
)
def test_lru_misses_nearly_all_of_a_data_set_larger_than_the_cache(share, hits):
    assert lru(share) == pytest.approx(hits, abs=1e-4)
    assert minio(share) == share


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_cache_never_hits_and_a_full_one_always(policy):
    for hosts in (1, 3):
        assert POLICIES[policy](0.0, hosts) == 0
        assert POLICIES[policy](1.0, hosts) == 1
