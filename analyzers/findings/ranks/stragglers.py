"""ESP201–204, ESP206: ranks that come last to collectives while the others wait, and why they do."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.data.input_data import stalling
from esprof.analyzers.findings.ranks.lasting import Lasting, lasting
from esprof.analyzers.findings.ranks.lateness import (
    COMPUTING,
    INPUT,
    KINDS,
    UNRECORDED,
    Lateness,
    SlowPlace,
    inside_one_operation,
    places_of,
    told_apart,
)
from esprof.analyzers.findings.ranks.more_work import Comparison, compare
from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.samples.function_time import OwnFunction, leading_functions
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank, us
from esprof.replay.ranks.blame import MIN_STEPS_FOR_TEST, arrivals
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.terms.straggler import CLASSES

SCENARIO = "straggler[work]=fix"
"""Of slow ranks, all but what they lose to their data loaders: that is priced apart."""


def stragglers(case: Case) -> Iterator[Cause]:
    """The slow ranks, if they are worth mending, named by their main cause.

    They are priced together: of two that are late by turns, mending one alone gains nothing (docs/explanation/replay.md §4).
    """
    ranks = case.pricer.blame.slow_ranks
    named: set[Rank] = set()
    for cause in _late(case, ranks) if ranks else ():
        named.update(cause.ranks)
        yield cause
    for rank, work in _lone_work(case).items():
        if rank not in named:
            yield _by_lone_work(rank, work)


def _late(case: Case, ranks: tuple[Rank, ...]) -> Iterator[Cause]:
    yield from _late_by_work(case, ranks)
    if case.worth_naming(case.pricer.saving_ns(INPUT.scenario)) and _is_late_by_input(case, ranks):
        yield _cause(case, ranks, INPUT, INPUT.scenario, {})


def _is_late_by_input(case: Case, ranks: tuple[Rank, ...]) -> bool:
    """Whether the batches of `ranks` come later step after step, and this is not said already of these ranks alone."""
    blame = case.pricer.blame
    # That they are slow is sure already; here the question is whether it is their input.
    columns = np.searchsorted(blame.dfg.marks.ranks, ranks)
    return stalling(case) != ranks and bool(blame.persist(columns, only=CLASSES[INPUT.work])[columns].all())


def _late_by_work(case: Case, ranks: tuple[Rank, ...]) -> Iterator[Cause]:
    saving = case.pricer.saving_ns(SCENARIO)
    if saving is None:
        yield from _unpriced(case, ranks)
    elif case.worth_naming(saving):
        shares = {kind: case.pricer.saving_ns(kind.scenario) or 0.0 for kind in KINDS}
        by_cause = {kind.phrase: round(share) for kind, share in shares.items() if share > 0}
        saved = {"saving": Evidence(dict(by_cause), "ns", "cause")}
        cause = _cause(case, ranks, max(shares, key=lambda kind: shares[kind]), SCENARIO, saved)
        if cause.measured is None or cause.measured.is_worth_naming:
            yield cause


def _unpriced(case: Case, ranks: tuple[Rank, ...]) -> Iterator[Cause]:
    """Slow ranks that cannot be mended in a replay: they are named by the kind of work of which they have most too much."""
    blame = case.pricer.blame
    delay = blame.late_ns.mean(axis=0)[np.isin(blame.dfg.marks.ranks, ranks)].sum()
    mine = np.isin(blame.dfg.rank, ranks) & np.isin(blame.dfg.step, blame.steps)
    beyond = {kind: blame.excess_ns[mine & blame.dfg.of(*CLASSES[kind.work])].sum() for kind in KINDS}
    if case.worth_naming(float(delay)) and max(beyond.values()) > 0:
        yield _cause(case, ranks, max(beyond, key=lambda kind: beyond[kind]), SCENARIO, {})


def _cause(case: Case, ranks: tuple[Rank, ...], kind: Lateness, scenario: str, besides: dict[str, Evidence]) -> Cause:
    saving = case.pricer.saving_ns(scenario)
    margin = abs(case.pricer.error.strict) * case.pricer.step_ns
    is_sure = case.is_explained and len(case.replayed.steps.steady) >= MIN_STEPS_FOR_TEST
    alone = _lone_work(case)
    places = {
        rank: replace(place, python=alone[rank].place.frame, call=alone[rank].place.call)
        if rank in alone and not place.python
        else place
        for rank, place in places_of(case, ranks, kind).items()
    }
    kind = inside_one_operation(case.pricer.blame, ranks, kind)
    if kind.work in COMPUTING:
        compared = compare(case, ranks)
        kind, besides = told_apart(kind, compared), besides | _comparison(compared)
    seen = _lasting(case, ranks, kind, scenario)
    if seen is not None:
        besides |= {"of_the_run": Evidence(round(seen.share, 3), "share")}
    return Cause(
        id=kind.id,
        title=f"{readable.ranks(ranks).capitalize()} {readable.verb('keep', ranks)} the others waiting: {kind.phrase}",
        ranks=ranks,
        scenario=None if seen and not seen.is_always else scenario,
        measured=_measured(case, seen, scenario) if seen and not seen.is_always else None,
        confidence="low" if saving is None else "high" if is_sure and saving > 2 * margin else "medium",
        evidence=_evidence(case.replayed, ranks) | besides | _place_evidence(places),
        advice=" ".join(
            [*(place.pointer(rank) for rank, place in places.items()), kind.advice, *_not_always(seen, saving)]
        ),
    )


def _lone_work(case: Case) -> dict[Rank, OwnFunction]:
    """The function of the job's own code that takes most of each rank, of those that this rank alone is seen in.

    Only between CPUs, where nothing hides it, and where all ranks do the same work.
    """
    blame = case.pricer.blame
    if blame.dfg.has_gpu() or len(set(blame.roles.tolist())) > 1:
        return {}
    found: dict[Rank, OwnFunction] = {}
    for one in case.job.function_times.alone(leading_functions(case.job.samples, case.run.ranks)):
        found.setdefault(max(one.took_ns, key=lambda rank: one.took_ns[rank]), one)
    return found


def _price_of(one: OwnFunction) -> MeasuredPrice:
    """What the job's step gains without it: all of what it takes on its rank."""
    ranks, mean = len(one.took_ns), one.measured
    return MeasuredPrice(saving_ns=ranks * mean.saving_ns, margin_ns=ranks * mean.margin_ns, step_ns=mean.step_ns)


