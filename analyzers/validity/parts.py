"""What was recorded of each rank, read to the last page; and data that no rank has."""

from collections.abc import Iterator

from esprof.analyzers.validity.answer import Part, RankParts
from esprof.analyzers.views.unrecorded import FLIGHT, PLAIN_STEPS, PROBE, SHAPES, Unrecorded, unrecorded
from esprof.core.errors import InputError
from esprof.run.directory import SCHEMAS
from esprof.run.run import RankMeta, Run, RunWarning


def parts_of(run: Run, meta: RankMeta) -> RankParts:
    """The parts of one rank. Every table is read completely, since its footer alone does not show damage."""
    return RankParts(
        rank=meta.rank,
        host=meta.host,
        device=meta.device,
        parts={name: _table(run, name, meta) for name in SCHEMAS} | {FLIGHT: _flight(run, meta)},
        windows=meta.windows,
        windows_lost=meta.windows_lost,
        dropped_events=meta.dropped_events,
        dropped_steps=meta.dropped_steps,
        ended=meta.ended,
    )


def _table(run: Run, name: str, meta: RankMeta) -> Part:
    try:
        rows = run.recorded(name, meta.rank)
    except InputError as error:
        return Part(state="broken", reason=error.reason)
    return Part(state="absent") if rows is None else Part(state="present", rows=len(rows))


def _flight(run: Run, meta: RankMeta) -> Part:
    try:
        return Part(state="present" if run.has_flight(meta.rank) else "absent")
    except InputError as error:
        return Part(state="broken", reason=error.reason)


def broken(rank: RankParts) -> Iterator[RunWarning]:
    """A fault for each broken part of a rank."""
    for name, part in rank.parts.items():
        if part.state == "broken":
            yield RunWarning(
                "part-broken", f"rank {rank.rank}: its {name} cannot be read ({part.reason})", (rank.rank,)
            )


def unrecorded_of(run: Run, ranks: tuple[RankParts, ...]) -> Iterator[Unrecorded]:
    """Optional data that no rank of `run` has."""

    def is_recorded(name: str) -> bool:
        if name == SHAPES:
            return any(_has_shapes(run, rank) for rank in ranks)
        if name == PLAIN_STEPS:
            return any(_has_plain_steps(run, rank) for rank in ranks)
        if name == PROBE:
            return run.probes is not None
        return any(rank.parts[name].state != "absent" for rank in ranks)

    return unrecorded(is_recorded)


def _has_shapes(run: Run, rank: RankParts) -> bool:
    """Whether operations of the model have shapes; collectives have them always."""
    if rank.parts["events"].state != "present":
        return False
    events = run.events(rank.rank)
    of_model = events.matches("name", lambda name: name.startswith("aten::"))
    return bool((of_model & events.matches("shapes", bool)).any())


def _has_plain_steps(run: Run, rank: RankParts) -> bool:
    if rank.parts["steps"].state != "present":
        return False
    return "plain" in run.steps(rank.rank).texts("phase")
