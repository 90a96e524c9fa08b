"""What a run lacks, and what its page cannot say therefore."""

from collections.abc import Iterator

from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.views.unrecorded import FLIGHT, PLAIN_STEPS, PROBE, SHAPES, Unrecorded, unrecorded
from esprof.core import readable


def not_recorded(job: RecordedJob, has_shapes: bool) -> Iterator[Unrecorded]:
    """Ranks and data that the run lacks; none if it has all that the report can show."""
    run = job.run
    if run.missing_ranks:
        yield Unrecorded(
            data=readable.ranks(run.missing_ranks),
            needed_for="their work, and who waits for them",
            remedy="Record all ranks, or merge their runs.",
        )

    def is_recorded(name: str) -> bool:
        if name == SHAPES:
            return has_shapes
        if name == PLAIN_STEPS:
            return len(job.steps.numbers("plain")) > 0
        if name == PROBE:
            return run.probes is not None
        if name == FLIGHT:
            return any(run.has_flight(rank) for rank in run.ranks)
        # The samples, which are many, have been read.
        return any(len(job.samples.of(rank) if name == "samples" else getattr(run, name)(rank)) for rank in run.ranks)

    yield from unrecorded(is_recorded)