def _by_lone_work(rank: Rank, work: OwnFunction) -> Cause:
    """A rank that only the samples of all steps show to do what no other does."""
    where, price = printable(work.place.frame, LONGEST_NAME), _price_of(work)
    calls = {"python_call": by_rank({rank: printable(work.place.call, LONGEST_NAME)})} if work.place.call else {}
    return Cause(
        id=UNRECORDED.id,
        title=f"{readable.ranks((rank,)).capitalize()} keeps the others waiting: it alone spends "
        f"{readable.duration(price.saving_ns)} a step in {where}",
        ranks=(rank,),
        measured=price,
        confidence="medium",
        evidence={
            "python_line": by_rank({rank: where}),
            "per_step": by_rank({rank: round(ns) for rank, ns in work.took_ns.items()}, "ns"),
            "on_a_cpu": Evidence(round(work.ran, 3), "share"),
        }
        | calls,
        advice="The others wait for it at the next collective. Do it less often, in a thread or process of its own, when "
        "the training is over, or share it out among the ranks.",
    )


def _lasting(case: Case, ranks: tuple[Rank, ...], kind: Lateness, scenario: str) -> Lasting | None:
    saving = case.pricer.saving_ns(scenario)
    if saving is None or kind is INPUT:
        return None
    return lasting(case, ranks, saving / case.pricer.step_ns, computes=kind.work in COMPUTING)


def _measured(case: Case, seen: Lasting, scenario: str) -> MeasuredPrice:
    """What the mean step of the run would gain, by what a recorded one does."""
    (answer,) = case.pricer.answers([scenario])
    low, high = answer.saving_low_us or 0.0, answer.saving_high_us or 0.0
    step_us = us(case.pricer.step_ns)
    return seen.measured((answer.saving_us or 0.0) / step_us, (high - low) / 2 / step_us)


def _comparison(compared: Comparison) -> dict[str, Evidence]:
    known = {
        "times_as_long": round(compared.longer, 3),
        "times_as_much_to_do": None if compared.amount is None else round(compared.amount, 3),
        "to_do_counted_in": None if compared.amount is None else compared.what,
        "times_as_long_in_the_optimizer": None if compared.optimizer is None else round(compared.optimizer, 3),
    }
    return {name: Evidence(value) for name, value in known.items() if value is not None}


def _not_always(seen: Lasting | None, saving: float | None) -> list[str]:
    if seen is None or seen.is_always or saving is None:
        return []
    return [
        f"It does not last: over the run it is {100 * seen.share:.0f} % of what it is in the recorded steps, of which each "
        f"would gain {readable.duration(saving)} (`{SCENARIO}`); the saving shown is that of the mean step of the run."
    ]


def _evidence(replayed: Replayed, ranks: tuple[Rank, ...]) -> dict[str, Evidence]:
    steps = replayed.steps.steady
    seen = arrivals(replayed.built.dfg, steps)
    late = dict(zip(seen.ranks, seen.late_ns() / len(steps), strict=True))
    last = np.bincount(seen.last(), minlength=len(seen.ranks))
    return {
        "collectives": Evidence(len(seen)),
        "last_at": by_rank({rank: int(last[seen.ranks.index(rank)]) for rank in ranks}),
        "late_per_step": by_rank({rank: round(late[rank]) for rank in ranks}, "ns"),
        "late_per_step_other_ranks": Evidence(round(sum(of for rank, of in late.items() if rank not in ranks)), "ns"),
    }


