"""ESP101: ranks that wait for input data."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import RankBreakdown
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.samples.sampled_places import Seen, seen_within
from esprof.analyzers.views.breakdown import stalls
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank, ns
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.graph.host_cpus import batch_cpu_ns, cpus_of
from esprof.replay.whatif.graph.loaders import IN_THE_RANK, are_batches_recorded
from esprof.replay.whatif.term import scope
from esprof.run.run import Run

MIN_SHARE_OF_GAIN = 0.8
"""Ranks are named, the worst stall first, until mending them gives this share of what mending all would."""

MIN_SHARE_OF_WORST_STALL = 0.1
"""Least stall, as a share of the worst rank's, for which a rank is named beside it."""

MIN_SHARE_OF_GAIN_BY_WORKERS = 0.8
"""Share of what a step would gain if nobody had to make the batches, below which the CPUs that make them are the limit."""

READY = "data[ready]=0"


def input_stalls(case: Case) -> Iterator[Cause]:
    """The DataLoader keeps ranks waiting."""
    ranks = stalling(case)
    if not ranks:
        return
    made, ready = (case.pricer.saving_ns(f"{scope(ranks)}.{term}") or 0.0 for term in ("data=0", READY))
    if not case.worth_naming(ready):
        return
    stalls_ns = {part.rank: ns(part.input_stall) for part in case.parts if part.rank in ranks}
    worst = max(stalls_ns, key=lambda rank: stalls_ns[rank])
    stall = f"{'up to ' if len(ranks) > 1 else ''}{readable.duration(stalls_ns[worst])}"
    is_limited = made < MIN_SHARE_OF_GAIN_BY_WORKERS * ready
    title = f"{readable.ranks(ranks).capitalize()} {readable.verb('wait', ranks)} {stall} a step for input data"
    place = _place(case.job.samples, worst)
    yield Cause(
        id="ESP101",
        title=f"{title}, and CPUs are the limit" if is_limited else title,
        ranks=ranks,
        scenario=f"{scope(ranks)}.{READY if is_limited else 'data=0'}",
        confidence="high" if case.run.stages(worst).is_kind("next").any() and not is_limited else "medium",
        evidence=_evidence(case.replayed, ranks, worst, case.parts)
        | ({"gain_if_others_make_them": Evidence(round(made), "ns")} if is_limited else {})
        | ({"place": Evidence(printable(place.text, LONGEST_NAME))} if place else {}),
        advice=_advice(case.replayed, worst, made, is_limited) + _at(place),
    )


def _place(samples: JobSamples, rank: Rank) -> Seen | None:
    """The line that makes the batches of `rank`, where that is its own training thread."""
    stages = samples.run.stages(rank)
    own = stages.where(stages.is_kind("next") & (stages.ints("workers") == 0))
    return seen_within(samples, rank, np.stack([own.ints("start_ns"), own.ints("end_ns")], axis=1))


def _at(place: Seen | None) -> str:
    return (
        f" Of making a batch, {100 * place.share:.0f} % goes to {printable(place.text, LONGEST_NAME)}." if place else ""
    )


def stalling(case: Case) -> tuple[Rank, ...]:
    """The fewest ranks, by stall, that bring most of the gain when their loaders are mended; none without a loader.

    Two loaders that are equally slow hide one another: mending one alone gains nothing.
    """
    dfg = case.replayed.built.dfg
    all_mended = case.pricer.saving_ns(READY)
    if all_mended is None:
        return ()
    loading = set(dfg.rank[dfg.of(Cls.DATA)].tolist())
    worst = max(part.input_stall for part in case.parts)
    stalling = [
        part for part in case.parts if part.rank in loading and part.input_stall >= MIN_SHARE_OF_WORST_STALL * worst
    ]
    worst_first = [part.rank for part in sorted(stalling, key=lambda part: -part.input_stall)]

    def is_most(count: int) -> bool:
        saving = case.pricer.saving_ns(f"{scope(worst_first[:count])}.{READY}")
        return saving is not None and saving >= MIN_SHARE_OF_GAIN * all_mended

    # More ranks never gain less, so that few of all counts need be priced.
    fewest = 1 + bisect_left(range(1, len(worst_first)), True, key=is_most)
    return tuple(sorted(worst_first[:fewest]))


@dataclass(frozen=True)
class BatchSource:
    """How the batches of a rank are made, as far as it was recorded."""

    make_ns: float | None
    """Mean time to make one, which is what a loader has to keep up with; None where it was made out of sight."""
    cpu_ns: float | None
    """Mean CPU time of making one; None where it is not known."""
    workers: int | None
    """How many workers make them; 0 where the rank does it itself, None where nothing tells."""


def batches(run: Run, dfg: Dfg, rank: Rank) -> BatchSource:
    """How the batches of `rank` are made. A trace without stages tells of workers only that there are some: what the graph
    has of them then are the waits for them."""
    made = (dfg.rank == rank) & dfg.of(Cls.DATA) & (dfg.dur_ns > 0)
    by_worker = made & dfg.on(LaneKind.LOADER)
    told = int(run.stages(rank).ints("workers").max(initial=0))
    if by_worker.any() and are_batches_recorded(run, rank):
        workers = max(told, len(np.unique(dfg.lane[by_worker])))
        return BatchSource(float(np.mean(dfg.dur_ns[by_worker])), batch_cpu_ns(run, rank), workers)
    own = made & np.array([IN_THE_RANK in name for name in dfg.names])[dfg.name]
    if own.any() and not told:
        return BatchSource(float(np.mean(dfg.dur_ns[own])), _own_cpu_ns(run, rank), 0)
    return BatchSource(None, None, told or None)


