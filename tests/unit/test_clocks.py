"""Clock offsets from the ends of collectives, on clocks that are wrong by known amounts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.trace.clocks import FEWEST, IGNORED, align
from esprof.types import NS_PER_MS, NS_PER_US

END_NS = 1_712_000_000_000_000_000


def ends(offsets_ns, count=50, noise_ns=10 * NS_PER_US, seed=0):
    """Ends of `count` collectives, a millisecond apart, as clocks `offsets_ns` ahead show them."""
    random = np.random.default_rng(seed)
    true = END_NS + np.arange(count) * NS_PER_MS
    return {
        rank: true + offset + random.integers(-noise_ns, noise_ns + 1, count) for rank, offset in enumerate(offsets_ns)
    }


def shifts(offsets_ns, hosts, **more):
    found = align(ends(offsets_ns, **more), dict(enumerate(hosts)))
    return [found[rank].shift_ns for rank in range(len(offsets_ns))]


@given(st.integers(1, 10_000), st.integers(0, 3))
def test_one_clock_ahead_is_set_back(ms, late):
    offsets = [ms * NS_PER_MS * (rank == late) for rank in range(4)]
    for rank, shift in enumerate(shifts(offsets, "abcd")):
        assert shift == pytest.approx(-offsets[rank], abs=20 * NS_PER_US)


def test_two_clocks_meet():
    one, other = shifts([0, 20 * NS_PER_MS], "ab")
    assert one - other == pytest.approx(20 * NS_PER_MS, abs=20 * NS_PER_US)


def test_ranks_of_a_host_are_moved_together():
    moved = shifts([0, 0, 5 * NS_PER_MS, 5 * NS_PER_MS, 0, 0], ["a", "a", "b", "b", "c", "c"])
    assert moved[2] == moved[3] == pytest.approx(-5 * NS_PER_MS, abs=20 * NS_PER_US)
    assert [moved[rank] for rank in (0, 1, 4, 5)] == [0, 0, 0, 0]


def test_ranks_of_unknown_hosts_are_moved_apart():
    moved = shifts([0, 0, 5 * NS_PER_MS], [None, None, None])
    assert moved[:2] == [0, 0]
    assert moved[2] == pytest.approx(-5 * NS_PER_MS, abs=20 * NS_PER_US)


def test_one_host_has_one_clock():
    assert shifts([0, 0, 5 * NS_PER_MS], ["a", "a", "a"]) == [0, 0, 0]


def test_an_offset_within_the_noise_is_left_alone():
    assert shifts([0, 0, IGNORED // 2], "abc") == [0, 0, 0]
    assert shifts([0, 0, IGNORED * 2], "abc", noise_ns=0) == [0, 0, -IGNORED * 2]


def test_too_few_collectives_say_nothing():
    found = align(ends([0, 20 * NS_PER_MS], count=FEWEST - 1), {0: "a", 1: "b"})
    assert {(offset.shift_ns, offset.residual_ns) for offset in found.values()} == {(0, None)}
    assert align({0: np.array([], np.int64)}, {0: None})[0].residual_ns is None
    assert align({}, {}) == {}


def test_the_residual_is_what_is_left_after_the_shift():
    found = align(ends([0, 0, 20 * NS_PER_MS], noise_ns=0), {0: "a", 1: "b", 2: "c"})
    assert [found[rank].residual_ns for rank in range(3)] == [0, 0, 0]
    same_host = align(ends([0, 0, 20 * NS_PER_MS], noise_ns=0), dict.fromkeys(range(3), "a"))
    assert same_host[2].residual_ns == 20 * NS_PER_MS


def test_stray_collectives_do_not_move_a_clock():
    stray = ends([0, 0, 0], noise_ns=0)
    stray[2][:10] += 30 * NS_PER_MS
    assert {offset.shift_ns for offset in align(stray, {0: "a", 1: "b", 2: "c"}).values()} == {0}
