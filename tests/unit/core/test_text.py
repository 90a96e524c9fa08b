"""Hostile names made safe, and error messages that carry them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.core.errors import EXIT_ERROR, EXIT_USAGE, EsprofError, InputError, UsageError, unreadable
from esprof.core.text import printable


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("aten::mm", "aten::mm"),
        ("größe 张量", "größe 张量"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\n::error::b\r", "a\\x0a::error::b\\x0d"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202efed", "abc\\x202efed"),
        ("zero\u200bwidth\u2060\ufeff", "zero\\x200bwidth\\x2060\\xfeff"),
        ("line\u2028paragraph\u2029", "line\\x2028paragraph\\x2029"),
        ("\udcff.json", "\\xdcff.json"),
    ],
)
def test_printable(name, shown):
    assert printable(name) == shown


@given(st.text(st.characters(), max_size=300), st.integers(1, 200))
def test_what_is_printable_is_one_line_that_any_terminal_takes(text, limit):
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert len(shown.splitlines()) <= 1
    assert "\x1b" not in shown
    shown.encode()


def test_a_message_says_where_what_and_what_to_do():
    error = InputError("is a truncated gzip file", path="rank0.json.gz", remedy="Copy it again.")
    assert str(error) == "rank0.json.gz: is a truncated gzip file\n  Copy it again."
    assert str(EsprofError("stopped")) == "stopped"


def test_a_hostile_path_or_reason_cannot_forge_a_line():
    error = InputError("lacks 'x\n::error::y'", path="a\n::error::b\x1b[2J", remedy="Rename it.")
    assert str(error) == "a\\x0a::error::b\\x1b[2J: lacks 'x\\x0a::error::y'\n  Rename it."


def test_exit_codes():
    assert (InputError.exit_code, UsageError.exit_code) == (EXIT_ERROR, EXIT_USAGE) == (1, 2)


def test_what_the_system_refuses():
    error = unreadable("/root/trace.json", PermissionError(13, "Permission denied"))
    assert (error.reason, error.path) == ("cannot be read: Permission denied", "/root/trace.json")
    assert error.remedy
