"""ESP101: ranks that wait for input data."""

import math
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from esprof import readable
from esprof.analyzers.breakdown import stalls
from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import RankBreakdown
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.term import scope
from esprof.types import Rank, ns

MOST_OF_IT = 0.8
"""Ranks are named, the worst stall first, until mending them gives this share of what mending all would."""

A_STALL = 0.1
"""Least stall, as a share of the worst rank's, for which a rank is named beside it."""

_ALL = "data=0"


def input_stalls(case: Case) -> Iterator[Cause]:
    """The DataLoader keeps ranks waiting."""
    ranks = stalling(case)
    scenario = f"{scope(ranks)}.data=0"
    saving = case.pricer.saving_ns(scenario) if ranks else None
    if saving is None or not case.worth_naming(saving):
        return
    stalls_ns = {part.rank: ns(part.input_stall) for part in case.parts if part.rank in ranks}
    worst = max(stalls_ns, key=lambda rank: stalls_ns[rank])
    stall = f"{'up to ' if len(ranks) > 1 else ''}{readable.duration(stalls_ns[worst])}"
    yield Cause(
        id="ESP101",
        title=f"{readable.ranks(ranks).capitalize()} {readable.verb('wait', ranks)} {stall} a step for input data",
        ranks=ranks,
        scenario=scenario,
        confidence="high" if case.run.stages(worst).is_kind("next").any() else "medium",
        evidence=_evidence(case.replayed, ranks, worst, case.parts),
        advice=_advice(case.replayed, worst, saving),
    )


def stalling(case: Case) -> tuple[Rank, ...]:
    """The fewest ranks, by stall, that bring most of the gain when their loaders are mended; none without a loader.

    Two loaders that are equally slow hide one another: mending one alone gains nothing.
    """
    dfg = case.replayed.built.dfg
    all_mended = case.pricer.saving_ns(_ALL)
    if all_mended is None:
        return ()
    loading = set(dfg.rank[dfg.of(Cls.DATA)].tolist())
    worst = max(part.input_stall for part in case.parts)
    stalling = [part for part in case.parts if part.rank in loading and part.input_stall >= A_STALL * worst]
    worst_first = [part.rank for part in sorted(stalling, key=lambda part: -part.input_stall)]

    def is_most(count: int) -> bool:
        saving = case.pricer.saving_ns(f"{scope(worst_first[:count])}.data=0")
        return saving is not None and saving >= MOST_OF_IT * all_mended

    # More ranks never gain less, so that few of all counts need be priced.
    fewest = 1 + bisect_left(range(1, len(worst_first)), True, key=is_most)
    return tuple(sorted(worst_first[:fewest]))


def _evidence(
    replayed: Replayed, ranks: tuple[Rank, ...], worst: Rank, parts: tuple[RankBreakdown, ...]
) -> dict[str, Evidence]:
    stall = {part.rank: ns(part.input_stall) for part in parts}
    evidence = {
        "input_stall": by_rank({rank: stall[rank] for rank in ranks}, "ns"),
        "input_stall_other_ranks": by_rank({rank: of for rank, of in stall.items() if rank not in ranks}, "ns"),
        "stalls": Evidence(sum(len(stalls(replayed.timeline, rank)) for rank in ranks)),
    }
    fetch, workers = _batches(replayed, worst)
    if fetch is not None:
        evidence |= {"batch": Evidence(round(fetch), "ns"), "loader_workers": Evidence(workers)}
    return evidence


def _batches(replayed: Replayed, rank: Rank) -> tuple[float | None, int]:
    """Median time (ns) to make a batch on `rank`, and how many workers make them (0: the rank itself)."""
    dfg = replayed.built.dfg
    made = (dfg.rank == rank) & dfg.of(Cls.DATA) & (dfg.dur_ns > 0)
    by_worker = made & dfg.on(LaneKind.LOADER)
    chosen = by_worker if by_worker.any() else made
    workers = int(replayed.run.stages(rank).ints("workers").max(initial=len(np.unique(dfg.lane[by_worker]))))
    return (float(np.median(dfg.dur_ns[chosen])) if chosen.any() else None), workers


def _advice(replayed: Replayed, rank: Rank, saving: float) -> str:
    fetch, workers = _batches(replayed, rank)
    without = replayed.pricer.step_ns - saving
    if fetch is None:
        return "Look at what the dataset does a sample, and give the DataLoader more workers."
    if workers == 0:
        return (
            f"The rank makes its batches itself, {readable.duration(fetch)} each, while its device waits: "
            "set num_workers on the DataLoader."
        )
    needed = math.ceil(fetch / max(without, 1))
    if needed > workers:
        return (
            f"A batch takes {readable.duration(fetch)} to make and a step without stall {readable.duration(without)}: "
            f"with num_workers={needed} (now {workers}) the loader would keep up, if the host has the cores and the "
            "storage the bandwidth. Where other ranks load faster, look at this rank's host first."
        )
    return "The loader is fast enough on average but bursty: raise prefetch_factor, or look at the slow batches."


_PAGES = (
    Page(
        "ESP101",
        "Ranks wait for input data",
        "The training loop asked its DataLoader for a batch and had to wait. In a job on several ranks one slow "
        "loader stops all: the others show it as waiting at the next collective, never as input stall.",
        "`input_stall` is the time per step inside the loader's next(), waiting or making the batch; `batch` "
        "what making one batch takes in a worker (recorded by `esprof record`; Kineto traces do not show workers).",
        "`data=0` of these ranks: replay makes their batches take no time and runs the whole job again.",
        "More workers (num_workers), a deeper prefetch, cheaper decoding, faster or closer storage, a cache. Compare "
        "the stalling rank's host and storage with the others' when only some ranks stall.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=input_stalls, scenarios=(_ALL,))
