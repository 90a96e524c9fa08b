"""What was recorded of each rank, read to the last page; and data that no rank has."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.validity.answer import Part, RankParts, Unrecorded
from esprof.core.errors import InputError
from esprof.run.directory import SCHEMAS
from esprof.run.run import RankMeta, Run, RunWarning

FLIGHT = "flight"

_OPTIONAL = {
    "stages": (
        "DataLoaders",
        "the what-ifs loader.workers=, loader.prefetch=, storage=, decode= and cache=; ESP102 to ESP111",
        "`esprof record` records them if the job has any.",
    ),
    "accesses": ("sample keys", "the what-if order=, and counted hits in cache=", "Use `esprof record --sample-keys`."),
    "memory": ("memory", "memory over the step; ESP502 and ESP503", "`esprof record` records it."),
    "samples": ("sampled stacks", "`esprof ops --flame`, and lines of code in findings", "`esprof record` takes them."),
    "stacks": (
        "a window with stacks",
        "the what-if python[REGEX]=0; ESP402",
        "`esprof record` takes one unless --stack-steps is 0.",
    ),
    FLIGHT: ("flight records", "the causes of hangs and crashes (ESP801 to ESP805)", "`esprof record` writes them."),
}
"""Name of a part -> (its data, what needs it, how to record it)."""


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


def unrecorded(run: Run, ranks: tuple[RankParts, ...]) -> Iterator[Unrecorded]:
    """Optional data that no rank of `run` has."""
    if not any(_has_shapes(run, rank) for rank in ranks):
        yield Unrecorded(
            data="input shapes",
            needed_for="the what-ifs bucket_mb= and compress=, the model FLOP utilisation, and `esprof ops --by-shape`",
            remedy="Use `esprof record --shapes`, or record_shapes=True of torch.profiler.",
        )
    if not any(_has_plain_steps(run, rank) for rank in ranks):
        yield Unrecorded(
            data="steps without the profiler",
            needed_for="the overhead of the profiler, the step time without it, and `esprof check` on plain steps",
            remedy="Let the job run longer than the window of `esprof record`.",
        )
    for name, (data, needed_for, remedy) in _OPTIONAL.items():
        if all(rank.parts[name].state == "absent" for rank in ranks):
            yield Unrecorded(data=data, needed_for=needed_for, remedy=remedy)
    if run.probes is None:
        yield Unrecorded(
            data="a probe",
            needed_for="the what-if compress=, and narrower intervals of network= and bucket_mb=",
            remedy="Use `esprof probe`, or `esprof record --probe`.",
        )


def _has_shapes(run: Run, rank: RankParts) -> bool:
    """Whether operations of the model have shapes; collectives have them always."""
    if rank.parts["events"].state != "present":
        return False
    events = run.events(rank.rank)
    (names, texts), (shapes, known) = events.codes("name"), events.codes("shapes")
    of_model = np.isin(names, [code for code, text in enumerate(texts) if text.startswith("aten::")])
    return bool((of_model & np.isin(shapes, [code for code, text in enumerate(known) if text])).any())


def _has_plain_steps(run: Run, rank: RankParts) -> bool:
    if rank.parts["steps"].state != "present":
        return False
    return "plain" in run.steps(rank.rank).texts("phase")
