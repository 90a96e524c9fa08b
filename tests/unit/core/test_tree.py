"""The order of addition is that of one tree, whoever adds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.core.tree import Fold, Node, cover


def added(n: int, values: list[tuple[Node, str]]) -> str:
    """How a fold over `n` leaves puts its parentheses."""
    fold: Fold[str] = Fold(n, lambda left, right: f"({left}+{right})")
    for node, value in values:
        fold.push(node, value)
    ((_, whole),) = fold.partials
    return whole


def leaves(n: int) -> list[tuple[Node, str]]:
    return [(Node(leaf, 1), str(leaf)) for leaf in range(n)]


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, "0"),
        (2, "(0+1)"),
        (3, "((0+1)+2)"),
        (4, "((0+1)+(2+3))"),
        (5, "(((0+1)+(2+3))+4)"),
        (7, "(((0+1)+(2+3))+((4+5)+6))"),
    ],
)
def test_the_left_child_is_the_largest_full_tree(n, expected):
    assert added(n, leaves(n)) == expected


@given(st.data())
def test_parentheses_do_not_depend_on_who_adds_what(data):
    n = data.draw(st.integers(1, 17))
    owners = data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    partials = []
    for rank in set(owners):
        fold: Fold[str] = Fold(n, lambda left, right: f"({left}+{right})")
        for leaf in range(n):
            if owners[leaf] == rank:
                fold.push(Node(leaf, 1), str(leaf))
        assert [node for node, _ in fold.partials] == cover([leaf for leaf in range(n) if owners[leaf] == rank], n)
        partials += fold.partials
    assert added(n, sorted(partials)) == added(n, leaves(n))


@given(st.integers(1, 64), st.data())
def test_a_range_is_covered_by_few_subtrees(n, data):
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    covering = cover(range(start, stop), n)
    assert [leaf for node in covering for leaf in range(node.first, node.first + node.count)] == list(
        range(start, stop)
    )
    assert len(covering) <= max(1, 2 * math.ceil(math.log2(n)))


@given(st.integers(0, 4), st.integers(0, 7))
def test_an_aligned_range_holds_few_partial_sums_and_ends_as_one(exponent, place):
    length = 1 << exponent
    fold: Fold[int] = Fold(8 * length, int.__add__)
    most = 0
    for leaf in range(place * length, (place + 1) * length):
        fold.push(Node(leaf, 1), 1)
        most = max(most, len(fold.partials))
    assert fold.partials == [(Node(place * length, length), length)]
    assert most <= exponent + 1
