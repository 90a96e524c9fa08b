"""Smaller Runs with the same verdict."""

from dataclasses import replace
from functools import cache

import pytest

from esprof.analyzers import diagnose
from esprof.analyzers.sharing import shared as sharing
from esprof.analyzers.sharing.shrink import shrunk
from esprof.analyzers.sharing.verdict import SharedVerdict
from esprof.run.sharing.contents import RunContents
from tests.cases.exported import cpu_run
from tests.cases.graph import op, run_of, step


def texts(contents, rank=0):
    return {name for name in contents.tables["events", rank].texts("name") if name}


def test_what_is_not_needed_is_left_out_and_told():
    told = []

    def preserves(contents):
        return "secret::inner" in texts(contents, 1) and any(contents.tables["events", 0].ints("step") == 3)

    small, left_out = shrunk(RunContents.of(cpu_run()), preserves, told.append)
    assert preserves(small)
    assert texts(small, 1) == {"secret::inner"}
    assert small.events <= 3
    assert told[:3] == ["other windows", "parts of the run", "names of events"]
    assert "parts of the run: memory" in [one.what for one in left_out]
    assert left_out[0].events_before == RunContents.of(cpu_run()).events
    assert left_out[-1].events_after == small.events


def test_nothing_is_left_out_of_a_run_that_needs_all():
    contents = RunContents.of(cpu_run())
    assert shrunk(contents, lambda other: False) == (contents, ())


def test_a_candidate_that_no_rule_can_read_is_not_accepted(monkeypatch):
    monkeypatch.setattr(sharing, "diagnose", lambda run, **_: 1 / 0)
    assert not sharing._has_verdict(SharedVerdict.of(diagnose(cpu_run())), 10, RunContents.of(cpu_run()))


def test_a_run_without_a_diagnosis_can_be_redacted_only():
    nothing = run_of({0: []})
    with pytest.raises(sharing.InputError, match="nothing says what matters"):
        sharing.shared(nothing, redact=False, shrink=True)
    assert sharing.shared(nothing, redact=True, shrink=False).verdict is None


@cache
def _verdict():
    return SharedVerdict.of(diagnose(cpu_run()))


def verdict(**changes):
    return replace(_verdict(), **changes)


def test_figures_may_change_by_one_per_cent_and_words_not_at_all():
    is_kept = verdict().is_kept_by
    assert is_kept(verdict())
    assert is_kept(verdict(saving_us=verdict().saving_us * 1.009, step_us=verdict().step_us * 0.991))
    for change in (
        {"saving_us": verdict().saving_us * 1.02},
        {"step_us": verdict().step_us * 0.98},
        {"step_us": None},
        {"id": "ESP101"},
        {"ranks": (0,)},
        {"confidence": "low"},
        {"missing_ranks": (1,)},
        {"places": frozenset()},
        {"title": "another"},
    ):
        assert not is_kept(verdict(**change)), change


def test_figures_of_a_title_are_figures():
    is_kept = verdict(title="1,050 of 1,251 kernels take 57.4 ms").is_kept_by
    assert is_kept(verdict(title="1,051 of 1,250 kernels take 57.1 ms"))
    assert not is_kept(verdict(title="1,050 of 1,251 kernels take 59.0 ms"))
    assert not is_kept(verdict(title="1,050 of 1,251 kernels take 57.4 µs"))


def test_without_a_saving_the_attribution_is_preserved():
    assert not verdict().attribution
    assert verdict().preserved == "ESP201, 10.0 ms of a step of 50.0 ms"
    rows = [(step(number, 100 * number, 100 * number + 100), op("aten::mm", 100 * number, 100)) for number in range(6)]
    nothing = SharedVerdict.of(diagnose(run_of({0: [row for pair in rows for row in pair]})))
    assert nothing.id is None
    assert [part[:2] for part in nothing.attribution][:2] == [(0, "compute"), (0, "exposed_communication")]
    assert "where" in nothing.preserved
    other = [*nothing.attribution]
    other[0] = (*other[0][:2], other[0][2] + 0.02 * nothing.step_us)
    assert not nothing.is_kept_by(replace(nothing, attribution=tuple(other)))
