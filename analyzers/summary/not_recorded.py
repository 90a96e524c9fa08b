"""What a run lacks, and what its page cannot say therefore."""

from collections.abc import Iterator

import msgspec

from esprof.analyzers.recorded_job import RecordedJob
from esprof.core import readable


class MissingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of record that a run lacks."""

    what: str
    unknown: str
    """What is unknown without it."""
    remedy: str


def not_recorded(job: RecordedJob, has_shapes: bool) -> tuple[MissingRecord, ...]:
    """Records that the run lacks; empty if it has all that the report can show."""
    return tuple(_missing(job, has_shapes))


def _missing(job: RecordedJob, has_shapes: bool) -> Iterator[MissingRecord]:
    run, ranks = job.run, job.run.ranks
    if run.missing_ranks:
        yield _lacks(
            readable.ranks(run.missing_ranks),
            "their work, and who waits for them",
            "Record all ranks, or merge their runs.",
        )
    if not any(len(job.samples.of(rank)) for rank in ranks):
        yield _lacks("Python stacks", "which function and line takes the time", "Record with esprof record.")
    if not any(len(run.stages(rank)) for rank in ranks):
        yield _lacks(
            "stages of the input", "why batches are late", "Record a job that uses DataLoaders with esprof record."
        )
    if not any(len(run.memory(rank)) for rank in ranks):
        yield _lacks("memory over time", "when memory peaks", "Record with esprof record.")
    if not has_shapes:
        yield _lacks("shapes of tensors", "other bucket sizes, FLOP and MFU", "Record with esprof record --shapes.")
    if run.probes is None:
        yield _lacks("benchmarks of the links", "codecs, and rates of links", "Record with esprof record --probe.")


def _lacks(what: str, unknown: str, remedy: str) -> MissingRecord:
    return MissingRecord(what=what, unknown=unknown, remedy=remedy)
