"""Width and colour of a screen."""

import io
import pty
import termios

import pytest
from rich.text import Text

from esprof.reports.terminal.screen import Screen, drawn, grid, wrapped


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_colour_is_for_terminals_that_want_it(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert Screen.of(Terminal()).colour
    assert not Screen.of(io.StringIO()).colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Screen.of(Terminal()).colour
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not Screen.of(Terminal()).colour


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO(), None], ids=["terminal", "pipe", "file"])
@pytest.mark.parametrize(
    ("columns", "width"),
    [("132", 132), ("60", 60), ("3", 40), ("9" * 5_000, 100), ("0", 100), ("wide", 100), ("", 100)],
)
def test_columns_sets_the_width_for_every_output(stream, columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert Screen.of(stream).width == width


def test_the_width_is_that_of_the_terminal_even_if_stdout_is_a_pipe(monkeypatch):
    """The verdict goes to stderr, while stdout may be a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
    leader, follower = pty.openpty()
    with open(leader, closefd=True), open(follower, "w") as terminal_of_66:
        termios.tcsetwinsize(follower, (24, 66))
        assert Screen.of(terminal_of_66).width == 66
        termios.tcsetwinsize(follower, (24, 300))
        assert Screen.of(terminal_of_66).width == 120


def a_table():
    table = grid("scenario", ">predicted", ">saves", ">interval", "note")
    table.add_row("network=2x", "1,092 ms", "2.03 ms", "31.9 to 36.0 ms", "")
    table.add_row(Text("kernel[gemm]=2x"), "1,078 ms", "16.4 ms", "6.41 to 39.2 ms", "a note on this scenario")
    return table


@pytest.mark.parametrize("width", [40, 50])
def test_a_table_that_does_not_fit_keeps_its_names_and_its_figures(width):
    lines = drawn(Screen(width), a_table()).split("\n")
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "network=2x predicted 1,092 ms, saves 2.03 ms, interval 31.9 to 36.0 ms kernel[gemm]=2x" in text
    assert "…" not in text


def test_a_table_that_fits_stays_one():
    assert drawn(Screen(80), a_table()).split("\n")[0].split() == ["scenario", "predicted", "saves", "interval", "note"]


def test_a_row_without_a_name_is_named_by_its_first_heading():
    table = grid(">rank", ">commu-\nnication", ">host\ngap", "device", ">idle")
    table.add_row("3", "12.2", "44.4", "Tesla V100", "0.1")
    assert drawn(Screen(40), table) == "rank 3\n  communication 12.2, host gap 44.4,\n  device Tesla V100, idle 0.1"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("Communication costs at most 4.84 ms a step", ["Communication costs at …"]),  # Not `at mo …`, nor `4. …`.
        ("short enough", ["short enough"]),
        ("x" * 60, ["x" * 22 + " …"]),
        ("界" * 40, ["界" * 11 + " …"]),
    ],
)
def test_a_text_that_is_too_long_is_cut_between_words(text, lines):
    assert wrapped(text, 24, 1) == lines
