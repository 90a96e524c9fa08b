"""ESP101 to ESP110: ranks that wait for input data, by cause."""

from bisect import bisect_left
from collections.abc import Iterator
from functools import partial

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.data.pages import PAGES
from esprof.analyzers.findings.data.rank_waits import RankWaits
from esprof.analyzers.findings.data.wait_causes import MIN_SHARE, WaitCause, cause_of, enough_workers, first_workers
from esprof.analyzers.rule import Case, Cause, Rule
from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.samples.sampled_lines import Seen, seen_within
from esprof.analyzers.views.breakdown import stalls
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Ns, Rank, ns
from esprof.replay.dfg import Cls
from esprof.replay.whatif.term import scope

MIN_SHARE_OF_GAIN = 0.8
"""Ranks are listed, worst stall first, until fixing them gives this share of the saving of fixing all."""

MIN_SHARE_OF_LISTED_STALL = 0.8
"""Least stall for which a further rank is listed, as a share of the shortest stall of these: its loader is as slow. Whether
a loader alone accounts for a saving depends on what else is slow on its rank."""

MIN_SHARE_OF_WORST_STALL = 0.1
"""Least stall for which a rank is listed, as a share of the worst rank's."""

MIN_SHARE_OF_GAIN_BY_WORKERS = 0.8
"""If more workers give less than this share of the saving of batches without any work, the CPUs are the bottleneck."""

MADE_IN_TIME, READY = "data=0", "data[ready]=0"
"""No waits: as CPUs and workers are enough, or without any work."""


def input_stalls(case: Case) -> Iterator[Cause]:
    """Ranks that wait for their DataLoader."""
    ranks = stalled_ranks(case)
    if not {*ranks} & {*case.ranks}:
        return
    with_workers, when_ready = (_saving_ns(case, ranks, term) or 0.0 for term in (MADE_IN_TIME, READY))
    if not case.is_worth_reporting(when_ready):
        return
    stalls_ns = {one.rank: ns(one.input_stall) for one in case.breakdown}
    is_limited = with_workers < MIN_SHARE_OF_GAIN_BY_WORKERS * when_ready
    waiting = {
        rank: RankWaits(case, rank, with_workers, is_limited, partial(_saving_ns, case, ranks))
        for rank in sorted({*ranks} & {*case.ranks}, key=lambda rank: -stalls_ns[rank])
    }
    worst = next(iter(waiting.values()))
    if worst.waits.start_up_ns >= MIN_SHARE * worst.waits.total_ns > 0:
        return  # ESP111 judges starts of workers by the whole run: a window has few of them, if any.
    cause = cause_of(list(waiting.values()))
    priced_by = _priced_by(cause, worst)
    location = _batch_location(case.job.samples, worst.rank)
    yield Cause(
        id=cause.id if cause else "ESP101",
        title=_title(ranks, stalls_ns[worst.rank], cause, worst),
        ranks=ranks,
        scenario=f"{scope(ranks)}.{priced_by}",
        confidence="high" if case.run.stages(worst.rank).is_kind("next").any() and not is_limited else "medium",
        evidence=_evidence(worst, ranks, stalls_ns)
        | ({"saving_with_more_workers": Evidence(round(with_workers), "ns")} if is_limited else {})
        | ({"source_line": Evidence(printable(location.text, LONGEST_NAME))} if location else {}),
        advice=_advice(cause, worst) + _location_note(location),
        is_bound=cause is not None and cause.is_bound and priced_by in (READY, MADE_IN_TIME),
    )


def _saving_ns(case: Case, ranks: tuple[Rank, ...], term: str) -> float | None:
    return case.pricer.saving_ns(f"{scope(ranks)}.{term}")


def _title(ranks: tuple[Rank, ...], longest_ns: Ns, cause: WaitCause | None, worst: RankWaits) -> str:
    stall = f"{'up to ' if len(ranks) > 1 else ''}{readable.duration(longest_ns)}"
    title = f"{readable.ranks(ranks).capitalize()} {readable.verb('wait', ranks)} {stall} a step for input data"
    if cause:
        return f"{title}: {cause.says(worst)}"
    return f"{title}; the CPUs are the bottleneck" if worst.is_limited else title


