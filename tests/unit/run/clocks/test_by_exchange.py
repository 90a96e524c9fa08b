"""Clocks read against rank 0's, made by hand: what is found again, and what may not be made worse."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.core.types import NS_PER_MS, NS_PER_S, NS_PER_US
from esprof.run.clocks.by_exchange import clock_of, clocks_of_ranks
from esprof.run.schema import EVENTS, STAGES, table
from tests.cases.step_runs import EPOCH_NS


@dataclass(frozen=True)
class Reading:
    at_ns: int
    offset_ns: int
    rtt_ns: int


def readings(ahead, at_s, *, rtt_ns=100 * NS_PER_US, seed=0):
    """Readings of a clock that is ahead by `ahead(seconds)` ns, each wrong by less than half of its round trip."""
    wrong = np.random.default_rng(seed).uniform(-0.5, 0.5, len(at_s)) * rtt_ns
    return [
        Reading(EPOCH_NS + round(at * NS_PER_S), round(ahead(at) + error), rtt_ns)
        for at, error in zip(at_s, wrong, strict=True)
    ]


def times(*at_s):
    return EPOCH_NS + np.array([round(at * NS_PER_S) for at in at_s], np.int64)


def test_an_offset_is_found_within_the_stated_error():
    clock = clock_of(readings(lambda at: 50 * NS_PER_MS, [0, 2, 4]))
    assert clock.error_ns == 50 * NS_PER_US
    assert abs(clock.offset_ns - 50 * NS_PER_MS) <= clock.error_ns
    shown = times(-1, 0, 3, 10)
    assert np.abs(clock.apply(shown) - (shown - 50 * NS_PER_MS)).max() <= clock.error_ns
    assert clock.drift_ppm is None


def test_a_drift_is_found_and_goes_on_beyond_the_readings():
    def ahead(at):
        return -50 * NS_PER_MS + at * 20 * NS_PER_US

    clock = clock_of(readings(ahead, range(0, 601, 60)))
    assert clock.drift_ppm == pytest.approx(20, abs=0.2)
    shown = times(-20, 0, 90, 630, 700)
    true = shown - np.array([round(ahead((at - EPOCH_NS) / NS_PER_S)) for at in shown])
    assert np.abs(clock.apply(shown) - true).max() <= clock.error_ns


def test_a_clock_that_bends_is_followed():
    def ahead(at):
        return at * 10 * NS_PER_US if at < 300 else 3 * NS_PER_MS

    clock = clock_of(readings(ahead, range(0, 601, 60)))
    shown = times(150, 300, 450)
    true = shown - np.array([1_500, 3_000, 3_000]) * NS_PER_US
    assert np.abs(clock.apply(shown) - true).max() <= clock.error_ns


def test_a_long_round_trip_spoils_nothing():
    good = readings(lambda at: NS_PER_MS, range(0, 600, 60))
    late = Reading(EPOCH_NS + 90 * NS_PER_S, 40 * NS_PER_MS, 80 * NS_PER_MS)
    assert clock_of([*good, late]).error_ns == 50 * NS_PER_US
    assert abs(clock_of([*good, late]).apply(times(90))[0] - times(90)[0] + NS_PER_MS) <= 50 * NS_PER_US


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20 * NS_PER_S), st.integers(-100 * NS_PER_US, 100 * NS_PER_US), st.integers(1, NS_PER_MS)
        ),
        min_size=1,
        max_size=20,
    ),
    st.lists(st.integers(-NS_PER_S, 30 * NS_PER_S), min_size=2, max_size=50),
)
def test_the_order_of_times_stays(rows, moments):
    clock = clock_of([Reading(EPOCH_NS + at, offset, rtt) for at, offset, rtt in rows])
    shown = EPOCH_NS + np.sort(np.array(moments, np.int64))
    assert (np.diff(clock.apply(shown)) >= 0).all()


def test_nothing_is_known_without_readings():
    assert clock_of([]) is None
    assert clocks_of_ranks({0: [], 1: []}, {0: "a", 1: "b"}) == {0: None, 1: None}


def test_ranks_of_one_host_share_a_clock():
    here, there = [Reading(EPOCH_NS, 0, 0)], readings(lambda at: NS_PER_MS, [0, 5])
    clocks = clocks_of_ranks(
        {0: here, 1: [], 2: there[:1], 3: there[1:], 4: []}, {0: "a", 1: "a", 2: "b", 3: "b", 4: None}
    )
    assert clocks[1].offset_ns == 0
    assert clocks[2] is clocks[3]
    assert list(clocks[2].at_ns[1:-1]) == [0, 5 * NS_PER_S]
    assert clocks[4] is None


def test_every_time_of_a_table_moves_and_what_is_nested_stays_so():
    clock = clock_of(readings(lambda at: 7 * NS_PER_MS + at * 20 * NS_PER_US, range(0, 61, 20), rtt_ns=0))
    starts, ends = times(1, 1, 2), times(3, 3, 3)
    columns = {"name": ["a", "b", "c"], "start_ns": starts, "dur_ns": ends - starts}
    moved = clock.aligned(table(columns, EVENTS))
    begin, end = moved.ints("start_ns"), moved.ints("start_ns") + moved.ints("dur_ns")
    assert (begin == clock.apply(starts)).all()
    assert (end == clock.apply(ends)).all()
    assert moved.arrow.schema == EVENTS
    assert moved.texts("name") == ["a", "b", "c"]


def test_what_is_unknown_stays_unknown():
    clock = clock_of(readings(lambda at: 7 * NS_PER_MS, [0], rtt_ns=0))
    rows = table({"kind": ["fetch", "fetch"], "start_ns": times(1, 2), "end_ns": [int(times(2)[0]), None]}, STAGES)
    ends = clock.aligned(rows).arrow["end_ns"].to_pylist()
    assert ends == [int(times(2)[0]) - 7 * NS_PER_MS, None]


def test_rank_0_and_its_machine_are_not_touched():
    clock = clock_of([Reading(EPOCH_NS, 0, 0)])
    rows = table({"start_ns": times(1), "dur_ns": [1]}, EVENTS)
    assert clock.aligned(rows) is rows
    assert clock.error_ns == 0
