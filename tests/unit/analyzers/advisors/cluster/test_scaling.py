"""Sizes of elastic jobs: small instances compared with all choices."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.analyzers.advisors.cluster.scaling import SizeChoice, deal_out
from tests.cases.properties import thorough

choices = st.lists(
    st.builds(SizeChoice, devices=st.integers(0, 4), value=st.integers(0, 9).map(float)), min_size=1, max_size=4
)


@thorough(500)
@given(st.lists(choices, min_size=1, max_size=4), st.integers(0, 9))
def test_the_sizes_are_optimal(jobs, devices):
    worths = [
        (sum(one.value for one in picked), -sum(one.devices for one in picked))
        for picked in itertools.product(*jobs)
        if sum(one.devices for one in picked) <= devices
    ]
    if not worths:
        with pytest.raises(ValueError, match="smallest sizes"):
            deal_out(jobs, devices)
        return
    found = deal_out(jobs, devices)
    picked = [jobs[at][choice] for at, choice in enumerate(found.chosen)]
    assert (sum(one.value for one in picked), -sum(one.devices for one in picked)) == max(worths)
    assert (found.value, found.devices) == (sum(one.value for one in picked), sum(one.devices for one in picked))
