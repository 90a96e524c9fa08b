"""Findings, breakdowns and comparisons: pure functions over a Run, its Dfg and its Timeline."""

from esprof.analyzers.diagnose import diagnose, diagnose_unreplayed, stopped_by
from esprof.analyzers.finding import Diagnosis
from esprof.analyzers.ignore import NOTHING, Ignores
from esprof.analyzers.summary.report import Report
from esprof.analyzers.summary.summary import summarize
from esprof.errors import InputError
from esprof.replay.replayed import replay_run
from esprof.replay.whatif.pricing import MAX_ERROR_PCT
from esprof.trace.run import Run

__all__ = ["diagnose", "diagnose_run", "report_run", "summarize"]


def diagnose_run(run: Run, max_error_pct: float = MAX_ERROR_PCT, ignores: Ignores = NOTHING) -> Diagnosis:
    """Build, replay and diagnose `run`; without replay where it has no window, or where it hung before all had one.

    Nothing is priced where replay's own error on the run is above `max_error_pct`, in per cent of a step. What
    `ignores` covers is told apart.
    """
    if not any(len(run.events(rank)) for rank in run.ranks):
        return diagnose_unreplayed(run, ignores)
    try:
        return diagnose(replay_run(run, max_error_pct=max_error_pct), ignores)
    except InputError:
        if not stopped_by(run):
            raise
        return diagnose_unreplayed(run, ignores)


def report_run(run: Run, ignores: Ignores = NOTHING) -> Report:
    """Build, replay, diagnose and sum up `run`; what `ignores` covers is told apart."""
    return summarize(replay_run(run), ignores)
