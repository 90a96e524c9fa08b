"""The assignment with the shortest step: the published example, and small instances compared with all assignments."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.advisors.job.makespan import (
    Device,
    ends_within,
    fewest_devices,
    fewest_seconds,
    in_ranges,
    step_s,
    waste,
)
from esprof.core.errors import UsageError
from esprof.core.tree import cover
from tests.cases.properties import thorough


def device(est_s, name="d", **more):
    return Device(name, "kind", est_s, **{"last_s": est_s} | more)


EASYSCALE = [device(1 / 3), device(1 / 3), device(1 / 1.9), device(1 / 1.9)]
"""Two V100s of three ESTs a second and two P100s of 1.9 (EasyScale, SC 2023, §4.2)."""


@pytest.mark.parametrize(
    ("n_est", "ests", "performance"), [(12, (4, 4, 2, 2), 9.0), (10, (3, 3, 2, 2), 9.5), (13, (4, 4, 2, 3), 8.2333)]
)
def test_easyscales_example(n_est, ests, performance):
    found = fewest_seconds(EASYSCALE, n_est)
    assert found.ests == ests
    assert n_est / found.step_s == pytest.approx(performance, abs=1e-4)
    assert waste(EASYSCALE, found.ests) == pytest.approx(1 - performance / 9.8, abs=1e-5)


times = st.sampled_from([0.1, 0.2, 0.3, 0.25, 0.7])
devices = st.builds(
    Device,
    name=st.just("d"),
    kind=st.just("k"),
    est_s=times,
    last_s=times,
    update_s=st.sampled_from([0.0, 0.1, 0.9]),
    most=st.sampled_from([None, None, 0, 2]),
)


def all_counts(some, n_est, most_devices):
    for counts in itertools.product(range(n_est + 1), repeat=len(some)):
        fits = all(count <= (n_est if one.most is None else one.most) for count, one in zip(counts, some, strict=True))
        if sum(counts) == n_est and fits and sum(map(bool, counts)) <= most_devices:
            yield counts


@thorough(500)
@given(st.lists(devices, min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 4))
def test_the_assignment_is_optimal(some, n_est, most_devices):
    lengths = [step_s(some, counts) for counts in all_counts(some, n_est, most_devices)]
    if not lengths:
        with pytest.raises(UsageError, match="at most"):
            fewest_seconds(some, n_est, most_devices)
        return
    found = fewest_seconds(some, n_est, most_devices)
    assert found.ests in set(all_counts(some, n_est, most_devices))
    assert found.step_s == pytest.approx(min(lengths))
    assert found.ests_below < n_est  # The proof.
    if most_devices >= len(some):
        assert ends_within(some, n_est, found.step_s * (1 - 1e-6)) == found.ests_below


@thorough()
@given(st.lists(devices, min_size=1, max_size=4), st.integers(1, 6), st.sampled_from([0.3, 0.8, 2.0]))
def test_the_number_of_devices_is_minimal(some, n_est, within_s):
    usable = [
        sum(map(bool, counts))
        for counts in all_counts(some, n_est, len(some))
        if all(one.step_s(count) <= within_s * (1 + 1e-9) for count, one in zip(counts, some, strict=True) if count)
    ]
    found = fewest_devices(some, n_est, within_s)
    assert (found is None) == (not usable)
    if found is not None:
        assert sum(map(bool, found)) == min(usable)


@pytest.mark.parametrize("ests", [(4, 4, 2, 2), (3, 3, 2), (6, 2), (1, 4, 1, 2), (5, 0, 3)])
def test_ranges_are_contiguous_and_aligned_to_subtrees(ests):
    ranges = in_ranges(ests)
    assert [len(one) for one in ranges] == list(ests)
    assert sorted(itertools.chain(*ranges)) == list(range(sum(ests)))
    in_order = list(itertools.accumulate(ests, initial=0))
    as_they_come = [range(in_order[at], in_order[at + 1]) for at in range(len(ests))]
    subtrees = [sum(len(cover(set(one), sum(ests))) for one in split) for split in (ranges, as_they_come)]
    assert subtrees[0] <= subtrees[1]
