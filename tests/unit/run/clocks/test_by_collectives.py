"""Clocks from the ends of collectives, on clocks that are wrong by known amounts; and transfer times on them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esprof.core.types import NS_PER_MS, NS_PER_S, NS_PER_US
from esprof.run.clocks.by_collectives import SKEW_NS, Clocks, HostClock, MatchedCalls, align_hosts, fit_communication
from esprof.run.clocks.fit import MIN_COLLECTIVES, MIN_COLLECTIVES_FOR_DRIFT, MIN_SPAN_FOR_DRIFT_NS

EPOCH_NS = 1_712_000_000_000_000_000
EVERY_MS = 2


def calls_of(groups, count=50, noise_ns=10 * NS_PER_US, every_ns=EVERY_MS * NS_PER_MS, seed=0):
    """`count` collectives of 300 µs in each of `groups` (lists of ranks), by turns, on true clocks.

    Each rank ends within `noise_ns` of the true end, either way.
    """
    random = np.random.default_rng(seed)
    rows = [
        (rank, n * len(groups) + g, EPOCH_NS + (n * len(groups) + g) * every_ns // len(groups))
        for n in range(count)
        for g, ranks in enumerate(groups)
        for rank in ranks
    ]
    rank, collective, end = np.array(rows, np.int64).T
    end += random.integers(-noise_ns, noise_ns + 1, len(end))
    return MatchedCalls(rank, collective, end - 300 * NS_PER_US, end)


def wrong(calls, offsets_ns, drifts_ppm=None):
    """`calls` as clocks show them that are ahead by `offsets_ns` by rank, and gain `drifts_ppm` from the first on."""
    by = np.array(offsets_ns, np.int64)[calls.rank]
    gain = np.array(drifts_ppm or [0.0] * len(offsets_ns))[calls.rank] * 1e-6
    shown = [
        times + by + np.rint((times - EPOCH_NS) * gain).astype(np.int64) for times in (calls.start_ns, calls.end_ns)
    ]
    return MatchedCalls(calls.rank, calls.collective, *shown)


def apart(names):
    return dict(enumerate(names))


def shifts(offsets_ns, hosts, **more):
    calls = wrong(calls_of([list(range(len(offsets_ns)))], **more), offsets_ns)
    clocks = align_hosts(calls, apart(hosts))
    return [clocks.correction_ns(rank) for rank in range(len(offsets_ns))]


# Offsets


@given(st.integers(1, 10_000), st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_one_clock_ahead_is_set_back(ms, late):
    offsets = [ms * NS_PER_MS * (rank == late) for rank in range(4)]
    for rank, shift in enumerate(shifts(offsets, "abcd")):
        assert shift == pytest.approx(-offsets[rank], abs=10 * NS_PER_US)


@given(st.lists(st.integers(-50 * NS_PER_MS, 50 * NS_PER_MS), min_size=4, max_size=4))
@settings(max_examples=20, deadline=None)
def test_offsets_are_found_wherever_the_clocks_stood(offsets):
    calls = calls_of([[0, 1, 2, 3]])
    found = [align_hosts(some, apart("abcd")).hosts for some in (calls, wrong(calls, offsets))]
    before, after = (np.array([clock.offset_ns for clock in clocks]) for clocks in found)
    moved = after - before - offsets
    assert np.ptp(moved) <= 10


def test_a_clock_an_hour_ahead_is_set_back():
    assert shifts([0, 0, 3600 * NS_PER_S], "abc", noise_ns=0) == [0, 0, -3600 * NS_PER_S]


def test_two_clocks_meet():
    one, other = shifts([0, 20 * NS_PER_MS], "ab")
    assert one - other == pytest.approx(20 * NS_PER_MS, abs=10 * NS_PER_US)


def test_ranks_of_a_host_are_moved_together():
    moved = shifts([0, 0, 5 * NS_PER_MS, 5 * NS_PER_MS, 0, 0], ["a", "a", "b", "b", "c", "c"])
    assert moved[2] == moved[3] == pytest.approx(-5 * NS_PER_MS, abs=10 * NS_PER_US)
    assert [moved[rank] for rank in (0, 1, 4, 5)] == [0, 0, 0, 0]


def test_ranks_of_unknown_hosts_are_moved_apart():
    calls = wrong(calls_of([[0, 1, 2]]), [0, 0, 5 * NS_PER_MS])
    clocks = align_hosts(calls, dict.fromkeys(range(3)))
    assert [clock.host for clock in clocks.hosts] == ["rank 0", "rank 1", "rank 2"]
    assert [clock.moved for clock in clocks.hosts] == [False, False, True]
    assert clocks.correction_ns(2) == pytest.approx(-5 * NS_PER_MS, abs=10 * NS_PER_US)


def test_one_host_has_one_clock():
    assert shifts([0, 0, 5 * NS_PER_MS], "aaa") == [0, 0, 0]


def test_a_clock_that_is_nearly_right_is_left_alone():
    assert shifts([0, 0, SKEW_NS - 1], "abc", noise_ns=0) == [0, 0, 0]
    assert shifts([0, 0, SKEW_NS], "abc", noise_ns=0) == [0, 0, -SKEW_NS]


@pytest.mark.parametrize("wrong_us", [-320, 320])
def test_a_clock_that_was_set_right_is_not_moved_by_ranks_that_leave_in_a_fixed_order(wrong_us):
    """A collective of 300 µs tells no more than that, and the clocks were known to 30 µs."""
    calls = wrong(calls_of([[0, 1]], noise_ns=0), [0, wrong_us * NS_PER_US])
    for errors_us, moved in (((0, None), True), ((0, 30), False), ((10, 20), False), ((0, 10), True)):
        errors = {rank: us and us * NS_PER_US for rank, us in enumerate(errors_us)}
        clocks = align_hosts(calls, apart("ab"), errors)
        assert any(clock.moved for clock in clocks.hosts) == moved


# What bends an offset


def test_stray_collectives_do_not_move_a_clock():
    calls = calls_of([[0, 1, 2]])
    stray = (calls.rank == 2) & (calls.collective < 10)
    calls.end_ns[stray] += 30 * NS_PER_MS
    for clock in align_hosts(calls, apart("abc")).hosts:
        assert abs(clock.offset_ns) < 10 * NS_PER_US


def test_a_rank_that_always_leaves_late_bends_the_clocks_by_no_more_than_that():
    """Ranks leave a ring one after the other: nothing tells that from a clock that is ahead."""
    calls = calls_of([list(range(8))])
    calls.end_ns[:] += calls.rank * 20 * NS_PER_US // 7
    for clock in align_hosts(calls, apart("abcdefgh")).hosts:
        assert abs(clock.offset_ns) < 20 * NS_PER_US
        assert not clock.moved


# Groups of some of the ranks


def test_two_hosts_meet_through_a_third():
    clocks = align_hosts(wrong(calls_of([[0, 1], [1, 2]]), [0, 7 * NS_PER_MS, -9 * NS_PER_MS]), apart("abc"))
    assert clocks.untied == ()
    assert clocks.correction_ns(0) - clocks.correction_ns(2) == pytest.approx(-9 * NS_PER_MS, abs=10 * NS_PER_US)
    assert clocks.correction_ns(0) - clocks.correction_ns(1) == pytest.approx(7 * NS_PER_MS, abs=10 * NS_PER_US)


def test_a_long_chain_of_hosts_is_straightened():
    offsets = np.random.default_rng(1).integers(-50 * NS_PER_MS, 50 * NS_PER_MS, 30)
    pairs = [[rank, rank + 1] for rank in range(29)]
    clocks = align_hosts(wrong(calls_of(pairs, noise_ns=0), offsets), {rank: f"node{rank}" for rank in range(30)})
    left = [offsets[rank] + clocks.correction_ns(rank) for rank in range(30)]
    assert np.ptp(left) <= 10


def test_hosts_that_share_nothing_are_named_and_aligned_among_themselves():
    calls = wrong(calls_of([[0, 1, 2], [3, 4]]), [0, 0, 3 * NS_PER_MS, 0, 8 * NS_PER_MS])
    clocks = align_hosts(calls, apart("abcde"))
    assert [clock.host for clock in clocks.untied] == ["d", "e"]
    assert clocks.correction_ns(2) == pytest.approx(-3 * NS_PER_MS, abs=10 * NS_PER_US)
    assert clocks.correction_ns(3) - clocks.correction_ns(4) == pytest.approx(8 * NS_PER_MS, abs=10 * NS_PER_US)


def test_the_clock_of_the_job_is_that_of_most_ranks():
    pair = {rank: "left" if rank < 7 else "right" for rank in range(3, 11)}
    clocks = align_hosts(calls_of([[0, 1, 2], list(pair)]), apart("abc") | pair)
    assert [clock.host for clock in clocks.untied] == ["a", "b", "c"]


def test_too_few_collectives_tie_no_clocks():
    def clocks(count):
        return align_hosts(wrong(calls_of([[0, 1, 2], [2, 3]], count), [0, 0, 0, 9 * NS_PER_MS]), apart("abcd"))

    few, enough = clocks(MIN_COLLECTIVES - 1), clocks(MIN_COLLECTIVES)
    assert [clock.host for clock in few.untied] == ["b", "c", "d"]
    assert [few.correction_ns(rank) for rank in range(4)] == [0, 0, 0, 0]
    assert enough.untied == ()
    assert enough.correction_ns(3) == pytest.approx(-9 * NS_PER_MS, abs=30 * NS_PER_US)


def test_a_run_without_collectives_has_its_clocks_as_they_are():
    none = MatchedCalls(*(np.array([], np.int64) for _ in range(4)))
    clocks = align_hosts(none, apart("ab"))
    assert [clock.host for clock in clocks.untied] == ["b"]
    assert clocks.apply(1, np.array([EPOCH_NS])).tolist() == [EPOCH_NS]
    assert fit_communication(none.on(clocks)).residuals == {}


# Drift


def drifting(count=120, window_ns=12 * NS_PER_S, drifts_ppm=(0.0, 0.0, 20.0), offsets_ns=(0, 0, 0), **more):
    calls = calls_of([[0, 1, 2]], count, every_ns=window_ns // (count - 1), **more)
    shown = wrong(calls, offsets_ns, list(drifts_ppm))
    return calls, shown, align_hosts(shown, apart("abc"))


@pytest.mark.parametrize("offset_ns", [0, 50 * NS_PER_MS, 3600 * NS_PER_S])
def test_a_clock_that_gains_is_held(offset_ns):
    true, shown, clocks = drifting(offsets_ns=(0, 0, offset_ns), noise_ns=50 * NS_PER_US)
    assert [clock.drift_ppm for clock in clocks.hosts] == pytest.approx([0, 0, 20], abs=2)
    away = shown.on(clocks).end_ns - true.end_ns
    assert np.abs(away - np.median(away)).max() < 30 * NS_PER_US


def test_a_gain_is_left_alone_while_it_moves_nothing():
    _, _, clocks = drifting(drifts_ppm=(0, 0, 2.0), noise_ns=0)
    assert clocks.hosts[2].drift_ppm == pytest.approx(2, abs=0.1)
    assert not clocks.hosts[2].moved


@pytest.mark.parametrize(
    ("count", "window_ns"), [(120, MIN_SPAN_FOR_DRIFT_NS - NS_PER_S), (MIN_COLLECTIVES_FOR_DRIFT - 1, 12 * NS_PER_S)]
)
def test_a_short_window_tells_no_drift(count, window_ns):
    _, _, clocks = drifting(count, window_ns)
    assert [clock.drift_ppm for clock in clocks.hosts] == [0, 0, 0]


def test_clocks_hours_apart_make_no_window_longer():
    _, _, clocks = drifting(window_ns=NS_PER_S, offsets_ns=(0, 0, 3600 * NS_PER_S))
    assert [clock.drift_ppm for clock in clocks.hosts] == [0, 0, 0]


def picked(calls, mask):
    return MatchedCalls(calls.rank[mask], calls.collective[mask], calls.start_ns[mask], calls.end_ns[mask])


def test_a_host_seen_too_seldom_is_said_to_have_no_drift():
    calls = calls_of([[0, 1, 2]], 120, every_ns=NS_PER_S // 10)
    shown = wrong(calls, [-NS_PER_MS, NS_PER_MS, 0], [0.0, 20.0, 30.0])
    clocks = align_hosts(picked(shown, (calls.rank < 2) | (calls.collective % 10 == 0)), apart("abc"))
    drifts = [clock.drift_ppm for clock in clocks.hosts]
    assert abs(drifts[1] - drifts[0]) == pytest.approx(20, abs=2)
    assert drifts[2] == 0


def test_a_drift_is_not_taken_for_an_offset():
    """Most collectives are at the beginning; in the middle of the window the clock is right."""
    calls = calls_of([[0, 1, 2]], 240, every_ns=NS_PER_S // 20, noise_ns=0)
    shown = wrong(calls, [0, 0, -120 * NS_PER_US], [0, 0, 20.0])
    clocks = align_hosts(picked(shown, (calls.collective < 80) | (calls.collective % 5 == 4)), apart("abc"))
    assert clocks.hosts[2].offset_ns == pytest.approx(0, abs=NS_PER_US)
    assert clocks.hosts[2].moved


# Applying it


@given(st.lists(st.integers(-60 * NS_PER_S, 60 * NS_PER_S), min_size=2), st.floats(-500, 500))
@settings(deadline=None)
def test_times_keep_their_order(around, drift_ppm):
    clocks = Clocks(EPOCH_NS, (HostClock("a", (0,), offset_ns=-123_456_789, drift_ppm=drift_ppm, moved=True),))
    times = EPOCH_NS + np.sort(np.array(around, np.int64))
    assert (np.diff(clocks.apply(0, times)) >= 0).all()


def test_times_are_set_to_the_nanosecond():
    ahead = HostClock("a", (0, 2), offset_ns=1_001, moved=True)
    fast = HostClock("b", (1,), offset_ns=-5, drift_ppm=20.0, moved=True)
    left = HostClock("c", (3,), offset_ns=40_000, drift_ppm=1.0)
    clocks = Clocks(EPOCH_NS, (ahead, fast, left))
    times = EPOCH_NS + np.array([0, NS_PER_S, 7], np.int64)
    assert (clocks.apply(2, times) - EPOCH_NS).tolist() == [-1_001, NS_PER_S - 1_001, 7 - 1_001]
    assert (clocks.apply(1, times) - EPOCH_NS).tolist() == [5, NS_PER_S + 5 - 20_000, 12]
    assert (clocks.apply(3, times) - EPOCH_NS).tolist() == [0, NS_PER_S, 7]
    assert [clocks.correction_ns(rank) for rank in range(4)] == [-1_001, 5, -1_001, 0]


# Transfers


def calls_in_us(*collectives):
    """Calls from {rank: (start, end)} in microseconds, one dict a collective."""
    rows = [(rank, n, *span) for n, calls in enumerate(collectives) for rank, span in calls.items()]
    rank, collective, start, end = np.array(rows, np.int64).T
    return MatchedCalls(rank, collective, EPOCH_NS + start * NS_PER_US, EPOCH_NS + end * NS_PER_US)


def ended_too_soon(calls):
    """Number of calls that ended before their last peer arrived."""
    return np.count_nonzero(calls.after_all_ns < 0)


def test_a_transfer_begins_when_the_last_has_come():
    found = fit_communication(calls_in_us({0: (0, 500), 1: (300, 502)}, {0: (1000, 2400), 1: (1900, 2400)}))
    assert (found.ns / NS_PER_US).tolist() == [200, 202, 500, 500]


def test_a_transfer_too_short_for_the_clocks_is_that_of_the_shortest_call():
    """Clocks 40 µs apart: rank 1 seems to end 40 µs late, by the clocks after 40 + 60 µs or 20."""
    short = {0: (0, 160), 1: (140, 200)}
    long = {0: (1000, 1500), 1: (1300, 1540)}
    found = fit_communication(calls_in_us(short, short, long))
    assert (found.ns / NS_PER_US).tolist() == [60, 60, 60, 60, 200, 240]


def test_ranks_that_leave_a_long_transfer_apart_keep_their_own():
    """The ranks of an all-to-all with uneven parts end milliseconds apart; that says nothing of the clocks."""
    even = {0: (0, 400), 1: (100, 402), 2: (50, 399)}
    found = fit_communication(calls_in_us(even, even, {0: (1000, 2000), 1: (1000, 6000), 2: (1000, 2000)}))
    assert (found.ns[-3:] / NS_PER_US).tolist() == [1000, 5000, 1000]
    assert found.residuals[1].p99_ns > NS_PER_MS


def test_a_call_that_ends_before_its_peers_came_is_counted():
    calls = calls_in_us({0: (0, 100), 1: (120, 220)}, {0: (500, 700), 1: (600, 700)})
    assert ended_too_soon(calls) == 1
    assert ended_too_soon(calls_of([[0, 1, 2]])) == 0
    skewed = wrong(calls_of([[0, 1, 2]]), [0, 0, 20 * NS_PER_MS])
    assert ended_too_soon(skewed) == 100
    assert ended_too_soon(skewed.on(align_hosts(skewed, apart("abc")))) == 0


def test_no_transfer_is_negative():
    even = {0: (0, 400), 1: (100, 400)}
    found = fit_communication(calls_in_us(even, even, {0: (1000, 2000), 1: (2100, 3000)}))
    assert (found.ns[-2:] / NS_PER_US).tolist() == [0, 900]


def test_a_call_without_peers_keeps_its_time():
    found = fit_communication(calls_in_us({0: (0, 1)}, {0: (500, 900), 1: (600, 902)}))
    assert (found.ns / NS_PER_US).tolist() == [1, 300, 302]


def test_residuals_are_distances_from_the_median_of_the_peers():
    ends = [{0: (0, 100), 1: (0, 100), 2: (0, 100 + late)} for late in (0, 3, 9)]
    found = fit_communication(calls_in_us(*ends)).residuals
    assert {rank: residual.p50_ns / NS_PER_US for rank, residual in found.items()} == {0: 0, 1: 0, 2: 3}
    assert found[2].p99_ns == pytest.approx(9 * NS_PER_US, rel=0.02)
