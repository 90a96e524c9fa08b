"""Width and colour of a screen."""

import io
import pty
import termios

import pytest

from esprof.reports.terminal.screen import Screen


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
