"""ESP201–204, ESP206: ranks that come last to collectives while the others wait, and why they do."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof import readable
from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.input_data import stalling
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.replay.blame import FEW_STEPS, arrivals
from esprof.replay.dfg import Cls, gap_name
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.scenario import Declined
from esprof.replay.whatif.terms.straggler import CLASSES, fix_stragglers
from esprof.types import NS_PER_MS, Rank


@dataclass(frozen=True)
class Lateness:
    """A kind of work that can make a rank late."""

    id: str
    phrase: str
    work: str
    """What stands in the brackets of `straggler[…]=fix`."""
    advice: str

    @property
    def scenario(self) -> str:
        return f"straggler[{self.work}]=fix"


KINDS = (
    Lateness(
        "ESP201",
        "time in code that no operation was recorded for",
        "host_gap",
        "What runs there may be Python code, a sleep, logging, file or network access, garbage collection, or a "
        "host whose CPU is taken by others.",
    ),
    Lateness(
        "ESP202",
        "slower compute",
        "compute",
        "The same operations take longer on this rank: compare clocks, temperature, other tenants and thread counts of "
        "its device with the others', and whether it gets more work (longer sequences, larger batches).",
    ),
    Lateness(
        "ESP203",
        "slower CPU work and launches",
        "cpu",
        "Its CPU issues the same calls more slowly: look for other processes on its host, CPU limits, or a process bound "
        "to the wrong NUMA node.",
    ),
    Lateness(
        "ESP204",
        "memory allocation",
        "allocator",
        "Its allocator runs short and asks the driver (cudaMalloc, cudaFree): lower its memory use, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    ),
)


@dataclass(frozen=True)
class Place:
    """Where on its lanes a rank loses most against its peers."""

    where: str
    """The operation, or the gap `before → after`."""
    lost_ns: int
    """What is lost there in a mean step."""
    python: str | None = None
    """The Python line that ran in the gap, as `file(line): function`; None where no window has its stack."""
    call: str | None = None
    """What that line called."""


INPUT = Lateness(
    "ESP206",
    "slower input data",
    "data",
    "Its batches take longer to make than those of the others: compare its host's storage and free cores with theirs, and "
    "whether its samples are larger.",
)

SCENARIO = "straggler[work]=fix"
"""Of slow ranks, all but what they lose to their data loaders: that is priced apart."""


def stragglers(case: Case) -> Iterator[Cause]:
    """The slow ranks, if they are worth mending, named by their main cause.

    They are priced together: of two that are late by turns, mending one alone gains nothing (docs/replay.md §4).
    """
    ranks = case.pricer.blame.slow_ranks
    if not ranks:
        return
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
        main = max(shares, key=lambda kind: shares[kind])
        yield _cause(case, ranks, main, SCENARIO, {"saving": Evidence(dict(by_cause), "ns", "cause")})


def _unpriced(case: Case, ranks: tuple[Rank, ...]) -> Iterator[Cause]:
    """Slow ranks that cannot be mended in a replay: they are named by the kind of work of which they have most too much."""
    blame = case.pricer.blame
    delay = blame.late_ns.mean(axis=0)[np.isin(blame.dfg.marks.ranks, ranks)].sum()
    mine = np.isin(blame.dfg.rank, ranks) & np.isin(blame.dfg.step, blame.steps)
    beyond = {kind: blame.excess_ns[mine & blame.dfg.of(*CLASSES[kind.work])].sum() for kind in KINDS}
    main = max(beyond, key=lambda kind: beyond[kind])
    if case.worth_naming(float(delay)) and beyond[main] > 0:
        yield _cause(case, ranks, main, SCENARIO, {})


def _cause(case: Case, ranks: tuple[Rank, ...], kind: Lateness, scenario: str, besides: dict[str, Evidence]) -> Cause:
    saving = case.pricer.saving_ns(scenario)
    margin = abs(case.pricer.strict_error) * case.pricer.step_ns
    is_sure = case.is_explained and len(case.replayed.steps.steady) >= FEW_STEPS
    places = _places(case.replayed, ranks, kind)
    return Cause(
        id=kind.id,
        title=f"{readable.ranks(ranks).capitalize()} {readable.verb('keep', ranks)} the others waiting: {kind.phrase}",
        ranks=ranks,
        scenario=scenario,
        confidence="low" if saving is None else "high" if is_sure and saving > 2 * margin else "medium",
        evidence=_evidence(case.replayed, ranks) | besides | _place_evidence(places),
        advice=" ".join([*(_pointer(rank, place) for rank, place in places.items()), kind.advice]),
    )


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


def _place_evidence(places: dict[Rank, Place]) -> dict[str, Evidence]:
    evidence = {
        "lost_in": by_rank({rank: place.where for rank, place in places.items()}),
        "lost_there_per_step": by_rank({rank: place.lost_ns for rank, place in places.items()}, "ns"),
        "python_line": by_rank({rank: place.python for rank, place in places.items() if place.python}),
        "python_call": by_rank({rank: place.call for rank, place in places.items() if place.call}),
    }
    return {name: one for name, one in evidence.items() if one.value}


def _places(replayed: Replayed, ranks: tuple[Rank, ...], kind: Lateness) -> dict[Rank, Place]:
    dfg = replayed.built.dfg
    try:
        fixed = fix_stragglers(replayed.pricer.blame, ranks, CLASSES[kind.work])
    except Declined:  # Their work of this kind has no counterpart: it was not what was priced.
        return {}
    lost_ns = dfg.dur_ns - fixed.dfg.dur_ns
    return {rank: place for rank in ranks if (place := _place(replayed, rank, kind, lost_ns)) is not None}


def _place(replayed: Replayed, rank: Rank, kind: Lateness, lost: np.ndarray) -> Place | None:
    """Where this rank loses most; `lost` is what each node takes longer than its peers, ns, shape (N,)."""
    dfg = replayed.built.dfg
    mine = np.flatnonzero((dfg.rank == rank) & np.isin(dfg.step, replayed.steps.steady) & (lost > 0))
    if not len(mine):
        return None
    by_name = np.bincount(dfg.name[mine], weights=lost[mine], minlength=len(dfg.names))
    name = dfg.names[int(by_name.argmax())]
    lost_ns = round(by_name.max() / len(replayed.steps.steady))
    # A snapshot of the stack tells of a gap alone: an operation may have a name that reads like one.
    line = _python_line(replayed, rank, name) if Cls.HOST_GAP in CLASSES[kind.work] else (None, None)
    return Place(name, lost_ns, *line)


def _pointer(rank: Rank, place: Place) -> str:
    calling = f", calling {place.call}" if place.call else ""
    return f"Rank {rank} loses {readable.duration(place.lost_ns)} a step in {place.python or place.where}{calling}."


def _python_line(replayed: Replayed, rank: Rank, name: str) -> tuple[str | None, str | None]:
    """The Python frame that ran in the longest gap of this name, and what it called, from the window with stacks."""
    stacks = replayed.run.stacks(rank)
    texts = (stacks.texts(column) for column in ("before", "after", "frame", "call"))
    rows = zip(*texts, stacks.ints("dur_ns").tolist(), strict=True)
    hits = [(dur, frame, call or "") for b, a, frame, call, dur in rows if frame and gap_name(b or "", a or "") == name]
    if not hits or max(hits)[0] < NS_PER_MS / 2:
        return None, None
    _, frame, call = max(hits)
    return frame, call or None


_STRAGGLER_PRICE = (
    "`straggler[work]=fix`: replay gives this rank's work the median duration that the same work takes on the other ranks "
    "(gaps included, input data not) and runs the whole job again. Waiting that others show is not the price: if a backlog "
    "hides it, fixing the rank gains less than the others wait."
)
_STRAGGLER_EVIDENCE = (
    "`late_per_step` is how long the others waited for this rank alone, from the second last arrival at a collective "
    "to its own; a delay that holds up several collectives counts once. Neighbours of a slow rank in its other groups come "
    "late, too: named is whose own work, beyond that of its counterparts, delays the job. "
    "`lost_in` names the operation or gap where it loses most against its peers, and `python_line` the line that ran "
    "there, where a window with stacks was recorded; `saving` prices each kind of work alone."
)

_PAGES = (
    Page(
        "ESP201",
        "A rank is late because of unrecorded host time",
        "One rank comes last to collectives, and what makes it late is time in which none of its threads ran a "
        "recorded operation: Python code, a sleep, I/O, garbage collection, or a CPU that others took.",
        _STRAGGLER_EVIDENCE,
        _STRAGGLER_PRICE,
        "Go to the place named; if it moves from step to step, look at the host (other processes, CPU limits).",
    ),
    Page(
        "ESP202",
        "A rank is late because its compute is slower",
        "One rank comes last to collectives because the same operations take longer there.",
        _STRAGGLER_EVIDENCE,
        _STRAGGLER_PRICE,
        "Clocks, temperature, other tenants, thread counts; or more work than the others have (longer sequences).",
    ),
    Page(
        "ESP203",
        "A rank is late because its CPU issues work more slowly",
        "One rank comes last to collectives because its CPU takes longer for the same calls and launches.",
        _STRAGGLER_EVIDENCE,
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
