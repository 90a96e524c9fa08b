"""Findings, breakdowns and comparisons: pure functions over a Run, its Dfg and its Timeline."""

from esprof.analyzers.diagnose import diagnose
from esprof.analyzers.finding import Diagnosis
from esprof.analyzers.report import Report
from esprof.analyzers.summary import summarize
from esprof.replay.answering import replay_run
from esprof.trace.run import Run

__all__ = ["diagnose", "diagnose_run", "report_run", "summarize"]


def diagnose_run(run: Run) -> Diagnosis:
    """Build, replay and diagnose `run`."""
    return diagnose(replay_run(run))


def report_run(run: Run) -> Report:
    """Build, replay, diagnose and sum up `run`."""
    return summarize(replay_run(run))
