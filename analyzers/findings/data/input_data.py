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
from esprof.analyzers.samples.sampled_lines import Seen, seen_within
from esprof.analyzers.views.batch_waits import STARVED, waits
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
"""Ranks are listed, worst stall first, until fixing them gives this share of the saving of fixing all."""

MIN_SHARE_OF_WORST_STALL = 0.1
"""Least stall for which a rank is listed, as a share of the worst rank's."""

MIN_SHARE_OF_GAIN_BY_WORKERS = 0.8
"""If more workers give less than this share of the saving of batches without any work, the CPUs are the bottleneck."""

MIN_STARVED_SHARE = 1 / 3
"""Share of the waits for batches, spent waiting for a CPU in loader workers, from which more workers are not advised."""

READY = "data[ready]=0"


def input_stalls(case: Case) -> Iterator[Cause]:
    """Ranks that wait for their DataLoader."""
    ranks = stalled_ranks(case)
    if not ranks:
        return
    with_workers, when_ready = (case.pricer.saving_ns(f"{scope(ranks)}.{term}") or 0.0 for term in ("data=0", READY))
    if not case.is_worth_reporting(when_ready):
        return
    stalls_ns = {one.rank: ns(one.input_stall) for one in case.breakdown if one.rank in ranks}
    worst = max(stalls_ns, key=lambda rank: stalls_ns[rank])
    stall = f"{'up to ' if len(ranks) > 1 else ''}{readable.duration(stalls_ns[worst])}"
    is_limited = with_workers < MIN_SHARE_OF_GAIN_BY_WORKERS * when_ready
    title = f"{readable.ranks(ranks).capitalize()} {readable.verb('wait', ranks)} {stall} a step for input data"
    location, waited = _batch_location(case.job.samples, worst), waits(case.run, worst, case.replayed.steps.steady)
    yield Cause(
        id="ESP101",
        title=f"{title}; the CPUs are the bottleneck" if is_limited else title,
        ranks=ranks,
        scenario=f"{scope(ranks)}.{READY if is_limited else 'data=0'}",
        confidence="high" if case.run.stages(worst).is_kind("next").any() and not is_limited else "medium",
        evidence=_evidence(case.replayed, ranks, worst, case.breakdown, waited)
        | ({"saving_with_more_workers": Evidence(round(with_workers), "ns")} if is_limited else {})
        | ({"source_line": Evidence(printable(location.text, LONGEST_NAME))} if location else {}),
        advice=_advice(case.replayed, worst, with_workers, waited, is_limited) + _location_note(location),
    )


def _batch_location(samples: JobSamples, rank: Rank) -> Seen | None:
    """The line with most samples of the training thread while it makes batches; None if it does not make them."""
    stages = samples.run.stages(rank)
    own = stages.where(stages.is_kind("next") & (stages.ints("workers") == 0))
    return seen_within(samples, rank, np.stack([own.ints("start_ns"), own.ints("end_ns")], axis=1))


def _location_note(location: Seen | None) -> str:
    if location is None:
        return ""
    return f" {100 * location.share:.0f} % of a batch's time is spent in {printable(location.text, LONGEST_NAME)}."


def stalled_ranks(case: Case) -> tuple[Rank, ...]:
    """The fewest ranks, longest stall first, whose loaders account for most of the saving; empty without a loader.

    They are fixed together: of two equally slow loaders, fixing one alone saves nothing.
    """
    dfg = case.replayed.built.dfg
    all_fixed = case.pricer.saving_ns(READY)
    if all_fixed is None:
        return ()
    loading = set(dfg.rank[dfg.of(Cls.DATA)].tolist())
    worst = max(one.input_stall for one in case.breakdown)
    candidates = [
        one for one in case.breakdown if one.rank in loading and one.input_stall >= MIN_SHARE_OF_WORST_STALL * worst
    ]
    worst_first = [one.rank for one in sorted(candidates, key=lambda one: -one.input_stall)]

    def is_most(count: int) -> bool:
        saving = case.pricer.saving_ns(f"{scope(worst_first[:count])}.{READY}")
        return saving is not None and saving >= MIN_SHARE_OF_GAIN * all_fixed

    # More ranks never save less, so a binary search needs few prices.
    fewest = 1 + bisect_left(range(1, len(worst_first)), True, key=is_most)
    return tuple(sorted(worst_first[:fewest]))


