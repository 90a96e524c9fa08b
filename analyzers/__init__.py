"""Findings, breakdowns and comparisons: pure functions over a Run, its Dfg and its Timeline."""

from esprof.analyzers.advisors.compression.advise import advise_compression
from esprof.analyzers.advisors.compression.answer import MAX_VNMSE, CompressionAdvice
from esprof.analyzers.advisors.compression.ests import advise_est_codec
from esprof.analyzers.advisors.job.batches import BatchAdvice, advise_batches
from esprof.analyzers.advisors.job.ests import EstAdvice, advise_ests
from esprof.analyzers.advisors.job.growth import Inventory
from esprof.analyzers.diagnose import diagnose, diagnose_unreplayed, stopped_by
from esprof.analyzers.finding import Diagnosis
from esprof.analyzers.ignore import NOTHING, Ignores
from esprof.analyzers.summary.report import Report
from esprof.analyzers.summary.summary import summarize
from esprof.core.errors import InputError, UsageError
from esprof.replay.replayed import replay_run
from esprof.replay.whatif.graph.est_turns import tells_of_ests
from esprof.replay.whatif.pricing import MAX_ERROR_PCT
from esprof.run.run import Run

__all__ = ["diagnose", "diagnose_run", "recommend", "recommend_compression", "report_run", "summarize"]


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


def recommend(run: Run, inventory: Inventory | None = None) -> EstAdvice | BatchAdvice:
    """Which EST of an elastic job runs where, and what the devices of `inventory` would bring it; of plain data-parallel
    training, how many samples each rank should have.

    Raises EsprofError where the run does not tell enough, UsageError for an inventory where it is of no elastic job.
    """
    replayed = replay_run(run)
    if tells_of_ests(replayed.run):
        return advise_ests(replayed, inventory)
    if inventory is not None:
        raise UsageError("advice on other devices is for jobs of ElasticTrainer(telemetry=RUN) alone")
    return advise_batches(replayed)


def recommend_compression(run: Run, max_vnmse: float = MAX_VNMSE) -> CompressionAdvice:
    """Which codec each gradient bucket of a job of DDP, or all ESTs of an elastic one, should have, so that the gradient
    loses at most `max_vnmse` of its square. Raises EsprofError where the run does not tell enough: of DDP it needs shapes
    and a probe, of an elastic job what `esprof tune --allow compression` asks it for."""
    replayed = replay_run(run)
    if tells_of_ests(replayed.run):
        return advise_est_codec(replayed, max_vnmse)
    return advise_compression(replayed, max_vnmse)
