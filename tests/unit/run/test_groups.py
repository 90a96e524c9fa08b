"""Names of process groups, and rank lists as traces write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.run.groups import group_name, named_groups, parse_ranks


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([0], "0"),
        ([0, 1], "0-1"),
        ([3, 2, 1, 0], "0-3"),
        ([0, 2, 4], "0,2,4"),
        ([0, 1, 4, 5, 7], "0-1,4-5,7"),
        ([], ""),
    ],
)
def test_group_name(ranks, name):
    assert group_name(ranks) == name


@given(st.sets(st.integers(0, 200)), st.sets(st.integers(0, 200)))
def test_two_groups_share_a_name_only_if_they_share_all_ranks(one, other):
    assert (group_name(one) == group_name(other)) == (one == other)


@pytest.mark.parametrize(
    ("listed", "ranks"),
    [
        ("[0, 1, 2]", (0, 1, 2)),
        ("[1,0]", (0, 1)),
        ("(3, 4)", (3, 4)),
        ("5", (5,)),
        ([2, 0, 2], (0, 2)),
        (None, None),
        ([], None),
        ("", None),
        ("[]", None),
        ("[0, 1, ..., 31]", None),
        ("[0, 1, …]", None),
        ("0-7", None),
        ("all", None),
        ("[-1, 0]", None),
        ([-1, 0], None),
        ([0, 1 << 40], None),
        ("[0, 99999999]", None),
        ("[" + "9" * 5000 + "]", None),
    ],
)
def test_parse_ranks(listed, ranks):
    assert parse_ranks(listed) == ranks


def test_groups_without_ranks_have_no_name():
    groups = named_groups(
        [("0", [0, 1], "cuda:nccl", "default_pg"), ("1", [], None, None), ("2", "[1, ...]", None, None)]
    )
    assert list(groups) == ["0"]
    assert (groups["0"].name, groups["0"].ranks, groups["0"].description) == ("0-1", (0, 1), "default_pg")
