"""The bubble of a pipeline: the share of a step in which its stages wait, against the theory of its schedule."""

from collections.abc import Sequence

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.finding import RankBreakdown
from esprof.replay.ranks.pipeline import Pipeline


def measured_bubble(pipeline: Pipeline, ranks: Sequence[RankBreakdown]) -> float:
    """Waiting for other ranks as a share of waiting and compute, the mean over the ranks of the pipelines."""
    of_pipeline = {rank for chain in pipeline.chains for rank in chain}
    mine = [one for one in ranks if one.rank in of_pipeline]
    return sum(one.wait / max(one.wait + one.compute, 1e-9) for one in mine) / max(len(mine), 1)


def bubble_evidence(pipeline: Pipeline | None, ranks: Sequence[RankBreakdown]) -> dict[str, Evidence]:
    """The schedule and its bubble; empty if it is unknown."""
    if pipeline is None:
        return {}
    chunks = f", {pipeline.chunks} chunks a stage" if pipeline.chunks > 1 else ""
    shares = {"measured": measured_bubble(pipeline, ranks), "if all stages were even": pipeline.bubble}
    return {
        "schedule": Evidence(f"{pipeline.stages} stages, {pipeline.micro_batches} micro-batches{chunks}"),
        "bubble": Evidence({name: round(share, 4) for name, share in shares.items()}, "share", "cause"),
    }
