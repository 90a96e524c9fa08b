"""Advice for the job of one run, from the advisor for its kind of job."""

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
    """Advise the assignment of an elastic job's ESTs and the gain from devices of `inventory`, or, for plain data-parallel
    training, the samples of each rank.

    Raises EsprofError if the run lacks data, UsageError for an inventory if the job is not elastic.
    """
    replayed = of if isinstance(of, Replayed) else Replayed.of(of)
    if has_est_records(replayed.run):
        return advise_ests(replayed, inventory)
    if inventory is not None:
        raise UsageError("only jobs of ElasticTrainer(telemetry=RUN) can get advice on other devices")
    return advise_batches(replayed)


def recommend_compression(of: Run | Replayed, max_vnmse: float = MAX_VNMSE) -> CompressionAdvice:
    """Advise a codec for each gradient bucket of a DDP job, or for all ESTs of an elastic job, so that the gradient loses at
    most `max_vnmse` of its square.

    Raises EsprofError if the run lacks data: DDP needs shapes and a probe, an elastic job the exchanges that `esprof tune
    --allow compression` measures.
    """
    replayed = of if isinstance(of, Replayed) else Replayed.of(of)
    if has_est_records(replayed.run):
        return advise_est_codec(replayed, max_vnmse)
    return advise_compression(replayed, max_vnmse)
