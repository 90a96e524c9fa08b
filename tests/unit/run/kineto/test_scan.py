"""The scanner of trace text: what it keeps of any document, against a plain JSON parser; and text that is none."""

import json
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.run.kineto.fields import FIELDS, CellForm
from esprof.run.kineto.lenient import Misfits
from esprof.run.kineto.rows import TraceRows
from esprof.run.kineto.scan import FIRST_TEXT, MISSING, NoRows, NotJson, TooLarge, scan
from tests.cases.properties import thorough

ROOM = 1 << 30
KEYS = [field.key for field in FIELDS]


def scanned(text):
    return scan(bytearray(text if isinstance(text, bytes) else text.encode()), ROOM)


def cell(value, key="correlation"):
    """What is kept of one value, as it is written in a trace: a number, None, or text."""
    field = FIELDS[KEYS.index(key)]
    members = f'"args": {{"{key}": {value}}}' if field.nested else f'"{key}": {value}'
    found = scanned(f'[{{"ph": "X", {members}}}]')
    number = int(found.cells[KEYS.index(key), 0])
    return kept(found, number)


def kept(found, number):
    if number == MISSING:
        return None
    is_text = FIRST_TEXT <= number < FIRST_TEXT + len(found.texts)
    return found.texts[number - FIRST_TEXT].decode() if is_text else number


# Any document

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ROW = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "M", "é"])},
    optional={
        **{field.key: JSON for field in FIELDS if not field.nested and field.key != "ph"},
        "args": st.dictionaries(st.sampled_from(KEYS) | st.text(), JSON, max_size=6) | JSON,
        "id": JSON,
        "correlation": JSON,
    },
)
DOCUMENT = st.fixed_dictionaries({"traceEvents": st.lists(ROW | JSON, max_size=4)}, optional={"host_name": JSON})
STYLE = st.fixed_dictionaries(
    {"indent": st.sampled_from([None, 0, 1, "\t", "\r\n "]), "ensure_ascii": st.booleans()},
    optional={"separators": st.sampled_from([(",", ":"), (" , ", " : ")])},
)


@thorough()
@given(DOCUMENT, STYLE)
def test_any_document_is_kept_as_a_plain_parser_reads_it(document, style):
    text = json.dumps(document, **style)
    found, document = scanned(text), parsed(text)
    rows = [row for row in document["traceEvents"] if isinstance(row, dict) and row.get("ph") == "X"]
    assert found.cells.shape == (len(FIELDS), len(rows))
    for row, cells in zip(rows, found.cells.T.tolist(), strict=True):
        args = row.get("args")
        for field, number in zip(FIELDS, cells, strict=True):
            wanted = (args if isinstance(args, dict) else {}).get(field.key) if field.nested else row.get(field.key)
            value = kept(found, number)
            if isinstance(value, str):
                assert parsed(value) == wanted
            elif field.form is CellForm.TIME and value is not None:
                assert value == wanted * 1000
            else:
                assert value == wanted
    assert parsed(found.frame) == document | {"traceEvents": None}


def parsed(text):
    return json.loads(text, parse_float=Decimal)


@thorough()
@given(st.lists(ROW | JSON, max_size=4), STYLE, st.data())
def test_rows_that_are_cut_off_are_refused(rows, style, data):
    for begin in (b"", b'{"schemaVersion": 1, "traceEvents": '):
        text = begin + json.dumps(rows, **style).encode()
        with pytest.raises(NotJson):
            scanned(text[: data.draw(st.integers(0, len(text) - 1))])


@thorough()
@given(st.binary(max_size=40) | st.text(st.sampled_from('{}[],:"\\ \n019-.eEtrufalsn"traceEvents"'), max_size=60))
def test_any_text_is_refused_or_was_json_enough(text):
    try:
        msgspec.json.decode(text if isinstance(text, bytes) else text.encode(), type=msgspec.Raw)
        is_json = True
    except (msgspec.DecodeError, UnicodeDecodeError):
        is_json = False
    try:
        scanned(text)
    except NotJson:
        assert not is_json
    except NoRows:
        assert is_json


