"""Answers as text: gold files for the layout, and what holds for any input."""

import io
import pty
import termios

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from esprof.reports.terminal import text as terminal
from esprof.reports.terminal.text import Screen
from tests.cases import report as case
from tests.cases.gold import assert_gold

COLOUR = Screen(width=100, colour=True)


def test_verdict_layout():
    assert_gold("verdict.txt", terminal.verdict(case.diagnosis()))


def test_verdict_of_a_sound_run():
    sound = msgspec.structs.replace(case.diagnosis(found=(), warnings=()), verdict="No fault costs more than 5 %.")
    assert_gold("verdict-sound.txt", terminal.verdict(sound))


def test_diagnosis_layout():
    assert_gold("diagnosis.txt", terminal.diagnosis(case.diagnosis()))


def test_where_a_step_goes_is_in_milliseconds_however_long_the_step():
    diagnosis = case.diagnosis()
    slow = msgspec.structs.replace(diagnosis.breakdown[0], step_us=62_000_000.0)
    shown = terminal.diagnosis(msgspec.structs.replace(diagnosis, breakdown=(slow,)))
    assert "62,000" in shown


def test_replay_layout():
    assert_gold("replay.txt", terminal.replay(case.replay()))


@given(
    text=st.text(min_size=1, max_size=3_000) | st.text("漢字 かな", min_size=200, max_size=600),
    width=st.integers(40, 200),
    found=st.integers(0, 6),
    is_ignored=st.booleans(),
)
def test_a_verdict_never_leaves_its_screen(text, width, found, is_ignored):
    finding = msgspec.structs.replace(case.findings()[0], title=text, advice=text, command=text)
    shown = msgspec.structs.replace(case.diagnosis(found=(finding,) * found), verdict=text)
    shown = case.ignoring(shown) if is_ignored and found else shown
    lines = terminal.verdict(shown, Screen(width)).split("\n")
    assert len(lines) <= 20
    assert max(Text(line).cell_len for line in lines) <= width


@given(
    titles=st.lists(
        st.lists(st.text("abc(.)_", min_size=1, max_size=30), min_size=1, max_size=10), min_size=1, max_size=4
    ),
    width=st.integers(80, 200),
)
def test_a_title_is_whole_or_not_there(titles, width):
    """In the verdict the first one is always there, and the others where there is room."""
    first = case.findings()[0]
    found = tuple(msgspec.structs.replace(first, title=" ".join(words)) for words in titles)
    shown = msgspec.structs.replace(case.diagnosis(found=found), verdict="Slow.")
    brief, whole = (" ".join(draw(shown, Screen(width)).split()) for draw in (terminal.verdict, terminal.diagnosis))
    for number, finding in enumerate(found, 1):
        told = f" {number} {first.id} {finding.title} saves"
        assert told in whole
        assert told in brief or (number > 1 and f" {number} {first.id}" not in brief)


def test_a_saving_that_may_be_none_is_not_listed_as_one():
    unsure = msgspec.structs.replace(case.findings()[0], saving_low_us=0.0)
    shown = case.diagnosis(found=(unsure,))
    for draw in (terminal.verdict, terminal.diagnosis):
        text = draw(shown)
        assert "saving not distinguishable from zero (0 to 45.0 ms) · rank 1 · high confidence" in text
        assert "saves" not in text
        assert "device-h" not in text


def test_what_is_ignored_is_named_with_why_and_until_when():
    ignoring = case.ignoring(case.diagnosis())
    for shown in (terminal.verdict(ignoring, Screen(200)), terminal.diagnosis(ignoring, Screen(200))):
        assert (
            "ESP301 until 2027-05-31, saves 3.40 ms (3.06 to 3.74 ms) a step, 2.8 %: the link is upgraded in May"
            in shown
        )
    assert ignoring.ignored[0].finding.advice not in terminal.diagnosis(ignoring)


@pytest.mark.parametrize("screen", [Screen(), COLOUR])
def test_names_from_a_trace_are_shown_and_do_nothing(screen):
    hostile = case.hostile_report()
    for text in (
        terminal.verdict(hostile.diagnosis, screen),
        terminal.diagnosis(hostile.diagnosis, screen),
        terminal.replay(hostile.replay, screen),
    ):
        assert "\x1b[31mred" not in text
        assert "\\x1b[31mred" in text
        assert "[bold]" in text
        assert "\u202e" not in text
        assert not any(line.lstrip().startswith("::error") for line in text.split("\n"))


def test_colour_adds_only_colour():
    plain, coloured = (terminal.diagnosis(case.diagnosis(), screen) for screen in (Screen(), COLOUR))
    assert "\x1b[" not in plain
    assert [line.rstrip() for line in Text.from_ansi(coloured).plain.split("\n")] == plain.split("\n")


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
def test_columns_says_how_wide_an_answer_is_wherever_it_goes(stream, columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert Screen.of(stream).width == width


def test_a_terminal_is_as_wide_as_it_is_whatever_stdout_is(monkeypatch):
    """The verdict goes to stderr, while stdout may be a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
    leader, follower = pty.openpty()
    with open(leader, closefd=True), open(follower, "w") as terminal_of_66:
        termios.tcsetwinsize(follower, (24, 66))
        assert Screen.of(terminal_of_66).width == 66
        termios.tcsetwinsize(follower, (24, 300))
        assert Screen.of(terminal_of_66).width == 120


def test_a_table_that_is_cut_says_so():
    text = terminal.diagnosis(case.diagnosis(ranks=64))
    assert "16 of 64 shown; `esprof diagnose --json` lists all" in text