def _own_cpu_ns(run: Run, rank: Rank) -> float | None:
    """Mean CPU time of a batch that the rank makes itself, ns; None where that was not recorded."""
    stages = run.stages(rank)
    ran = stages.ints("cpu_ns")[stages.is_kind("next") & (stages.ints("workers") == 0)]
    return float(ran[ran >= 0].mean()) if (ran >= 0).any() else None


def _evidence(
    replayed: Replayed, ranks: tuple[Rank, ...], worst: Rank, parts: tuple[RankBreakdown, ...]
) -> dict[str, Evidence]:
    stall = {part.rank: ns(part.input_stall) for part in parts}
    making = batches(replayed.run, replayed.built.dfg, worst)
    known = {
        "batch": None if making.make_ns is None else Evidence(round(making.make_ns), "ns"),
        "batch_cpu": None if making.cpu_ns is None else Evidence(round(making.cpu_ns), "ns"),
        "loader_workers": None if making.workers is None else Evidence(making.workers),
        "cpus_for_each_rank_at_most": Evidence(round(cpus, 1)) if (cpus := cpus_of(replayed.run, worst)) else None,
    }
    return {
        "input_stall": by_rank({rank: stall[rank] for rank in ranks}, "ns"),
        "input_stall_other_ranks": by_rank({rank: of for rank, of in stall.items() if rank not in ranks}, "ns"),
        "stalls": Evidence(sum(len(stalls(replayed.timeline, rank)) for rank in ranks)),
        **{name: one for name, one in known.items() if one is not None},
    }


def _advice(replayed: Replayed, rank: Rank, saving: float, is_limited: bool) -> str:
    """`saving`, ns, is what a step gains where others make the batches."""
    making, cpus = batches(replayed.run, replayed.built.dfg, rank), cpus_of(replayed.run, rank)
    if making.make_ns is None:
        return (
            "How long a batch takes to make is not in this run: `esprof record` sees what loader workers do. Until then, "
            "see what the dataset does a sample, and try more workers."
        )
    without = max(replayed.pricer.step_ns - saving, 1.0)
    needed = math.ceil(making.make_ns / without)
    takes = f"A batch takes {readable.duration(making.make_ns)} to make"
    if is_limited or (cpus and making.cpu_ns and making.cpu_ns / without > max(cpus - 1, cpus / 2)):
        on_a_cpu = f", {readable.duration(making.cpu_ns)} of that on a CPU" if making.cpu_ns else ""
        has = f", and each rank has at most {cpus:.3g} {'CPU' if cpus == 1 else 'CPUs'}" if cpus else ""
        gain = readable.duration(max(saving, 0.0))
        return (
            f"{takes}{on_a_cpu}{has}: more workers would gain {gain} at most. Decode less, or cheaper, or ahead of the "
            "training; or give the host more CPUs."
        )
    if making.workers == 0:
        return f"{takes}, in the rank itself, while its device waits: set num_workers on the DataLoader."
    if making.workers is not None and needed > making.workers:
        return (
            f"{takes} and a step without stall {readable.duration(without)}: with num_workers={needed} (now "
            f"{making.workers}) the loader would keep up, {_if_there_is_room(making, cpus)}. Where other ranks load "
            "faster, look at this rank's host first."
        )
    return "The loader is fast enough on average but bursty: raise prefetch_factor, or look at the slow batches."


def _if_there_is_room(making: BatchSource, cpus: float | None) -> str:
    if cpus is None or making.cpu_ns is None or making.make_ns is None:
        return "if the host has the cores and the storage the bandwidth"
    share = min(1.0, making.cpu_ns / making.make_ns)
    waits = f"for {100 * (1 - share):.0f} % of that time a worker waits for something else than a CPU"
    return f"if the storage has the bandwidth: {waits}"


_PAGES = (
    Page(
        "ESP101",
        "Ranks wait for input data",
        "The training loop asked its DataLoader for a batch and had to wait. In a job on several ranks one slow "
        "loader stops all: the others show it as waiting at the next collective, never as input stall.",
        "`input_stall` is the time per step inside the loader's next(), waiting or making the batch; `batch` "
        "what making one batch takes, and `batch_cpu` how much of that on a CPU (`esprof record` tells of workers; Kineto "
        "traces do not show them, and a stall is not the time of a batch); `cpus_for_each_rank_at_most` how many CPUs each "
        "has. `place` is the line that most samples of the training thread were at meanwhile, where it makes the batches "
        "itself.",
        "`data=0` of these ranks: replay makes their batches take no time and runs the whole job again. No step gets "
        "shorter than the CPUs need for the ranks and their batches, where that was recorded. Where that leaves less than "
        "four fifths of the gain, the CPUs are the limit, and the price is `data[ready]=0`: that of batches that nobody has "
        "to make; `gain_if_others_make_them` is what more workers would gain at most.",
        "More workers (num_workers), a deeper prefetch, cheaper decoding, faster or closer storage, a cache. Compare "
        "the stalling rank's host and storage with the others' when only some ranks stall.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=input_stalls, scenarios=(READY,))