@dataclass(frozen=True)
class BatchSource:
    """How the batches of a rank are made, as far as it was recorded."""

    make_ns: float | None
    """Mean time to make a batch, ns; None where it was not recorded."""
    cpu_ns: float | None
    """Mean CPU time to make a batch, ns; None where unknown."""
    workers: int | None
    """Number of loader workers; 0 if the rank makes batches itself, None where unknown."""


def batch_source(run: Run, dfg: Dfg, rank: Rank) -> BatchSource:
    """How the batches of `rank` are made. Without stages in the trace, the graph has only the waits for loader workers."""
    made = (dfg.rank == rank) & dfg.of(Cls.DATA) & (dfg.dur_ns > 0)
    by_worker = made & dfg.on(LaneKind.LOADER)
    workers_recorded = int(run.stages(rank).ints("workers").max(initial=0))
    if by_worker.any() and are_batches_recorded(run, rank):
        workers = max(workers_recorded, len(np.unique(dfg.lane[by_worker])))
        return BatchSource(float(np.mean(dfg.dur_ns[by_worker])), batch_cpu_ns(run, rank), workers)
    own = made & np.array([IN_THE_RANK in name for name in dfg.names])[dfg.name]
    if own.any() and not workers_recorded:
        return BatchSource(float(np.mean(dfg.dur_ns[own])), _own_cpu_ns(run, rank), 0)
    return BatchSource(None, None, workers_recorded or None)


def _own_cpu_ns(run: Run, rank: Rank) -> float | None:
    """Mean CPU time of a batch that the rank makes itself, ns; None where that was not recorded."""
    stages = run.stages(rank)
    ran = stages.ints("cpu_ns")[stages.is_kind("next") & (stages.ints("workers") == 0)]
    return float(ran[ran >= 0].mean()) if (ran >= 0).any() else None


def _evidence(
    replayed: Replayed,
    ranks: tuple[Rank, ...],
    worst: Rank,
    breakdown: tuple[RankBreakdown, ...],
    waited: dict[str, float],
) -> dict[str, Evidence]:
    stall = {one.rank: ns(one.input_stall) for one in breakdown}
    source = batch_source(replayed.run, replayed.built.dfg, worst)
    known = {
        "waits_for": Evidence({kind: round(took) for kind, took in waited.items()}, "ns", "cause") if waited else None,
        "batch": None if source.make_ns is None else Evidence(round(source.make_ns), "ns"),
        "batch_cpu": None if source.cpu_ns is None else Evidence(round(source.cpu_ns), "ns"),
        "loader_workers": None if source.workers is None else Evidence(source.workers),
        "cpus_for_each_rank": Evidence(round(cpus, 1)) if (cpus := cpus_of(replayed.run, worst)) else None,
    }
    return {
        "input_stall": by_rank({rank: stall[rank] for rank in ranks}, "ns"),
        "input_stall_other_ranks": by_rank({rank: of for rank, of in stall.items() if rank not in ranks}, "ns"),
        "stalls_in_window": Evidence(sum(len(stalls(replayed.timeline, rank)) for rank in ranks)),
        **{name: one for name, one in known.items() if one is not None},
    }


