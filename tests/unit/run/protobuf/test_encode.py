"""Writing the wire format of Protocol Buffers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from esprof.run.protobuf import encode, wire
from tests.cases.properties import thorough


def test_the_examples_of_the_documentation():
    # From "Encoding" at protobuf.dev: 150 in field 1; "testing" in field 2; -2 as an int64.
    assert encode.number(1, 150) == bytes.fromhex("089601")
    assert encode.text(2, "testing") == bytes.fromhex("120774657374696e67")
    assert encode.varint(-2) == bytes.fromhex("feffffffffffffffff01")
    assert encode.fixed64(47, 1) == bytes.fromhex("f9020100000000000000")


@thorough()
@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_many_numbers_are_written_as_one_is(values):
    assert encode.varints(np.array(values, np.int64)) == [encode.varint(value) for value in values]


def test_text_that_is_no_unicode_is_written():
    assert encode.text(1, "a\ud800") == b"\x0a\x02a?"


@thorough()
@given(st.integers(1, (1 << 29) - 1), st.integers(0, (1 << 64) - 1), st.binary(max_size=300))
def test_what_was_written_is_read(field, value, content):
    text = encode.number(field, value) + encode.data(field, content) + encode.fixed64(field, value)
    read = [bytes(one) if isinstance(one, memoryview) else one for _, one in wire.fields(memoryview(text))]
    assert read == [value, content, value]