def _place_evidence(places: dict[Rank, SlowPlace]) -> dict[str, Evidence]:
    evidence = {
        "lost_in": by_rank({rank: place.where for rank, place in places.items()}),
        "lost_there_per_step": by_rank({rank: place.lost_ns for rank, place in places.items()}, "ns"),
        "python_line": by_rank({rank: place.python for rank, place in places.items() if place.python}),
        "python_call": by_rank({rank: place.call for rank, place in places.items() if place.call}),
        "module": by_rank({rank: place.module for rank, place in places.items() if place.module}),
    }
    return {name: one for name, one in evidence.items() if one.value}


_STRAGGLER_PRICE = (
    "`straggler[work]=fix`: replay gives this rank's work the median duration that the same work takes on the other ranks "
    "(gaps included, input data not) and runs the whole job again. Where the rank is slow for less than six tenths of the "
    "run, the price is measured: that gain, times how much of the run it is. Waiting that others show is not the price: if "
    "a backlog hides it, fixing the rank gains less than the others wait."
)
_STRAGGLER_EVIDENCE = (
    "`late_per_step` is how long the others waited for this rank alone, from the second last arrival at a collective "
    "to its own; a delay that holds up several collectives counts once. Neighbours of a slow rank in its other groups come "
    "late, too: named is whose own work, beyond that of its counterparts, delays the job. "
    "`lost_in` names the operation or gap where it loses most against its peers, and `python_line` the line of Python that "
    "bears most of what it loses, where stacks were sampled; `module` the modules around the worst of it, where the trace "
    "has them (torch.profiler with stacks); `saving` prices each kind of work alone. `of_the_run` tells "
    "for how much of the run the rank is so slow, by the duration of the steps without profiler where it costs a quarter of "
    "one or more, and, of ranks that compute on CPUs, by the CPU time that they have beyond the others in these."
)
_MORE = (
    "`times_as_long` is what its computing takes against the others', `times_as_much_to_do` what it has to do, counted in "
    "tokens, samples, elements of the tensors that operations take, or operations, the first of these that the run tells of "
    "all ranks. An optimizer does as much whatever the batch: where it alone takes no longer "
    "(`times_as_long_in_the_optimizer`), the rank has more to do, and where it takes longer as all else does, the rank is "
    "slower."
)

_PAGES = (
    Page(
        "ESP201",
        "A rank is late because of unrecorded host time",
        "One rank comes last to collectives, and what makes it late is time in which none of its threads ran a "
        "recorded operation, or time inside a single operation while all others take as long as elsewhere: Python code, a "
        "sleep, I/O, garbage collection, or a CPU that others took. Or all steps show it, and no other rank, at a line of "
        "the job's own code.",
        f"{_STRAGGLER_EVIDENCE} Of jobs on CPUs, a function that one rank alone is seen in for 3 % of a step or more is "
        "named by the samples of all steps without profiler (`per_step`), where nothing else names the rank.",
        f"{_STRAGGLER_PRICE} What only samples show is priced by how long it takes there.",
        "Go to the place named; if it moves from step to step, look at the host (other processes, CPU limits).",
    ),
    Page(
        "ESP202",
        "A rank is late because its compute is slower",
        "One rank comes last to collectives because the same operations take longer there, or because it has more of them "
        "to do. The title says which, where the run tells.",
        f"{_STRAGGLER_EVIDENCE} {_MORE}",
        _STRAGGLER_PRICE,
        "Clocks, temperature, other tenants, thread counts; or more work than the others have (longer sequences).",
    ),
    Page(
        "ESP203",
        "A rank is late because its CPU issues work more slowly",
        "One rank comes last to collectives because its CPU takes longer for the same calls and launches, or has more of "
        "them to do.",
        f"{_STRAGGLER_EVIDENCE} {_MORE}",
        _STRAGGLER_PRICE,
        "Other processes on its host, CPU limits, NUMA binding, a power-saving governor.",
    ),
    Page(
        "ESP204",
        "A rank is late because of its memory allocator",
        "One rank comes last to collectives because its allocator asks the driver for memory.",
        _STRAGGLER_EVIDENCE,
        _STRAGGLER_PRICE,
        "Lower its peak, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    ),
    Page(
        "ESP206",
        "A rank is late because of its input data",
        "One rank's batches take clearly longer to make than those of the others, which wait for it. Where its loader alone "
        "makes the job wait, that is said by ESP101; here the others' loaders make them wait as well, for less long.",
        _STRAGGLER_EVIDENCE,
        "`straggler[data]=fix`: replay gives this rank's batches the median duration of the others' and runs the whole job "
        "again.",
        "Compare the storage, the free cores and the samples' sizes of that rank's host with those of the others.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=stragglers)
