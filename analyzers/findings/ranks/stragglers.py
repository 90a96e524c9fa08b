"""ESP201–204, ESP206: stragglers, the ranks that reach collectives last while the others wait, and why they are late."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.data.input_data import stalled_ranks
from esprof.analyzers.findings.host.repeated_operations import loops_of_one_rank
from esprof.analyzers.findings.ranks.lateness import (
    COMPUTING,
    INPUT,
    KINDS,
    UNKNOWN,
    UNRECORDED,
    Lateness,
    SlowLocation,
    inside_one_operation,
    slow_locations,
    with_comparison,
)
from esprof.analyzers.findings.ranks.more_work import Comparison, compare
from esprof.analyzers.findings.ranks.sustained import Sustained, sustained
from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.samples.function_time import OwnFunction
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank, us
from esprof.replay.ranks.arrivals import arrivals
from esprof.replay.ranks.blame import MIN_STEPS_FOR_TEST
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.terms.straggler import CLASSES

SCENARIO = "straggler[work]=fix"
"""Fixes all work of slow ranks except input data, which is priced separately."""

ALL_WORK = "straggler=fix"
"""Fixes input data, too."""

MIN_SHARE_OF_INPUT = 0.8
"""Least share of the saving of fixing slow ranks that fixing their input data gives, for it to be the only reason."""


def stragglers(case: Case) -> Iterator[Cause]:
    """The slow ranks, if fixing them saves enough, with the id of their main cause.

    They are priced together, because fixing only one of two slow ranks may save nothing
    (docs/explanation/replay.md §4).
    """
    ranks = case.blame.slow_ranks
    own = {rank: _single_rank_cause(rank, work) for rank, work in _single_rank_work(case).items()}
    own = {cause.ranks[0]: cause for cause in loops_of_one_rank(case)} | own
    reported: set[Rank] = set()
    for cause in _late_causes(case, ranks) if ranks else ():
        if _is_uncertain(case, cause) and {*cause.ranks} <= {*own}:
            continue  # What samples of all steps show, or loops in all recorded ones, is certain.
        reported.update(cause.ranks)
        yield cause
    yield from (cause for rank, cause in own.items() if rank not in reported)


def _late_causes(case: Case, ranks: tuple[Rank, ...]) -> Iterator[Cause]:
    by_work = list(_work_causes(case, ranks))
    yield from by_work
    if case.is_worth_reporting(case.pricer.saving_ns(INPUT.scenario)) and _is_late_by_input(
        case, ranks, alone=not by_work
    ):
        yield _cause(case, ranks, INPUT, INPUT.scenario, {})


def _is_uncertain(case: Case, cause: Cause) -> bool:
    """Whether the interval of the predicted saving contains zero."""
    if cause.scenario is None:
        return cause.measured is not None and cause.measured.low_ns <= 0
    (answer,) = case.pricer.answers([cause.scenario])
    return answer.saving_low_us is not None and answer.saving_low_us <= 0


def _is_late_by_input(case: Case, ranks: tuple[Rank, ...], *, alone: bool) -> bool:
    """Whether input data delays `ranks`, and no finding ESP101 to ESP110 reports the same ranks.

    That the ranks are slow is established; the question is whether input data is the reason. It is if it takes longer step
    after step or if, with no other work (`alone`), fixing it gives nearly all that fixing the ranks does.
    """
    if stalled_ranks(case) == ranks:
        return False
    blame = case.blame
    by_input, by_all = (case.pricer.saving_ns(of) or 0.0 for of in (INPUT.scenario, ALL_WORK))
    columns = np.searchsorted(blame.dfg.marks.ranks, ranks)
    is_all = alone and by_input >= MIN_SHARE_OF_INPUT * by_all
    return is_all or bool(blame.persist(columns, only=CLASSES[INPUT.work])[columns].all())


def _work_causes(case: Case, ranks: tuple[Rank, ...]) -> Iterator[Cause]:
    saving = case.pricer.saving_ns(SCENARIO)
    if saving is None:
        yield from _unpriced(case, ranks)
    elif case.is_worth_reporting(saving):
        shares = {kind: case.pricer.saving_ns(kind.scenario) or 0.0 for kind in KINDS}
        by_cause = {kind.phrase: round(share) for kind, share in shares.items() if share > 0}
        saved = {"saving": Evidence(dict(by_cause), "ns", "cause")}
        kind, scenario = _reason(case, ranks, shares)
        cause = _cause(case, ranks, kind, scenario, saved)
        if cause.measured is None or cause.measured.is_worth_reporting:
            yield cause


def _reason(case: Case, ranks: tuple[Rank, ...], shares: dict[Lateness, float]) -> tuple[Lateness, str]:
    """(the kind of work that makes `ranks` late, the scenario that prices it), given the saving of each kind in ns.

    The kind that saves most, priced together with all other work of the ranks. If that is compute which is longer by no
    more than it scatters, the kind that saves most among those that are longer step after step, priced alone.
    """
    ranked = sorted(shares, key=lambda kind: -shares[kind])
    if ranked[0].work not in COMPUTING or _is_evident(case, ranks, ranked[0]):
        return ranked[0], SCENARIO
    for kind in ranked[1:]:
        if case.is_worth_reporting(shares[kind]) and _is_evident(case, ranks, kind):
            return kind, kind.scenario
    return UNKNOWN, UNKNOWN.scenario


def _is_evident(case: Case, ranks: tuple[Rank, ...], kind: Lateness) -> bool:
    """Whether this kind of work takes longer on `ranks` than on the others by more than it scatters."""
    blame = case.blame
    if kind.work in COMPUTING and compare(case, ranks).is_longer:
        return True
    columns = np.searchsorted(blame.dfg.marks.ranks, ranks)
    return bool(blame.persist(columns, only=CLASSES[kind.work])[columns].all())


def _unpriced(case: Case, ranks: tuple[Rank, ...]) -> Iterator[Cause]:
    """Slow ranks that replay cannot fix, with the id of the work with the longest extra time."""
    blame = case.blame
    delay = blame.late_ns.mean(axis=0)[np.isin(blame.dfg.marks.ranks, ranks)].sum()
    mine = np.isin(blame.dfg.rank, ranks) & np.isin(blame.dfg.step, blame.steps)
    excess_ns = {kind: blame.excess_ns[mine & blame.dfg.of(*CLASSES[kind.work])].sum() for kind in KINDS}
    if case.is_worth_reporting(float(delay)) and max(excess_ns.values()) > 0:
        yield _cause(case, ranks, max(excess_ns, key=lambda kind: excess_ns[kind]), SCENARIO, {})


def _cause(case: Case, ranks: tuple[Rank, ...], kind: Lateness, scenario: str, more: dict[str, Evidence]) -> Cause:
    saving = case.pricer.saving_ns(scenario)
    margin = abs(case.pricer.error.strict) * case.pricer.step_ns
    is_tested = case.is_explained and len(case.replayed.steps.steady) >= MIN_STEPS_FOR_TEST
    own = _single_rank_work(case)
    locations = {
        rank: replace(location, python=own[rank].location.frame, call=own[rank].location.call)
        if rank in own and not location.python
        else location
        for rank, location in slow_locations(case, ranks, kind).items()
    }
    kind = inside_one_operation(case.blame, ranks, kind)
    if kind.work in COMPUTING:
        compared = compare(case, ranks)
        kind, more = with_comparison(kind, compared), more | _comparison(compared)
    extent = _sustained(case, ranks, kind, scenario)
    if extent is not None:
        more |= {"share_of_run": Evidence(round(extent.share, 3), "share")}
    return Cause(
        id=kind.id,
        title=f"{readable.ranks(ranks).capitalize()} {readable.verb('delay', ranks)} the other ranks: {kind.phrase}",
        ranks=ranks,
        scenario=None if extent and not extent.is_always else scenario,
        measured=_measured(case, extent, scenario) if extent and not extent.is_always else None,
        confidence="low" if saving is None else "high" if is_tested and saving > 2 * margin else "medium",
        evidence=_evidence(case.replayed, ranks) | more | _location_evidence(locations),
        advice=" ".join(
            [
                *(location.pointer(rank) for rank, location in locations.items()),
                kind.advice,
                *_duration_note(extent, saving),
            ]
        ),
    )


def _single_rank_work(case: Case) -> dict[Rank, OwnFunction]:
    """Rank -> the function of the job's own code that takes longest among those that no other rank runs.

    Only for jobs on CPUs, where no device work hides it, and only if all ranks have the same role.
    """
    blame = case.blame
    if blame.dfg.has_gpu() or len(set(blame.roles.tolist())) > 1:
        return {}
    found: dict[Rank, OwnFunction] = {}
    for one in case.job.function_times.alone():
        found.setdefault(max(one.took_ns, key=lambda rank: one.took_ns[rank]), one)
    return found


def _price_of(one: OwnFunction) -> MeasuredPrice:
    """Saving of a step without this function: all of its time on its rank."""
    return one.measured.times(len(one.took_ns))


def _single_rank_cause(rank: Rank, work: OwnFunction) -> Cause:
    """A rank with work that no other rank does, which only the samples of all steps show."""
    where, price = printable(work.location.frame, LONGEST_NAME), _price_of(work)
    calls = {"python_call": by_rank({rank: printable(work.location.call, LONGEST_NAME)})} if work.location.call else {}
    return Cause(
        id=UNRECORDED.id,
        title=f"{readable.ranks((rank,)).capitalize()} delays the other ranks: it alone spends "
        f"{readable.duration(price.saving_ns)} a step in {where}",
        ranks=(rank,),
        measured=price,
        confidence="medium",
        evidence={
            "python_line": by_rank({rank: where}),
            "per_step": by_rank({rank: round(ns) for rank, ns in work.took_ns.items()}, "ns"),
            "cpu_share": Evidence(round(work.ran, 3), "share"),
        }
        | calls,
        advice="The others wait at the next collective. Do this work less often, in a separate thread or process, "
        "or after training; or distribute it among the ranks.",
    )


def _sustained(case: Case, ranks: tuple[Rank, ...], kind: Lateness, scenario: str) -> Sustained | None:
    saving = case.pricer.saving_ns(scenario)
    if saving is None or kind is INPUT:
        return None
    return sustained(case, ranks, saving / case.pricer.step_ns, computes=kind.work in COMPUTING)


def _measured(case: Case, extent: Sustained, scenario: str) -> MeasuredPrice:
    """Saving of the mean step of the run, derived from the saving of a recorded step."""
    (answer,) = case.pricer.answers([scenario])
    saving_us, low_us, step_us = answer.saving_us or 0.0, answer.saving_low_us or 0.0, us(case.pricer.step_ns)
    return extent.measured(saving_us / step_us, (saving_us - low_us) / step_us)


def _comparison(compared: Comparison) -> dict[str, Evidence]:
    known = {
        "compute_time_ratio": round(compared.longer, 3),
        "work_ratio": None if compared.amount is None else round(compared.amount, 3),
        "work_counted_in": None if compared.amount is None else compared.unit,
        "optimizer_time_ratio": None if compared.optimizer is None else round(compared.optimizer, 3),
    }
    return {name: Evidence(value) for name, value in known.items() if value is not None}


def _duration_note(extent: Sustained | None, saving: float | None) -> list[str]:
    if extent is None or extent.is_always or saving is None:
        return []
    return [
        f"The delay is not permanent: averaged over the run it is {100 * extent.share:.0f} % of that in the recorded "
        f"steps. A recorded step would save {readable.duration(saving)} (`{SCENARIO}`); the saving shown is for the "
        "mean step of the run."
    ]


def _evidence(replayed: Replayed, ranks: tuple[Rank, ...]) -> dict[str, Evidence]:
    steps = replayed.steps.steady
    seen = arrivals(replayed.built.dfg, steps)
    late = dict(zip(seen.ranks, seen.late_ns() / len(steps), strict=True))
    last = np.bincount(seen.last(), minlength=len(seen.ranks))
    delay = dict(zip(seen.ranks, replayed.blame.delay_ns.tolist(), strict=True))
    return {
        "collectives": Evidence(len(seen)),
        "arrived_last": by_rank({rank: int(last[seen.ranks.index(rank)]) for rank in ranks}),
        "late_per_step": by_rank({rank: round(late[rank]) for rank in ranks}, "ns"),
        "delay_alone": by_rank({rank: round(delay[rank]) for rank in ranks}, "ns"),
        "delay_alone_next_rank": Evidence(
            round(max((of for rank, of in delay.items() if rank not in ranks), default=0)), "ns"
        ),
    }


def _location_evidence(locations: dict[Rank, SlowLocation]) -> dict[str, Evidence]:
    evidence = {
        "lost_in": by_rank({rank: one.where for rank, one in locations.items()}),
        "lost_there_per_step": by_rank({rank: one.lost_ns for rank, one in locations.items()}, "ns"),
        "python_line": by_rank({rank: one.python for rank, one in locations.items() if one.python}),
        "python_call": by_rank({rank: one.call for rank, one in locations.items() if one.call}),
        "module": by_rank({rank: one.module for rank, one in locations.items() if one.module}),
    }
    return {name: one for name, one in evidence.items() if one.value}


_PRICE = (
    "`straggler[work]=fix`: replay gives this rank's work the median duration that the same work takes on the other "
    "ranks (gaps included, input data excluded) and replays the whole job. If the rank is slow for less than six "
    "tenths of the run, that saving is multiplied by the share of the run. The other ranks may wait longer than the "
    "saving: queued work can hide it, and fixing the rank then saves less than the others wait."
)
_EVIDENCE = (
    "`late per step` is how long the others waited for this rank alone, from the second-last arrival at a collective "
    "to its own arrival; a delay that holds up several collectives counts once. Ranks that share other groups with "
    "a slow rank come late, too: the finding lists the rank whose own work takes longer than that of its counterparts. "
    "`delay alone` is how much longer a mean step takes because of that work, with all other ranks as usual. "
    "The slowest unlisted rank has `delay alone next rank`. "
    "`lost in` is the operation or gap where it loses most time compared with its peers, `python line` the line of "
    "Python that accounts for most of it, if stacks were sampled, and `module` the enclosing modules, if calls "
    "of modules were recorded. `saving` is what each kind of work would save alone. `share of run` is "
    "the share of the run in which the rank is this slow. It is estimated from the duration of the steps without "
    "profiler, if the rank costs at least a quarter of a step, and from the extra CPU time of ranks that compute on "
    "CPUs."
)
_MORE = (
    f"{_EVIDENCE} `compute time ratio` is the rank's compute time divided by that of the others, and "
    "`work ratio` its amount of work divided by theirs, counted in tokens, samples, elements of the operations' tensors, or "
    "operations: the first of these that is known of all ranks. The optimizer's work does not depend on the batch: "
    "if it takes as long as on the other ranks (`optimizer time ratio` near 1) and only the rest takes longer, the rank has "
    "more work; if the optimizer takes longer as well, the rank is slower."
)

_PAGES = (
    Page(
        "ESP201",
        "A rank is late because of unrecorded CPU time",
        "One rank reaches collectives last. The reason is time in which none of its threads ran a recorded "
        "operation, or time inside a single operation while all others take as long as on other ranks: Python code, "
        "a sleep, I/O, garbage collection, or a CPU used by other processes. Or samples of all steps show a line of "
        "the job's own code that no other rank runs, or it alone runs loops of small operations, as in ESP408. If no "
        "kind of its work is longer by more than it scatters, the title says that the reason is unknown.",
        f"{_EVIDENCE} For jobs on CPUs, a function that only one rank runs for at least 3 % of a step is reported "
        "from the samples of all steps without profiler (`per step`), unless the rank is reported for another reason.",
        f"{_PRICE} Work that only samples show would save its time, and loops have the saving of `loops=0`.",
        "Examine the given location. If it changes from step to step, check the host (other processes, CPU limits).",
    ),
    Page(
        "ESP202",
        "A rank is late because its compute is slower",
        "One rank reaches collectives last because the same operations take longer there, or because it has more of "
        "them. The title says which, if the run shows it.",
        _MORE,
        _PRICE,
        "Check clocks, temperature, other tenants and thread counts; or whether it has more work than the others "
        "(longer sequences).",
    ),
    Page(
        "ESP203",
        "A rank is late because its CPU launches work more slowly",
        "One rank reaches collectives last because its CPU takes longer for the same calls and launches, or has "
        "more of them.",
        _MORE,
        _PRICE,
        "Check for other processes on its host, CPU limits, NUMA binding, and a power-saving governor.",
    ),
    Page(
        "ESP204",
        "A rank is late because of memory allocation",
        "One rank reaches collectives last because its allocator calls the driver for memory.",
        _EVIDENCE,
        _PRICE,
        "Lower its memory peak, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    ),
    Page(
        "ESP206",
        "A rank is late because of its input data",
        "One rank's batches take longer to make than those of the others, which wait for it. If only its loader "
        "makes the job wait, ESP101 to ESP110 report it; here the loaders of the others also stall, for a shorter time. "
        "The batches take longer step after step, or the rank has no other slow work and fixing its batches gives nearly "
        "all that fixing the rank does.",
        _EVIDENCE,
        "`straggler[data]=fix`: replay gives this rank's batches the median duration of those of the others and "
        "replays the whole job.",
        "Compare the storage, the free cores and the sample sizes of that rank's host with those of the others.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=stragglers)
