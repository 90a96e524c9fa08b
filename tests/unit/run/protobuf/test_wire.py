"""The wire format of Protocol Buffers."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.run.protobuf import wire
from tests.cases import protobuf
from tests.cases.properties import thorough


def fields(data):
    return [
        (number, bytes(value) if isinstance(value, memoryview) else value)
        for number, value in wire.fields(memoryview(data))
    ]


def test_the_examples_of_the_documentation():
    # From "Encoding" at protobuf.dev: 150 in field 1; "testing" in field 2; packed 3, 270, 86942 in field 6.
    assert fields(bytes.fromhex("089601")) == [(1, 150)]
    assert fields(bytes.fromhex("120774657374696e67")) == [(2, b"testing")]
    ((number, value),) = wire.fields(memoryview(bytes.fromhex("3206038e029ea705")))
    assert (number, list(wire.packed(value))) == (6, [3, 270, 86942])


def test_numbers_of_other_types():
    assert wire.signed(fields(protobuf.message((1, -2)))[0][1]) == -2
    assert [wire.zigzag(value) for value in (0, 1, 2, 3, 4294967294)] == [0, -1, 1, -2, 2147483647]
    assert wire.double(fields(protobuf.message((3, 2.5)))[0][1]) == 2.5
    assert fields(b"\x1d" + struct.pack("<I", 7)) == [(3, 7)]
    assert list(wire.packed(9)) == [9]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("00", "number 0"),
        ("0b", "unknown type 3"),
        ("0f", "unknown type 7"),
        ("08", "does not end"),
        ("0880", "does not end"),
        ("08" + 10 * "ff" + "01", "does not end"),
        ("1203ff", "ends behind its message"),
        ("12" + 9 * "ff" + "01", "ends behind its message"),
        ("09ffff", "ends behind its message"),
    ],
)
def test_malformed_messages_are_refused(data, says):
    with pytest.raises(wire.MalformedMessage, match=says):
        fields(bytes.fromhex(data))


def test_a_file_that_ends_inside_a_message_is_refused():
    whole = protobuf.delimited([protobuf.message((1, 5)), protobuf.message((2, "abc"))])
    assert [bytes(one) for one in wire.delimited(memoryview(whole))] == [
        protobuf.message((1, 5)),
        protobuf.message((2, "abc")),
    ]
    with pytest.raises(wire.MalformedMessage, match="ends inside a message"):
        list(wire.delimited(memoryview(whole[:-1])))


_VALUES = st.one_of(st.integers(0, (1 << 64) - 1), st.binary(max_size=300), st.floats(allow_nan=False))


@thorough()
@given(st.lists(st.tuples(st.integers(1, (1 << 29) - 1), _VALUES), max_size=20))
def test_what_was_written_is_read(written):
    read = [
        (number, wire.double(value) if isinstance(of, float) else value)
        for (number, value), (_, of) in zip(fields(protobuf.message(*written)), written, strict=True)
    ]
    assert read == written


@thorough()
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        read = fields(data)
    except wire.MalformedMessage:
        return
    assert sum(len(value) for _, value in read if isinstance(value, bytes)) <= len(data)
