"""Advice for the job of one run: by what kind of job it is, the advisor that knows it."""

from esprof.analyzers.advisors.compression.advise import advise_compression
from esprof.analyzers.advisors.compression.answer import MAX_VNMSE, CompressionAdvice
from esprof.analyzers.advisors.compression.ests import advise_est_codec
from esprof.analyzers.advisors.job.batches import BatchAdvice, advise_batches
from esprof.analyzers.advisors.job.est_answer import EstAdvice
from esprof.analyzers.advisors.job.ests import advise_ests
from esprof.analyzers.advisors.job.growth import Inventory
from esprof.core.errors import UsageError
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.graph.est_load import has_est_records
from esprof.run.run import Run


def recommend(of: Run | Replayed, inventory: Inventory | None = None) -> EstAdvice | BatchAdvice:
    """Which EST of an elastic job runs where, and what the devices of `inventory` would bring it; of plain data-parallel
    training, how many samples each rank should have.

    Raises EsprofError where the run does not tell enough, UsageError for an inventory where it is of no elastic job.
    """
    replayed = of if isinstance(of, Replayed) else Replayed.of(of)
    if has_est_records(replayed.run):
        return advise_ests(replayed, inventory)
    if inventory is not None:
        raise UsageError("advice on other devices is for jobs of ElasticTrainer(telemetry=RUN) alone")
    return advise_batches(replayed)


def recommend_compression(of: Run | Replayed, max_vnmse: float = MAX_VNMSE) -> CompressionAdvice:
    """Which codec each gradient bucket of a job of DDP, or all ESTs of an elastic one, should have, so that the gradient
    loses at most `max_vnmse` of its square. Raises EsprofError where the run does not tell enough: of DDP it needs shapes
    and a probe, of an elastic job what `esprof tune --allow compression` asks it for."""
    replayed = of if isinstance(of, Replayed) else Replayed.of(of)
    if has_est_records(replayed.run):
        return advise_est_codec(replayed, max_vnmse)
    return advise_compression(replayed, max_vnmse)
