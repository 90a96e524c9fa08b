"""ESP2xx: ranks that come last to collectives while the others wait, and why they do."""

from dataclasses import dataclass

import numpy as np

from esprof.analyzers.finding import Finding
from esprof.analyzers.findings.quality import ENOUGH_EXPLAINED
from esprof.analyzers.pricing import finding, listed, ms, worth_naming
from esprof.replay.answering import Replayed
from esprof.replay.blame import FEW_STEPS, arrivals, slow_ranks
from esprof.replay.dfg import Cls
from esprof.replay.whatif.scenario import Declined, fix_stragglers
from esprof.types import NS_PER_MS, Rank


@dataclass(frozen=True)
class Cause:
    """A kind of work that can make a rank late."""

    id: str
    phrase: str
    classes: tuple[Cls, ...]
    advice: str


CAUSES = (
    Cause(
        "ESP201",
        "time in code that no operation was recorded for",
        (Cls.HOST_GAP,),
        "What runs there may be Python code, a sleep, logging, file or network access, garbage collection, or a "
        "host whose CPU is taken by others.",
    ),
    Cause(
        "ESP202",
        "slower compute",
        (Cls.COMPUTE, Cls.CONTENTION),
        "The same operations take longer on this rank: compare clocks, temperature, other tenants and thread counts of "
        "its device with the others', and whether it gets more work (longer sequences, larger batches).",
    ),
    Cause(
        "ESP203",
        "slower CPU work and launches",
        (Cls.CPU, Cls.LAUNCH),
        "Its CPU issues the same calls more slowly: look for other processes on its host, CPU limits, or a process bound "
        "to the wrong NUMA node.",
    ),
    Cause(
        "ESP204",
        "memory allocation",
        (Cls.ALLOCATOR,),
        "Its allocator runs short and asks the driver (cudaMalloc, cudaFree): lower its memory use, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    ),
)
_ALL = tuple(cls for cause in CAUSES for cls in cause.classes)


def stragglers(replayed: Replayed) -> list[Finding]:
    """ESP201–204: the slow ranks, if they are worth mending, named by their main cause.

    They are priced together: of two that are late by turns, mending one alone gains nothing
    (docs/replay.md §4). What they lose to their data loaders is priced apart (ESP101).
    """
    ranks = tuple(slow_ranks(replayed.built.dfg, replayed.steady.kept))
    saving = _saving(replayed, ranks, _ALL) if ranks else None
    if saving is None or not worth_naming(replayed, saving):
        return []
    shares = {cause: _saving(replayed, ranks, cause.classes) or 0.0 for cause in CAUSES}
    cause = max(shares, key=lambda cause: shares[cause])
    margin = abs(replayed.oracle.strict_error) * replayed.oracle.step_ns
    sure = replayed.explained_pct >= ENOUGH_EXPLAINED and len(replayed.steady.kept) >= FEW_STEPS
    evidence = _evidence(replayed, ranks)
    evidence["saving_ms_by_cause"] = {cause.phrase: ms(share) for cause, share in shares.items() if share > 0}
    places = {rank: place for rank in ranks if (place := _place(replayed, rank, cause))}
    evidence["place"] = {str(rank): place for rank, place in places.items()}
    return [
        finding(
            replayed,
            cause.id,
            f"{listed(ranks).capitalize()} {'keeps' if len(ranks) == 1 else 'keep'} the others waiting: {cause.phrase}",
            ranks=ranks,
            saving_ns=saving,
            confidence="high" if sure and saving > 2 * margin else "medium",
            evidence=evidence,
            advice=" ".join([*(_pointer(rank, place) for rank, place in places.items()), cause.advice]),
            command="esprof replay RUN --what-if straggler=fix",
        )
    ]


def _saving(replayed: Replayed, ranks: tuple[Rank, ...], classes: tuple[Cls, ...]) -> float | None:
    """What a step gains (ns) when these ranks' work of these classes takes as long as their peers'."""
    dfg = replayed.built.dfg
    try:
        fixed = fix_stragglers(dfg, list(ranks), classes)
    except Declined:
        return None
    return replayed.oracle.saving_ns(fixed.dfg)


def _evidence(replayed: Replayed, ranks: tuple[Rank, ...]) -> dict[str, object]:
    steps = replayed.steady.kept
    seen = arrivals(replayed.built.dfg, steps)
    late = dict(zip(seen.ranks, seen.late_ns(steps).sum(axis=0) / len(steps), strict=True))
    last = np.bincount(seen.last(), minlength=len(seen.ranks))
    return {
        "collectives": len(seen),
        "last_at": {str(rank): int(last[seen.ranks.index(rank)]) for rank in ranks},
        "late_ms_per_step": {str(rank): ms(late[rank]) for rank in ranks},
        "late_ms_per_step_other_ranks": ms(sum(value for rank, value in late.items() if rank not in ranks)),
    }


def _place(replayed: Replayed, rank: Rank, cause: Cause) -> dict[str, object]:
    """Where on its lanes this rank loses most against its peers: the operation or gap, and the Python line if known."""
    dfg = replayed.built.dfg
    fixed = fix_stragglers(dfg, [rank], cause.classes)
    lost = dfg.dur_ns - fixed.dfg.dur_ns
    mine = np.flatnonzero((dfg.rank == rank) & np.isin(dfg.step, replayed.steady.kept) & (lost > 0))
    if not len(mine):
        return {}
    by_name = np.bincount(dfg.name[mine], weights=lost[mine], minlength=len(dfg.names))
    name = dfg.names[int(by_name.argmax())]
    place: dict[str, object] = {"where": name, "lost_ms_per_step": ms(by_name.max() / len(replayed.steady.kept))}
    return place | _python_line(replayed, rank, name)


def _pointer(rank: Rank, place: dict[str, object]) -> str:
    where = place.get("python") or place["where"]
    calling = f", calling {place['call']}" if "call" in place else ""
    return f"Rank {rank} loses {place['lost_ms_per_step']:.1f} ms a step in {where}{calling}."


def _python_line(replayed: Replayed, rank: Rank, name: str) -> dict[str, object]:
    """The Python frame that ran in the gap `before → after`, from the window with stacks."""
    before, _, after = name.partition(" → ")
    stacks = replayed.run.stacks(rank)
    texts = (stacks.texts(column) for column in ("before", "after", "frame", "call"))
    rows = zip(*texts, stacks.ints("dur_ns").tolist(), strict=True)
    hits = [(dur, frame, call or "") for b, a, frame, call, dur in rows if b == before and a == after and frame]
    if not hits or max(hits)[0] < NS_PER_MS / 2:
        return {}
    _, frame, call = max(hits)
    return {"python": frame} | ({"call": call} if call else {})