def _advice(replayed: Replayed, rank: Rank, saving: float, waited: dict[str, float], is_limited: bool) -> str:
    """Advice for `rank`; `saving` is the saving of a step if other processes make the batches, ns, and `waited` what its
    waits consist of (`waits`)."""
    source, cpus = batch_source(replayed.run, replayed.built.dfg, rank), cpus_of(replayed.run, rank)
    if source.make_ns is None:
        return (
            "This run does not show how long a batch takes to make; `esprof record` records loader workers. Until "
            "then, check the work of the dataset for each sample, and try more workers."
        )
    starved = waited.get(STARVED, 0.0) / max(1.0, sum(waited.values()))
    if starved >= MIN_STARVED_SHARE:
        return (
            f"For {100 * starved:.0f} % of that time the batches wait for a CPU, so more workers would not help. Look for "
            "other work on the host's CPUs, use fewer threads in ranks and workers, or give the host more CPUs."
        )
    unstalled_ns = max(replayed.pricer.step_ns - saving, 1.0)
    needed = math.ceil(source.make_ns / unstalled_ns)
    takes = f"A batch takes {readable.duration(source.make_ns)} to make"
    if is_limited or (cpus and source.cpu_ns and source.cpu_ns / unstalled_ns > max(cpus - 1, cpus / 2)):
        on_a_cpu = f", {readable.duration(source.cpu_ns)} of that on a CPU" if source.cpu_ns else ""
        has = f", and each rank has at most {cpus:.3g} {'CPU' if cpus == 1 else 'CPUs'}" if cpus else ""
        gain = readable.duration(max(saving, 0.0))
        return (
            f"{takes}{on_a_cpu}{has}: more workers would save at most {gain}. Decode less, use a cheaper decoder, "
            "prepare the data before training, or give the host more CPUs."
        )
    if source.workers == 0:
        return (
            f"The training process makes each batch itself, in {readable.duration(source.make_ns)}; its device waits "
            "meanwhile. Set num_workers of the DataLoader."
        )
    if source.workers is not None and needed > source.workers:
        return (
            f"{takes}, and a step without stall takes {readable.duration(unstalled_ns)}. With num_workers={needed} (now "
            f"{source.workers}) the loader would keep up, {_required_resources(source, cpus)}. If other ranks load "
            "faster, check this rank's host first."
        )
    return "The loader is fast enough on average, but some batches are slow: find those, or raise prefetch_factor."


def _required_resources(source: BatchSource, cpus: float | None) -> str:
    if cpus is None or source.cpu_ns is None or source.make_ns is None:
        return "if the host has the cores and the storage the bandwidth"
    share = min(1.0, source.cpu_ns / source.make_ns)
    waits = f"a worker spends {100 * (1 - share):.0f} % of that time waiting, not on a CPU"
    return f"if the storage has the bandwidth: {waits}"


_PAGES = (
    Page(
        "ESP101",
        "Ranks wait for input data",
        "The training loop asked its DataLoader for a batch and had to wait. In a job on several ranks one slow loader "
        "stops all of them: the others wait at the next collective, which is not counted as input stall.",
        "`input stall` is the time per step inside the loader's next(), waiting for a batch or making it. `batch` is "
        "the time to make a batch, and `batch cpu` its CPU time (`esprof record` records loader workers; Kineto "
        "traces do not show them). `waits for` divides the stall of the rank that waits longest by what the worker of its "
        "batch did meanwhile, where that was recorded. `stalls in window` is the number of waits of all listed ranks. "
        "`cpus for each rank` is how many CPUs it may use. `source line` is the line with most samples of the training "
        "thread, if that thread makes the batches itself.",
        "`data=0` of these ranks: replay makes their batches take no time and replays the whole job. But a step cannot "
        "be shorter than the CPU time that its ranks and batches need. If this limit cuts the saving by more than 20 %, "
        "the CPUs are the bottleneck. The saving is then that of `data[ready]=0`, batches that need no work at all, and "
        "`saving with more workers` is an upper bound of what more workers would save.",
        "Use more workers (num_workers), a deeper prefetch, cheaper decoding, faster or closer storage, or a cache. "
        "If only some ranks stall, compare their hosts and storage with those of the others.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=input_stalls, scenarios=(READY,))
