"""The search for the choice that ends soonest, compared with an enumeration of all choices and with invariants."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.advisors.compression.instance import graph
from esprof.analyzers.advisors.compression.search import algorithm_1, heuristic, search
from esprof.analyzers.advisors.compression.timeline import BucketTimeline, Costs
from esprof.replay.engine.timeline import replay
from tests.cases.properties import thorough

times = st.integers(0, 40).map(float)


@st.composite
def timelines(draw, most_buckets=5, most_options=3):
    buckets, options = draw(st.integers(1, most_buckets)), draw(st.integers(1, most_options))
    row = st.lists(times, min_size=options, max_size=options)
    table = st.lists(row, min_size=buckets, max_size=buckets).map(np.array)
    nothing = np.zeros((buckets, options))
    ready = np.cumsum(draw(st.lists(times, min_size=buckets, max_size=buckets)))
    # With or without CPU work, and with or without work after a bucket has arrived.
    host, after = (draw(st.one_of(table, st.just(nothing))) for _ in range(2))
    return BucketTimeline(
        Costs(ready, draw(table), host, draw(table), after, float(ready[-1]) + draw(times), nothing, np.inf)
    )


@st.composite
def with_budgets(draw):
    """Timelines whose allowed loss admits at least one choice."""
    timeline = draw(timelines())
    buckets, options = timeline.shape
    row = st.lists(times, min_size=options, max_size=options)
    lost = np.array(draw(st.lists(row, min_size=buckets, max_size=buckets)))
    may_lose = lost.min(axis=1).sum() + draw(times)
    return BucketTimeline(timeline.costs._replace(lost=lost, may_lose=float(may_lose)))


def every_choice(timeline):
    count, options = timeline.shape
    return (np.array(one) for one in itertools.product(range(options), repeat=count))


def bound_ns(timeline):
    """A lower bound: each bucket is sent by its fastest option, and compression is free."""
    return timeline.free().end_ns(np.argmin(timeline.costs.link, axis=1))


def sizes_of(timeline):
    return timeline.costs.link[:, 0].astype(np.int64)


@thorough(500)
@given(st.one_of(timelines(), with_budgets()))
def test_the_choice_is_optimal(timeline):
    best = min(timeline.end_ns(one) for one in every_choice(timeline))
    found = search(timeline, sizes_of(timeline))
    assert found.end_ns == timeline.end_ns(found.choice) == best
    assert (found.kind, found.gap) == ("exact", 0.0)
    assert bound_ns(timeline) <= best


@thorough(300)
@given(st.one_of(timelines(), with_budgets()))
def test_merged_partial_choices_give_a_lower_bound(timeline):
    best = min(timeline.end_ns(one) for one in every_choice(timeline))
    found = search(timeline, sizes_of(timeline), max_partial=2)
    assert found.least_ns <= best <= found.end_ns
    assert found.end_ns <= found.least_ns * (1 + found.gap) + 1e-6


@given(timelines(), st.randoms(use_true_random=False))
def test_the_recurrence_equals_the_replay_of_the_graph(timeline, random):
    count, options = timeline.shape
    choice = np.array([random.randrange(options) for _ in range(count)])
    assert replay(graph(timeline.costs, choice)).step_ns()[0] == timeline.end_ns(choice)


@thorough()
@given(timelines())
def test_lower_costs_never_end_later(timeline):
    costs, sizes = timeline.costs, sizes_of(timeline)
    end = search(timeline, sizes).end_ns
    for column in ("stall", "host", "link", "after"):
        cheaper = costs._replace(**{column: getattr(costs, column) / 2})
        assert search(BucketTimeline(cheaper), sizes).end_ns <= end
    fewer = BucketTimeline(
        costs._replace(**{name: getattr(costs, name)[:, :1] for name in ("stall", "host", "link", "after")})
    )
    assert end <= fewer.end_ns(np.zeros(len(sizes), np.int64))


@given(timelines())
def test_heuristics_never_end_later_than_their_starts(timeline):
    count, options = timeline.shape
    found = timeline.end_ns(heuristic(timeline, sizes_of(timeline)))
    assert found <= timeline.end_ns(algorithm_1(timeline, sizes_of(timeline)))
    assert all(found <= timeline.end_ns(np.full(count, option)) for option in range(options))


def test_too_costly_compression_is_not_chosen():
    link = np.array([[10.0, 1.0]] * 4)
    dear = np.array([[0.0, 1e9]] * 4)
    nothing = np.zeros((4, 2))
    timeline = BucketTimeline(Costs(np.arange(4.0), dear, nothing, link, nothing, 3.0, nothing, np.inf))
    assert search(timeline, np.ones(4)).choice.tolist() == [0] * 4
    assert search(timeline.free(), np.ones(4)).choice.tolist() == [1] * 4


@pytest.mark.parametrize("host", [False, True])
def test_hundreds_of_buckets(host):
    random = np.random.default_rng(0)
    buckets, options = 120, 6
    size = random.lognormal(2, 1.5, buckets)
    rate = np.array([1.0, 0.5, 0.1, 0.05, 0.1, 0.05])
    coding = np.array([0.0, 0.05, 0.2, 0.4, 0.0, 0.0])
    hosted = np.array([0.0, 0.0, 0.0, 0.0, 0.6, 1.0]) * host
    ready = np.cumsum(random.exponential(size.mean() / 3, buckets))
    columns = [np.outer(size, what) for what in (coding, hosted, rate)]
    nothing = np.zeros((buckets, options))
    timeline = BucketTimeline(Costs(ready, *columns, nothing, float(ready[-1]), nothing, np.inf))
    found = search(timeline, size)
    assert bound_ns(timeline) <= found.least_ns * (1 + 1e-9)
    assert found.gap < 0.05
