"""The result of `diagnose` as text: gold files for the layout, and properties of any input."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from esprof.reports.terminal.diagnosis import draw_diagnosis, draw_verdict
from esprof.reports.terminal.replay import draw_replay
from esprof.reports.terminal.screen import Screen
from tests.cases import report as case
from tests.cases.gold import assert_gold
from tests.cases.properties import thorough

COLOUR = Screen(width=100, colour=True)


def test_verdict_layout():
    assert_gold("verdict.txt", draw_verdict(case.diagnosis()))


def test_verdict_of_a_sound_run():
    sound = msgspec.structs.replace(case.diagnosis(found=(), warnings=()), verdict="No fault costs more than 5 %.")
    assert_gold("verdict-sound.txt", draw_verdict(sound))


def test_diagnosis_layout():
    assert_gold("diagnosis.txt", draw_diagnosis(case.diagnosis()))


def test_the_breakdown_is_in_milliseconds_for_any_step():
    diagnosis = case.diagnosis()
    slow = msgspec.structs.replace(diagnosis.breakdown[0], step_us=62_000_000.0)
    shown = draw_diagnosis(msgspec.structs.replace(diagnosis, breakdown=(slow,)))
    assert "62,000" in shown


@thorough()
@given(
    text=st.text(min_size=1, max_size=3_000) | st.text("漢字 かな", min_size=200, max_size=600),
    width=st.integers(40, 200),
    found=st.integers(0, 6),
    is_ignored=st.booleans(),
)
def test_a_verdict_fits_its_screen(text, width, found, is_ignored):
    finding = msgspec.structs.replace(case.findings()[0], title=text, advice=text, command=text)
    shown = msgspec.structs.replace(case.diagnosis(found=(finding,) * found), verdict=text)
    shown = case.ignoring(shown) if is_ignored and found else shown
    lines = draw_verdict(shown, Screen(width)).split("\n")
    assert len(lines) <= 20
    assert max(Text(line).cell_len for line in lines) <= width


@thorough()
@given(
    titles=st.lists(
        st.lists(st.text("abc(.)_", min_size=1, max_size=30), min_size=1, max_size=10), min_size=1, max_size=4
    ),
    width=st.integers(80, 200),
)
def test_a_title_is_shown_in_full_or_omitted(titles, width):
    """The verdict always shows the first finding, and others if there is room."""
    first = case.findings()[0]
    found = tuple(msgspec.structs.replace(first, title=" ".join(words)) for words in titles)
    shown = msgspec.structs.replace(case.diagnosis(found=found), verdict="Slow.")
    brief, whole = (" ".join(draw(shown, Screen(width)).split()) for draw in (draw_verdict, draw_diagnosis))
    for number, finding in enumerate(found, 1):
        line = f" {number} {first.id} {finding.title} saves"
        assert line in whole
        assert line in brief or (number > 1 and f" {number} {first.id}" not in brief)


def test_the_next_command_is_never_cut():
    for length in (50, 150, 2_000):
        command = "esprof replay run --what-if " + length * "x"
        finding = msgspec.structs.replace(case.findings()[0], command=command)
        text = draw_verdict(case.diagnosis(found=(finding,)), Screen(100))
        expected = command if length < 1_000 else f"esprof diagnose RUN shows the command for {finding.id}"
        shown = text.split("Next")[1]
        assert "".join(shown.split()) == "".join(expected.split())


def test_a_saving_indistinguishable_from_zero_is_not_listed_as_a_saving():
    unsure = msgspec.structs.replace(case.findings()[0], saving_low_us=0.0)
    shown = msgspec.structs.replace(case.diagnosis(found=()), uncertain=(unsure,))
    for draw in (draw_verdict, draw_diagnosis):
        text = draw(shown)
        assert f"ESP101, 0 to 45.0 ms: {unsure.title}" in text
        assert "saves 0" not in text


def test_ignored_findings_are_listed_with_reason_and_last_day():
    ignoring = case.ignoring(case.diagnosis())
    for shown in (draw_verdict(ignoring, Screen(200)), draw_diagnosis(ignoring, Screen(200))):
        assert (
            "ESP301 until 2027-05-31, saves 3.40 ms (3.06 to 3.74 ms) a step, 2.8 %: the link is upgraded in May"
            in shown
        )
    assert ignoring.ignored[0].finding.advice not in draw_diagnosis(ignoring)


@pytest.mark.parametrize("screen", [Screen(), COLOUR])
def test_names_from_a_trace_are_escaped(screen):
    hostile = case.hostile_report()
    for text in (
        draw_verdict(hostile.diagnosis, screen),
        draw_diagnosis(hostile.diagnosis, screen),
        draw_replay(hostile.replay, screen),
    ):
        assert "\x1b[31mred" not in text
        assert "\\x1b[31mred" in text
        assert "[bold]" in text
        assert "\u202e" not in text
        assert not any(line.lstrip().startswith("::error") for line in text.split("\n"))


def test_colour_adds_only_colour():
    plain, coloured = (draw_diagnosis(case.diagnosis(), screen) for screen in (Screen(), COLOUR))
    assert "\x1b[" not in plain
    assert [line.rstrip() for line in Text.from_ansi(coloured).plain.split("\n")] == plain.split("\n")


def test_a_cut_table_has_a_note():
    text = draw_diagnosis(case.diagnosis(ranks=64))
    assert "16 of 64 shown; `esprof diagnose --json` lists all" in text
