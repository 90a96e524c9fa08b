"""Diagnosis of runs whose ranks are replayed one by one."""

import pytest

from esprof.analyzers.diagnosis import diagnose
from esprof.analyzers.large import MAX_RANKS_EXAMINED, LargeCase, examined_ranks
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.replay.replayed import Replayed
from esprof.replay.skeleton import large
from esprof.replay.skeleton.large import LargeReplay
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


def test_ranks_with_most_time_in_an_activity_are_examined(many):
    replayed = LargeReplay.by_rank(many)
    case = LargeCase.of(replayed, RecordedJob(many))
    whole = Case(Replayed.of(many), RecordedJob(many))
    waits = max(whole.breakdown, key=lambda one: one.wait).rank
    assert {SLOW, waits} <= {*examined_ranks(replayed, case.breakdown)}
