"""Which ranks share a host."""

import pytest

from esprof.core.errors import UsageError
from esprof.elastic.compress.hosts import arranged


def test_hosts_come_in_the_order_of_their_first_ranks():
    assert arranged(["b", "a", "a", "b"]) == [[0, 3], [1, 2]]


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (["a", "a"], r"all ranks are on one \(a\)"),
        (["a", "b"], "each has one rank alone"),
        (["a", "b", "b"], "b has 2 ranks, and a has 1"),
    ],
)
def test_hosts_that_cannot_exchange_parts_are_refused(names, wrong):
    with pytest.raises(UsageError, match=wrong):
        arranged(names)
