"""The plan of a set of changes."""

from typing import Any, Literal

from esprof.analyzers.advisors.job.planned import plan_of, section_of
from esprof.analyzers.advisors.loader.advise import PREFETCH, WORKERS, JobLoaders
from esprof.analyzers.advisors.search.changes import BUCKET_SIZE, CODEC
from esprof.core.plan import CodecChoice, CompressionBody, LoaderBody, Plan, PlanPart, PlanParts, PlanPromise
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.gradients.shards import Shards
from esprof.replay.whatif.graph.est_load import has_est_records
from esprof.replay.whatif.term import Term

_WARM_UP = 2
"""Steps in which nothing is compressed: torch rebuilds its buckets after the first."""


def plan_of_changes(replayed: Replayed, terms: tuple[Term, ...], promise: PlanPromise) -> Plan | None:
    """The plan of a set of terms, with the step that all of them promise together; None if a plan cannot express them all:
    it has workers and prefetching of all DataLoaders, and a codec with its bucket size."""
    values = {term.kind.name: term.value for term in terms if not (term.only or term.device)}
    expressed = {WORKERS, PREFETCH} | ({CODEC, BUCKET_SIZE} if CODEC in values else set())
    if not terms or len(values) < len(terms) or not expressed.issuperset(values):
        return None
    if str(values.get(CODEC, "")).endswith(".json"):
        return None
    is_elastic = has_est_records(replayed.run)
    applies: Literal["live", "restart"] = "live" if is_elastic else "restart"
    parts: dict[str, PlanPart[Any]] = {}
    if not {WORKERS, PREFETCH}.isdisjoint(values):
        body, changes_bits = _loader(replayed, values), not is_elastic and WORKERS in values
        parts["loader"] = section_of(replayed, body, promise, applies=applies, changes_bits=changes_bits)
    if CODEC in values:
        parts["compression"] = section_of(
            replayed, _compression(replayed, values), promise, applies="restart", changes_bits=True
        )
    return plan_of(replayed.run, PlanParts(**parts))


def _loader(replayed: Replayed, values: dict[str, Any]) -> LoaderBody:
    loaders = JobLoaders.of(replayed)
    workers = values.get(WORKERS, loaders.now.workers)
    return LoaderBody(workers=workers, prefetch=values.get(PREFETCH, loaders.least_prefetch) if workers else None)


def _compression(replayed: Replayed, values: dict[str, Any]) -> CompressionBody:
    if Shards.of(replayed.run, replayed.pricer.dfg) is not None:
        return CompressionBody(sharded=values[CODEC])
    return CompressionBody(
        default=CodecChoice(codec=values[CODEC]), bucket_mb=values.get(BUCKET_SIZE), warm_up_steps=_WARM_UP
    )
