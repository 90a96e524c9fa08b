"""Pickles of plain values are read without loading them, and all others are refused."""

import os
import pickle

import pytest

from esprof.run.flight.plain_pickle import NotPlain, read_plain_pickle
from tests.cases.flight_dumps import dump, entry, pickled

PLAIN = {"a": [1, -1, 2**40, 1.5, None, True, False, "ä"], "b": {"c": (1, 2), "d": ((), (1,), (1, 2, 3), (1, 2, 3, 4))}}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values(protocol):
    assert read_plain_pickle(pickle.dumps(PLAIN, protocol)) == PLAIN


def test_a_list_that_stands_in_several_places():
    shared = [1, 2]
    assert read_plain_pickle(pickle.dumps([shared, shared], 2)) == [[1, 2], [1, 2]]


def test_the_instructions_that_torch_writes():
    assert read_plain_pickle(pickled(dump(entry(1)))) == dump(entry(1))


class _Runs:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_a_call_is_refused_and_not_made(tmp_path, protocol):
    mark = tmp_path / "ran"
    data = pickle.dumps({"version": "2.10", "entries": [_Runs(f"touch {mark}")]}, protocol)
    with pytest.raises(NotPlain, match="more than plain values"):
        read_plain_pickle(data)
    assert not mark.exists()
    pickle.loads(data)  # What a reader that loads pickles would have done.
    assert mark.exists()


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", 1j, Exception("x"), os.getcwd])
def test_other_types_are_refused(value):
    with pytest.raises(NotPlain, match="more than plain values"):
        read_plain_pickle(pickle.dumps([value], 4))


def test_what_contains_itself_is_refused():
    one, other = [], {}
    one.append({"a": one})
    other["self"] = other
    for value in (one, other):
        with pytest.raises(NotPlain, match="contains itself"):
            read_plain_pickle(pickle.dumps(value, 2))


def test_deep_nesting_is_refused():
    value = []
    for _ in range(40):
        value = [value]
    with pytest.raises(NotPlain, match="deep"):
        read_plain_pickle(pickle.dumps(value, 2))


@pytest.mark.slow
def test_a_million_levels_are_refused_without_recursion():
    with pytest.raises(NotPlain, match="deep"):
        read_plain_pickle(b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".")


def test_sharing_that_would_fill_the_memory_is_refused():
    value = ["x"] * 10
    for _ in range(12):
        value = [value] * 10
    with pytest.raises(NotPlain, match="more than 5000000 values"):
        read_plain_pickle(pickle.dumps(value, 2))


def test_huge_numbers_are_refused():
    with pytest.raises(NotPlain, match="64 bits"):
        read_plain_pickle(pickle.dumps(2**64, 2))


def test_every_truncation_is_refused():
    data = pickled(dump(entry(1)))
    for end in range(len(data)):
        with pytest.raises(NotPlain):
            read_plain_pickle(data[:end])


@pytest.mark.parametrize(
    "instructions",
    [
        b".",
        b"a.",
        b"(.",
        b"]a.",
        b"](a.",
        b"}K\x01s.",
        b"}(K\x01u.",
        b"}]K\x01s.",
        b"h\x05.",
        b"]]e.",
        b"q\x00.",
        b"K\x01K\x02.",
        b"K\x01K\x02a.",
        b"\xff.",
    ],
)
def test_broken_instructions_are_refused(instructions):
    with pytest.raises(NotPlain):
        read_plain_pickle(b"\x80\x02" + instructions)