# Values


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("0", 0),
        ("-7", -7),
        ("12345678", 12345678),
        ("123456789012345678", 123456789012345678),
        ("-999999999999999999", -999999999999999999),
        ("1234567890123456789", "1234567890123456789"),
        ("1.0", "1.0"),
        ("1e3", "1e3"),
        ('"7"', '"7"'),
        ("true", "true"),
        ('[1, {"a": "]}"}]', '[1, {"a": "]}"}]'),
        ("null", None),
    ],
)
def test_integers_are_numbers_and_all_else_is_text(written, kept):
    assert cell(written) == kept


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("0", 0),
        ("1712000000000000", 1_712_000_000_000_000_000),
        ("1712000000000000.125", 1_712_000_000_000_000_125),
        ("-4458676522690.6", -4_458_676_522_690_600),
        ("0.05", 50),
        ("9000000000000000", 9_000_000_000_000_000_000),
        ("9000000000000001", "9000000000000001"),
        ("12345678901234567", "12345678901234567"),
        ("1.2345", "1.2345"),
        ("1.5e3", "1.5e3"),
        ("15E-1", "15E-1"),
    ],
)
def test_times_are_nanoseconds(written, kept):
    assert cell(written, "ts") == kept


BROKEN_NUMBERS = ["01", "-", "+1", ".5", "1.", "1.e3", "1e", "1e+", "1x", "0x1", "inf", "NaN"]
BROKEN_TEXTS = ["", "nul", "nullx", "tru", "falsy", "'a'", '"a', '"\x07"', "[", "{", "[1", '{"a":1', ","]


@pytest.mark.parametrize("written", BROKEN_NUMBERS + BROKEN_TEXTS)
@pytest.mark.parametrize("key", ["correlation", "ts", "name", "unknown"])
def test_a_value_that_is_no_json_breaks_the_file(written, key):
    with pytest.raises(NotJson):
        scanned(f'[{{"ph": "X", "{key}": {written}}}]')


def test_the_last_of_two_equal_keys_counts():
    assert cell('1, "correlation": 2') == 2
    assert cell('1, "correlation": null') is None


def test_keys_count_where_they_belong():
    found = scanned(
        '[{"ph": "X", "correlation": 1, "args": {"name": "a", "args": {"correlation": 2}, "traceEvents": []}}]'
    )
    assert (found.cells != MISSING).sum() == 1


# Many


def test_more_rows_and_more_texts_than_a_block_or_a_table_holds():
    rows = [{"ph": "X", "name": f"op {i}", "args": {"correlation": i, "Input Dims": [[i, 1]]}} for i in range(5000)]
    found = scanned(json.dumps({"traceEvents": rows}))
    columns = TraceRows(found, Misfits())
    assert columns.numbers("correlation").tolist() == list(range(5000))
    assert columns.texts("name").map(str).tolist() == [row["name"] for row in rows]
    assert [json.loads(dims) for dims in columns.texts("Input Dims").map(bytes)] == [[[i, 1]] for i in range(5000)]


@pytest.mark.parametrize("row", ['{"ph":"X"}', '{"ph":"X","name":"HERE"}'])
def test_cells_and_texts_stay_within_their_room(row):
    text = bytearray("[" + ",".join(row.replace("HERE", str(i)) for i in range(3000)) + "]", "ascii")
    assert scan(text, 1 << 21).cells.shape[1] == 3000
    with pytest.raises(TooLarge):
        scan(text, 1 << 19)


def test_the_text_is_left_as_it_was():
    text = bytearray(b'{"traceEvents": [{"ph": "X"}]}')
    before = bytes(text)
    scan(text, ROOM)
    assert text == before
