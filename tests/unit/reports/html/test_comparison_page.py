"""The page of a comparison: its bars, its tables, and names that are harmless."""

from esprof.reports.html.comparison_page import change_bars, render_comparison
from tests.unit.reports.html.test_page import Page
from tests.unit.reports.terminal.test_comparison import HOSTILE, comparison


def test_bars_share_an_axis_that_holds_every_interval():
    """The step and its first part grow; the last is noise from −1 to +7 ms. The axis ends at 25 ms."""
    zero, bars = change_bars(comparison())
    assert [(bar.name, bar.change, bar.kind) for bar in bars] == [
        ("the whole step", "+22.0 ms", "more"),
        ("exposed communication", "+19.0 ms", "more"),
        ("steps that were not recorded", "+3.00 ms", "noise"),
    ]
    assert zero == round(100 * 1 / 26, 2)
    assert [bar.left for bar in bars] == [zero] * 3
    assert [(bar.low, bar.high) for bar in bars] == [
        (round(100 * 20 / 26, 2), 100),
        (round(100 * 18 / 26, 2), round(100 * 22 / 26, 2)),
        (0, round(100 * 8 / 26, 2)),
    ]


def test_the_page_has_the_tables_of_the_terminal_and_no_script():
    page = Page(render_comparison(comparison()))
    text = " ".join(" ".join(page.text).split())
    for expected in ("A step takes 22.0 ms more", "+17.0 ms to +21.0 ms", "rank test p <0.001"):
        assert expected in text
    assert [tag for tag, _ in page.elements if tag in ("script", "img")] == []
    assert [tag for tag, attributes in page.elements if attributes.get("scope") == "row"]


def test_names_from_a_run_are_text():
    html = render_comparison(comparison(HOSTILE))
    assert "<script" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "&lt;script&gt;alert(1)" in html
