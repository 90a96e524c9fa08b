"""Branch and bound over changes, compared with replays of all sets of them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.advisors.search.branch import KnownSteps, SearchTerm, search
from esprof.replay.engine.timeline import replay
from tests.cases.properties import thorough
from tests.cases.random_graphs import graphs

TERMS, VALUES = 5, 3


class Factors:
    """A job whose terms scale the durations of classes of nodes: each value of a term has a factor for each class."""

    def __init__(self, dfg, of_node, factors):
        self.dfg, self.of_node, self.factors = dfg, of_node, factors
        # No value has a smaller factor on any class than the ideal.
        self.ideals = factors.min(axis=1)
        self.terms = [
            SearchTerm(f"t{term}", tuple(f"t{term}={value}" for value in range(factors.shape[1])), (f"t{term}=ideal",))
            for term in range(len(factors))
        ]

    def step_ns(self, terms):
        factor = np.ones(self.factors.shape[2])
        for one in terms:
            name, value = one.split("=")
            number = int(name[1:])
            factor *= np.minimum(1, self.ideals[number]) if value == "ideal" else self.factors[number, int(value)]
        dfg = replace(self.dfg, dur_ns=np.rint(self.dfg.dur_ns * factor[self.of_node]).astype(np.int64))
        return float(replay(dfg).end_ns.max() - dfg.recorded_ns.min())

    def __call__(self, sets):
        return [self.step_ns(one) for one in sets]

    def every_set(self):
        values = [(None, *term.values) for term in self.terms]
        return [tuple(one for one in chosen if one is not None) for chosen in product(*values)]


@st.composite
def jobs(draw):
    """Five terms of three values (four with none) on a small graph; values may lengthen what other terms shorten."""
    dfg = draw(graphs(longest=1_000, least_lag=0))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    factors = rng.choice([0.1, 0.4, 0.8, 1.0, 1.0, 1.0, 1.3], (TERMS, VALUES, TERMS))
    return Factors(dfg, rng.integers(0, TERMS, dfg.nodes), factors)


@thorough(60)
@given(jobs())
def test_equal_to_replays_of_all_1024_sets(job):
    every = job(job.every_set())
    assert len(every) == 1_024
    found = search(job.terms, KnownSteps(job))
    assert found.step_ns == min(every)
    assert found.step_ns == job.step_ns(found.chosen)
    assert found.is_complete
    assert not found.is_bound_broken
    assert found.lower_bound_ns == found.step_ns


@thorough(60)
@given(jobs(), st.integers(0, 30))
def test_the_bound_is_never_above_the_optimum_even_if_replays_end(job, replays):
    optimum = min(job(job.every_set()))
    known = KnownSteps(job)
    found = search(job.terms, known, max_replays=replays)
    assert found.lower_bound_ns <= optimum <= found.step_ns
    assert not found.is_complete or found.step_ns == optimum


@thorough(60)
@given(jobs(), st.floats(0, 500))
def test_the_bound_holds_for_dropped_terms_too(job, least_gain_ns):
    optimum = min(job(job.every_set()))
    found = search(job.terms, KnownSteps(job), least_gain_ns=least_gain_ns)
    assert found.lower_bound_ns <= optimum <= found.step_ns
    without = [term for term in job.terms if term.name not in found.dropped]
    assert found.step_ns == search(without, KnownSteps(job)).step_ns


@thorough(40)
@given(jobs(), st.data())
def test_the_shortest_of_the_allowed_sets_is_found(job, data):
    """Values of two terms free memory; what a set must free is drawn so that at least one set is allowed."""
    needed = [replace(term, needed=number < 2) for number, term in enumerate(job.terms)]
    freed = {value: data.draw(st.integers(0, 3)) for term in needed[:2] for value in term.values}
    most = sum(max(freed[value] for value in term.values) for term in needed[:2])
    least = data.draw(st.integers(0, most))

    def allowed(terms):
        return sum(freed.get(one, 0) for one in terms) >= least

    every = [one for one in job.every_set() if allowed(one)]
    start = () if allowed(()) else tuple(max(term.values, key=freed.get) for term in needed[:2])
    found = search(needed, KnownSteps(job), start=start, allowed=allowed)
    assert found.step_ns == min(job(every)) == job.step_ns(found.chosen)
    assert allowed(found.chosen)
    assert found.is_complete
    assert found.lower_bound_ns <= found.step_ns


def test_a_term_that_only_costs_time_is_chosen_if_it_is_needed():
    recompute = SearchTerm("c", ("c=5",), (), needed=True)
    found = search([LOADER, recompute], longest_of(a=60.0, c=0.0), start=("c=5",), allowed=lambda one: "c=5" in one)
    assert sorted(found.chosen) == ["a=10", "c=5"]
    assert found.lower_bound_ns == found.step_ns == 10


def longest_of(**paths):
    """Steps that take as long as the longest path; `a=3` makes path `a` 3 long, `a=0` is its ideal."""

    def steps(sets):
        changed = [paths | {name: float(value) for name, value in (one.split("=") for one in terms)} for terms in sets]
        return [max(one.values()) for one in changed]

    return KnownSteps(steps)


LOADER, LINK = SearchTerm("a", ("a=30", "a=10"), ("a=0",)), SearchTerm("b", ("b=20",), ("b=0",))


def test_a_masked_term_is_found():
    """The loader (60) hides the link (50): alone a faster link gains nothing."""
    found = search([LINK, LOADER], longest_of(a=60.0, b=50.0, compute=15.0), least_gain_ns=1)
    assert found.gains["b"].alone_ns == 0
    assert found.gains["b"].given_others_ns == 35
    assert not found.dropped
    assert sorted(found.chosen) == ["a=10", "b=20"]
    assert found.step_ns == 20


def test_two_terms_that_hide_each_other_are_both_found():
    found = search([LINK, LOADER], longest_of(a=60.0, b=60.0), least_gain_ns=1)
    assert sorted(found.chosen) == ["a=10", "b=20"]


def test_a_term_that_cannot_gain_is_dropped_without_replays_of_its_values():
    steps = longest_of(a=60.0, b=5.0, compute=15.0)
    found = search([LINK, LOADER], steps, least_gain_ns=1)
    assert found.dropped == {"b"}
    assert found.chosen == ("a=10",)
    assert steps.replays == 3 + 2  # the ideals, and both values of `a`


def test_a_value_without_a_price_is_not_chosen():
    def steps(sets):
        return [None if "a=10" in terms else 60.0 - 30.0 * len(terms) for terms in sets]

    found = search([LOADER], KnownSteps(steps))
    assert found.chosen == ("a=30",)


def test_an_ideal_that_a_value_beats_is_reported():
    found = search([SearchTerm("a", ("a=1",), ("a=2",))], longest_of(a=60.0))
    assert found.is_bound_broken
    assert found.lower_bound_ns <= found.step_ns == 1


def test_a_job_without_a_price():
    with pytest.raises(ValueError, match="no price"):
        search([LOADER], KnownSteps(lambda sets: [None for _ in sets]))


@thorough(40)
@given(jobs(), st.integers(1, TERMS), st.floats(0, 500))
def test_terms_without_a_bound_are_searched_all(job, count, least_gain_ns):
    """The first terms have no known bound: the result is the same, and all their values are tried."""
    terms = [replace(term, ideal=None if number < count else term.ideal) for number, term in enumerate(job.terms)]
    optimum = min(job(job.every_set()))
    found = search(terms, KnownSteps(job), max_replays=5_000)
    assert found.step_ns == found.lower_bound_ns == optimum
    assert found.is_complete
    assert search(terms, KnownSteps(job), least_gain_ns=least_gain_ns).lower_bound_ns <= optimum
    assert search(terms, KnownSteps(job), max_replays=3).lower_bound_ns <= optimum
