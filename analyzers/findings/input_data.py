"""ESP1xx: ranks that wait for input data."""

import math

import numpy as np

from esprof.analyzers.finding import Finding, RankBreakdown
from esprof.analyzers.pricing import finding, listed, ms, worth_naming
from esprof.analyzers.summary.breakdown import stalls
from esprof.replay.answering import Replayed
from esprof.replay.dfg import Cls
from esprof.replay.whatif.scenario import Declined, without_input_stall
from esprof.types import Rank

MOST_OF_IT = 0.8
"""Ranks are named, the worst stall first, until mending them gives this share of what mending all would."""

A_STALL = 0.1
"""Least stall, as a share of the worst rank's, for which a rank is named beside it."""


def input_stalls(replayed: Replayed, parts: tuple[RankBreakdown, ...]) -> list[Finding]:
    """ESP101: the DataLoader keeps ranks waiting."""
    try:
        ranks, saving = _stalling(replayed, parts)
    except Declined:
        return []
    if not worth_naming(replayed, saving):
        return []
    stall = next(part.input_stall for part in parts if part.rank == ranks[0]) / 1e3
    return [
        finding(
            replayed,
            "ESP101",
            f"{listed(ranks).capitalize()} {'waits' if len(ranks) == 1 else 'wait'} {stall:.1f} ms a step for input data",
            ranks=ranks,
            saving_ns=saving,
            confidence="high" if len(replayed.run.stages(ranks[0])) else "medium",
            evidence=_evidence(replayed, ranks, parts),
            advice=_advice(replayed, ranks[0], saving),
            command="esprof replay RUN --what-if data=0",
        )
    ]


def _stalling(replayed: Replayed, parts: tuple[RankBreakdown, ...]) -> tuple[tuple[Rank, ...], float]:
    """The fewest ranks, by stall, that bring most of the gain (ns a step) when their loaders are mended.

    Two loaders that are equally slow hide one another: mending one alone gains nothing. Raises Declined without loader.
    """
    dfg, oracle = replayed.built.dfg, replayed.oracle
    all_mended = oracle.saving_ns(without_input_stall(dfg))
    loading = set(dfg.rank[dfg.of(Cls.DATA)].tolist())
    worst = max(part.input_stall for part in parts)
    stalling = [part for part in parts if part.rank in loading and part.input_stall >= A_STALL * worst]
    worst_first = sorted(stalling, key=lambda part: -part.input_stall)
    ranks: list[Rank] = []
    saving = 0.0
    for part in worst_first:
        ranks.append(part.rank)
        saving = oracle.saving_ns(without_input_stall(dfg, ranks))
        if saving >= MOST_OF_IT * all_mended:
            break
    return tuple(sorted(ranks)), saving


def _evidence(replayed: Replayed, ranks: tuple[Rank, ...], parts: tuple[RankBreakdown, ...]) -> dict[str, object]:
    stall = {part.rank: round(part.input_stall / 1e3, 3) for part in parts}
    evidence: dict[str, object] = {
        "input_stall_ms": {str(rank): stall[rank] for rank in ranks},
        "input_stall_ms_other_ranks": {str(rank): value for rank, value in stall.items() if rank not in ranks},
        "stalls": sum(len(stalls(replayed.timeline, rank)) for rank in ranks),
    }
    fetch, workers = _batches(replayed, ranks[0])
    if fetch is not None:
        evidence |= {"batch_ms": ms(fetch), "loader_workers": workers}
    return evidence


def _batches(replayed: Replayed, rank: Rank) -> tuple[float | None, int]:
    """Median time (ns) to make a batch on `rank`, and how many workers make them (0: the rank itself)."""
    dfg = replayed.built.dfg
    made = (dfg.rank == rank) & dfg.of(Cls.DATA) & (dfg.dur_ns > 0)
    by_worker = made & dfg.on("loader")
    chosen = by_worker if by_worker.any() else made
    workers = int(replayed.run.stages(rank).ints("workers").max(initial=len(np.unique(dfg.lane[by_worker]))))
    return (float(np.median(dfg.dur_ns[chosen])) if chosen.any() else None), workers


def _advice(replayed: Replayed, rank: Rank, saving: float) -> str:
    fetch, workers = _batches(replayed, rank)
    without = replayed.oracle.step_ns - saving
    if fetch is None:
        return "Look at what the dataset does a sample, and give the DataLoader more workers."
    if workers == 0:
        return (
            f"The rank makes its batches itself, {fetch / 1e6:.1f} ms each, while its device waits: "
            "set num_workers on the DataLoader."
        )
    needed = math.ceil(fetch / max(without, 1))
    if needed > workers:
        return (
            f"A batch takes {fetch / 1e6:.1f} ms to make and a step without stall {without / 1e6:.1f} ms: "
            f"with num_workers={needed} (now {workers}) the loader would keep up, if the host has the cores and the "
            "storage the bandwidth. Where other ranks load faster, look at this rank's host first."
        )
    return "The loader is fast enough on average but bursty: raise prefetch_factor, or look at the slow batches."
