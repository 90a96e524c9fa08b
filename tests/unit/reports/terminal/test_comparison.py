"""The result of `compare` as text and Markdown: the parts in a table, and names that are harmless."""

import re

import pytest

from esprof.analyzers.comparison.answer import (
    BEYOND_RECORDING,
    ComparedRun,
    FindingChange,
    PartChange,
    PlaceChange,
    RunComparison,
    SaveChange,
    StepChange,
)
from esprof.reports.terminal.comparison import draw_comparison, markdown_comparison
from esprof.run.run import RunWarning

HOSTILE = "<script>alert(1)</script>\n::error file=x::owned\x1b[31m\u202e|`*[a](http://x)@someone"


def change(before_us, after_us, margin_us):
    difference = after_us - before_us
    return {
        "before_us": before_us,
        "after_us": after_us,
        "change_us": difference,
        "low_us": difference - margin_us,
        "high_us": difference + margin_us,
        "noise": abs(difference) <= margin_us,
    }


def comparison(name="all_reduce", **fields) -> RunComparison:
    run = ComparedRun(
        sources=(name,), command=("python", name), world_size=2, recorded_steps=(1, 2), explained_pct=99.0
    )
    communication = change(8_000.0, 27_000.0, 2_000.0)
    step = StepChange(
        **change(105_000.0, 127_000.0, 3_000.0),
        pct=21.0,
        p=0.0001,
        median_before_us=104_000.0,
        median_after_us=126_000.0,
        steps_before=60,
        steps_after=70,
        block=4,
        detectable_us=4_300.0,
    )
    parts = (
        PartChange(
            name="communication",
            **communication,
            places=(PlaceChange(name=name, line=None, **communication),),
            alike_pct=None,
        ),
        PartChange(name=BEYOND_RECORDING, **change(0.0, 3_000.0, 4_000.0), places=(), alike_pct=None),
    )
    plain = {
        "verdict": f"A step takes 22.0 ms more: {name}",
        "unit": "step",
        "phase": "plain",
        "confidence": 0.95,
        "before": run,
        "after": run,
        "step": step,
        "without_cpu_wait": None,
        "parts": parts,
        "ranks": (),
        "operators": (),
        "collectives": (),
        "code": (),
        "waits": (),
        "saves": None,
        "findings": (FindingChange(id="ESP302", title=name, saving_us=9_000.0, is_new=True),),
        "differs": (),
        "warnings": (RunWarning("odd", name),),
    }
    return RunComparison(**(plain | fields))


def test_the_parts_stand_below_the_step_with_their_intervals():
    lines = draw_comparison(comparison()).splitlines()
    assert lines[0] == "A step takes 22.0 ms more: all_reduce"
    rows = [" ".join(line.split()) for line in lines]
    assert "step 105.0 ms 127.0 ms +22.0 ms +19.0 ms to +25.0 ms" in rows
    assert "exposed communication 8.00 ms 27.0 ms +19.0 ms +17.0 ms to +21.0 ms" in rows
    assert "steps that were not recorded 0 ms 3.00 ms +3.00 ms −1.00 ms to +7.00 ms noise" in rows
    assert "new ESP302 all_reduce 9.00 ms" in rows


def test_saves_are_listed():
    saves = SaveChange(every_before=None, every_after=8, stops_before_us=None, stops_after_us=60_000.0)
    text = " ".join(draw_comparison(comparison(saves=saves)).split())
    assert "Saves" in text
    assert "every 8 steps" in text


@pytest.mark.parametrize("render", [draw_comparison, markdown_comparison])
def test_names_from_the_runs_are_harmless(render):
    text = render(comparison(HOSTILE))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search(r"^\s*::", text, re.MULTILINE)


def test_markdown_escapes_names():
    text = markdown_comparison(comparison(HOSTILE))
    for part in ("<script>", "](http", "@someone", "`*"):
        assert part not in text
    assert all(line.count("|") == 7 for line in text.splitlines() if line.startswith("| ") and "step" in line)
