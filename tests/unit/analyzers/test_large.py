"""Diagnosis of runs whose ranks are replayed one by one."""

import pytest

from benchmarks.large_job import LargeJob, write
from esprof import load
from esprof.analyzers import large as analyzers_large
from esprof.analyzers import summarize
from esprof.analyzers.diagnosis import diagnose
from esprof.analyzers.large import MAX_RANKS_EXAMINED, LargeCase, examined_ranks
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.replay.replayed import Replayed
from esprof.replay.skeleton import large
from esprof.replay.skeleton.large import LargeReplay
from esprof.reports.html.page import render_html
from tests.cases.exported import cpu_rank, cpu_run
from tests.cases.graph import run_of

MANY = 40
SLOW = 23


@pytest.fixture(scope="module")
def many():
    """Ranks of which one is late at each all-reduce."""
    return run_of({rank: cpu_rank(10 if rank == SLOW else 0) for rank in range(MANY)})


def test_a_slow_rank_among_many_is_the_first_finding(many, monkeypatch):
    whole = diagnose(many)
    monkeypatch.setattr(large, "MAX_EVENTS", 0)
    found = diagnose(many)
    assert found.findings[0].ranks == whole.findings[0].ranks == (SLOW,)
    assert found.findings[0].id == whole.findings[0].id == "ESP201"
    assert found.findings[0].saving_us == whole.findings[0].saving_us
    assert found.verdict == whole.verdict
    assert found.breakdown == whole.breakdown


def test_what_was_not_looked_at_is_said(many, monkeypatch):
    monkeypatch.setattr(large, "MAX_EVENTS", 0)
    (warning,) = (one for one in diagnose(many).warnings if one.code == "ranks-examined")
    assert len(warning.ranks) == MAX_RANKS_EXAMINED
    assert SLOW in warning.ranks
    assert f"all {MANY} ranks" in warning.message
    assert "ESP207" in warning.message


def test_a_large_run_of_few_ranks_has_the_findings_of_the_whole_graph(monkeypatch):
    whole = diagnose(cpu_run())
    monkeypatch.setattr(large, "MAX_EVENTS", 0)
    found = diagnose(cpu_run())
    assert found.findings == whole.findings
    assert found.uncertain == whole.uncertain


@pytest.mark.slow
def test_a_slow_link_of_few_ranks_has_the_price_of_the_whole_graph(tmp_path, monkeypatch):
    write(tmp_path / "run", LargeJob(2, 2, 2, steps=5, microbatches=4, kernels=5))
    whole = diagnose(load(tmp_path / "run")).findings[0]
    monkeypatch.setattr(large, "MAX_EVENTS", 0)
    monkeypatch.setattr(analyzers_large, "MAX_RANKS_EXAMINED", 4)
    found = diagnose(load(tmp_path / "run")).findings[0]
    assert found.id == whole.id == "ESP304"
    assert (found.title, found.saving_us, found.what_if) == (whole.title, whole.saving_us, whole.what_if)


def test_the_report_draws_the_ranks_that_are_examined(many, monkeypatch):
    whole = summarize(many)
    monkeypatch.setattr(large, "MAX_EVENTS", 0)
    found = summarize(many)
    assert len(found.timeline.ranks) == MAX_RANKS_EXAMINED
    assert SLOW in found.timeline.ranks
    assert (found.timeline.of_ranks, found.timeline.path) == (MANY, ())
    assert [row.spread_us for row in found.arrivals.rows] == [row.spread_us for row in whole.arrivals.rows]
    assert {row.last for row in found.arrivals.rows} == {SLOW}
    assert (found.steps, found.operations) == (whole.steps, whole.operations)
    assert found.diagnosis.findings[0].title in render_html(found)


def test_ranks_with_most_time_in_an_activity_are_examined(many):
    replayed = LargeReplay.by_rank(many)
    case = LargeCase.of(replayed, RecordedJob(many))
    whole = Case(Replayed.of(many), RecordedJob(many))
    waits = max(whole.breakdown, key=lambda one: one.wait).rank
    assert {SLOW, waits} <= {*examined_ranks(replayed, case.breakdown)}