def _priced_by(cause: WaitCause | None, worst: RankWaits) -> str:
    """The term that prices the finding: of the cause, if it saves something, or of batches that nobody waits for."""
    if cause and worst.source.workers:
        for term in cause.what_ifs(worst):
            if worst.case.is_worth_reporting(worst.saving_ns(term)):
                return term
    return READY if worst.is_limited else MADE_IN_TIME


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
    """The fewest ranks, longest stall first, whose loaders account for most of the saving, and those whose loaders are as
    slow; empty without a loader.

    They are fixed together: of two equally slow loaders, fixing one alone saves nothing.
    """
    dfg = case.pricer.dfg  # Of all ranks.
    all_fixed = case.pricer.saving_ns(READY)
    if all_fixed is None:
        return ()
    loading = set(dfg.rank[dfg.of(Cls.DATA)].tolist())
    worst = max(one.input_stall for one in case.breakdown)
    candidates = [
        one for one in case.breakdown if one.rank in loading and one.input_stall >= MIN_SHARE_OF_WORST_STALL * worst
    ]
    stall_of = {one.rank: one.input_stall for one in sorted(candidates, key=lambda one: -one.input_stall)}
    worst_first = list(stall_of)

    def is_most(count: int) -> bool:
        saving = case.pricer.saving_ns(f"{scope(worst_first[:count])}.{READY}")
        return saving is not None and saving >= MIN_SHARE_OF_GAIN * all_fixed

    # More ranks never save less, so a binary search needs few prices.
    fewest = 1 + bisect_left(range(1, len(worst_first)), True, key=is_most)
    least = MIN_SHARE_OF_LISTED_STALL * stall_of[worst_first[fewest - 1]]
    return tuple(sorted(rank for rank, stall in stall_of.items() if stall >= least))


def _evidence(worst: RankWaits, ranks: tuple[Rank, ...], stalls_ns: dict[Rank, Ns]) -> dict[str, Evidence]:
    waits, source = worst.waits, worst.source
    known = {
        "waits_for": _by_cause(waits.by_kind),
        "parts_of_batches": _by_cause(waits.by_part),
        "later_batches_ready": Evidence(round(waits.overtaken_ns), "ns") if waits.overtaken_ns else None,
        "read_again": None if worst.reads.missed_again is None else Evidence(worst.reads.missed_again, "share"),
        "batch": None if source.make_ns is None else Evidence(round(source.make_ns), "ns"),
        "batch_cpu": None if source.cpu_ns is None else Evidence(round(source.cpu_ns), "ns"),
        "loader_workers": None if source.workers is None else Evidence(source.workers),
        "cpus_for_each_rank": Evidence(round(worst.cpus, 1)) if worst.cpus else None,
    }
    timeline = worst.case.replayed.timeline
    return {
        "input_stall": by_rank({rank: stalls_ns[rank] for rank in ranks}, "ns"),
        "input_stall_other_ranks": by_rank({rank: of for rank, of in stalls_ns.items() if rank not in ranks}, "ns"),
        "stalls_in_window": Evidence(sum(len(stalls(timeline, rank)) for rank in ranks if rank in worst.case.ranks)),
        **{name: one for name, one in known.items() if one is not None},
    }


def _by_cause(took_ns: dict[str, float]) -> Evidence | None:
    return Evidence({of: round(took) for of, took in took_ns.items()}, "ns", "cause") if took_ns else None


def _advice(cause: WaitCause | None, worst: RankWaits) -> str:
    if cause is None:
        return _general_advice(worst)
    return " ".join(filter(None, (first_workers(worst), cause.advice(worst))))


def _general_advice(of: RankWaits) -> str:
    """Advice where the run does not show what the batches are made of."""
    source, cpus = of.source, of.cpus
    if source.make_ns is None:
        return (
            "This run does not show how long a batch takes to make; `esprof record` records loader workers. Until "
            "then, check the work of the dataset for each sample, and try more workers."
        )
    takes = f"A batch takes {readable.duration(source.make_ns)} to make"
    if of.needs_more_cpus:
        on_a_cpu = f", {readable.duration(source.cpu_ns)} of that on a CPU" if source.cpu_ns else ""
        has = f", and each rank has at most {cpus:.3g} {'CPU' if cpus == 1 else 'CPUs'}" if cpus else ""
        gain = readable.duration(max(of.with_workers_ns, 0.0))
        return (
            f"{takes}{on_a_cpu}{has}: more workers would save at most {gain}. Decode less, use a cheaper decoder, "
            "prepare the data before training, or give the host more CPUs."
        )
    if source.workers == 0:
        return first_workers(of)
    if enough := enough_workers(of).rstrip("."):
        return (
            f"{takes}, and a step without stall takes {readable.duration(of.unstalled_ns)}.{enough}, "
            f"{_required_resources(of)}. If other ranks load faster, check this rank's host first."
        )
    return "The loader is fast enough on average, but some batches are slow: find those, or raise prefetch_factor."


def _required_resources(of: RankWaits) -> str:
    make_ns, cpu_ns = of.source.make_ns, of.source.cpu_ns
    if of.cpus is None or cpu_ns is None or make_ns is None:
        return "if the host has the cores and the storage the bandwidth"
    share = min(1.0, cpu_ns / make_ns)
    waits = f"a worker spends {100 * (1 - share):.0f} % of that time waiting, not on a CPU"
    return f"if the storage has the bandwidth: {waits}"


RULE = Rule(pages=PAGES, of_case=input_stalls, scenarios=(READY,))
