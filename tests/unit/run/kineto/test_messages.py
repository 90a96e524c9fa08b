"""Messages over gloo, whose own events name no peer: the recorder's annotations around the calls do."""

import pytest

from esprof.run.groups import Group
from esprof.run.raw.message import NamedMessage, message_of
from tests.cases.graph import BACKWARD, EPOCH_NS, Row, events_of, op
from tests.cases.messages import marked, message

FIELDS = ("peer", "channel", "group", "in_bytes", "out_bytes", "dtype", "is_p2p")


def read(*rows: Row) -> list[dict]:
    """The messages of a rank, whose groups `0` and `1` have two and three ranks."""
    groups = {"0": Group(name="0-1", ranks=(0, 1)), "1": Group(name="0-2", ranks=(0, 1, 2))}
    return [row for row in events_of(rows, groups).arrow.to_pylist() if row["kind"] == "collective"]


def test_an_annotation_describes_the_message_that_begins_in_it():
    sent, received = read(*message("send", 1, 0, 100, group="1", tag=7), *message("recv", 0, 200, 300))
    assert [sent[field] for field in FIELDS] == [1, "1/7", "0-2", 4000, None, "float32", True]
    assert [received[field] for field in FIELDS] == [0, "0/0", "0-1", None, 4000, "float32", True]
    assert (sent["start_ns"], sent["dur_ns"]) == (EPOCH_NS + 20_000, 80_000)


def test_an_unknown_group_still_is_a_channel_of_its_own():
    (sent,) = read(*message("send", 1, 0, 100, group="pipe of mine"))
    assert (sent["channel"], sent["group"]) == ("pipe of mine/0", None)


@pytest.mark.parametrize(
    "rows",
    [
        message("send", None, 0, 100),
        [*message("send", None, 100, 200), marked(NamedMessage("send", 1, 0, 4, "float32", "0").name, 0, 90)],
        [
            *message("send", None, 100, 200),
            marked(NamedMessage("send", 1, 0, 4, "float32", "0").name, 90, 50, BACKWARD),
        ],
        [*message("send", None, 100, 200), marked(NamedMessage("recv", 1, 0, 4, "float32", "0").name, 90, 50)],
        [*message("send", None, 100, 200), marked("esprof.message#send 9999999999 tag 0", 90, 50)],
    ],
    ids=["alone", "before", "other thread", "other direction", "garbage"],
)
def test_other_messages_have_no_peer(rows):
    (sent,) = read(*rows)
    assert (sent["peer"], sent["channel"]) == (None, None)


def test_a_collective_in_the_call_is_none_of_its_messages():
    """The thread that waits may run the work of others: an all-reduce begins inside the annotation."""
    reduced, sent = read(marked("gloo:all_reduce", 10, 5), *message("send", 1, 0, 100))
    assert (reduced["peer"], sent["peer"]) == (None, 1)


def test_the_annotations_themselves_are_no_events_of_the_job():
    """torch records them as operations."""
    name = NamedMessage("send", 1, 0, 4, "float32", "0").name
    rows = [op(name, 0, 40), *message("send", None, 0, 100), marked("mine", 0, 10)]
    events = events_of(rows, {}).arrow.to_pylist()
    assert {row["name"] for row in events} == {"c10d::send", "gloo:send", "mine"}
    assert [row["peer"] for row in events if row["kind"] == "collective"] == [1]


def test_marks_of_passes_are_annotations_around_their_operations():
    """torch records them as operations."""
    rows = [op("PP:0F1", 0, 40), op("aten::mm", 5, 10)]
    assert [row["kind"] for row in events_of(rows, {}).arrow.to_pylist()] == ["annotation", "op"]


@pytest.mark.parametrize("group", ["0", "a b", "x in group y", ""])
def test_a_name_tells_all_of_its_message(group):
    named = NamedMessage("recv", 12, 2**40, 1 << 33, "bfloat16", group)
    assert message_of(named.name) == named


@pytest.mark.parametrize(
    "name", ["", "esprof.message#", "esprof.message#send -1 tag 0: 4 bytes of int8 in group 0", "x"]
)
def test_other_names_tell_nothing(name):
    assert message_of(name) is None
