"""ESP402 and ESP403: time that Python code takes on all ranks alike, by the line that was at work."""

import re
from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from itertools import islice

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.price import MIN_PCT_OF_STEP, MeasuredPrice
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.samples.frames import frame
from esprof.analyzers.samples.function_time import FunctionTimes, leading_functions
from esprof.analyzers.samples.garbage import COLLECT_LESS, Collections
from esprof.analyzers.steps.slow_places import stage_of
from esprof.analyzers.steps.step_groups import MIN_STEPS_AT_RANDOM
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank
from esprof.replay.cpu.python_time import PythonTime, text_of
from esprof.replay.cpu.sampled import MIN_RUNNING_SHARE
from esprof.replay.whatif.grammar import literal
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.stacks import SourceLocation, functions_of

MIN_SHARE_ON_MEDIAN_RANK = 0.5
"""Least share of the worst rank's time in a place that the median rank must spend there, too. What one rank does alone makes
it late: that is told of stragglers (ESP201)."""

MAX_RAN_SHARE_ASLEEP = 0.3
"""Up to which share of its time in a place the thread ran is it said to wait there."""

MAX_PLACES_NAMED = 5
"""Places that are named: those that take longest."""


@dataclass
class _Spot:
    """One line of the job's code, or one function where the line is not what matters."""

    pattern: str
    """A regular expression that finds it."""
    took: dict[Rank, float] = field(default_factory=lambda: defaultdict(float))
    """How long a mean step spends there, ns, by rank."""
    ran: float = 0.0
    """How long of that the threads of all ranks ran, ns."""
    places: dict[SourceLocation, float] = field(default_factory=lambda: defaultdict(float))
    """How long each place took on all ranks, ns."""

    @property
    def in_all(self) -> float:
        return sum(self.took.values())

    @property
    def scenario(self) -> str:
        """The what-if without it, as short as can be."""
        has_parts = any(_ANONYMOUS.search(place.frame) for place in self.places)
        return f"python[{self.pattern if has_parts else self.pattern.replace(_WITHIN, '')}]=0"

    @property
    def ran_share(self) -> float:
        """Share of that time that the threads ran."""
        return self.ran / self.in_all

    @property
    def collects(self) -> bool:
        return self.pattern == GARBAGE_COLLECTION

    @property
    def worst(self) -> SourceLocation:
        return max(self.places, key=lambda place: self.places[place])

    def is_alike(self, ranks: int) -> bool:
        took = sorted([*self.took.values(), *[0.0] * (ranks - len(self.took))])
        # Of an even number of ranks the lower of the two in the middle: of two, both must spend it there.
        return took[(ranks - 1) // 2] >= MIN_SHARE_ON_MEDIAN_RANK * took[-1]


def python_code(case: Case) -> Iterator[Cause]:
    """Places where all ranks spend time between operations, and garbage collections on any, costliest first."""
    spots = sorted(_spots(case), key=lambda spot: -spot.in_all)
    worth_ns = MIN_PCT_OF_STEP / 100 * case.pricer.step_ns
    # To take a place out never gains more than the rank spends there that spends most.
    costly = [spot for spot in spots if max(spot.took.values()) >= worth_ns][:MAX_PLACES_NAMED]
    # Between CPUs nothing hides a collection, so that those of the whole run tell: a window has few, or none.
    all_of_run = case.job.collections
    if all_of_run is not None and (not case.replayed.built.dfg.has_gpu() or _is_told(case.job, all_of_run)):
        costly = [spot for spot in costly if not spot.collects]
        measured, is_told = all_of_run.measured, _is_told(case.job, all_of_run)
        if measured.is_worth_naming and all_of_run.count >= MIN_STEPS_AT_RANDOM and not is_told:
            yield _collecting(all_of_run.per_step_ns, all_of_run.place, measured)
    times = None if case.replayed.built.dfg.has_gpu() else case.job.function_times
    told: set[str] = set()
    for spot in costly:
        price = _price(case, spot, times)
        if price is not None:
            yield _collecting(spot.took, spot.worst.frame, price) if spot.collects else _cause(spot, price)
            told |= functions_of(spot.worst.frame)
    if times is not None:
        yield from _without_gaps(case, times, told)


def _without_gaps(case: Case, times: FunctionTimes, told: Set[str]) -> Iterator[Cause]:
    """Functions that leave no gaps long enough to tell of: those of many short operations. Not those that are `told`."""
    leading = leading_functions(case.job.samples, case.run.ranks)
    for one in islice((one for one in times.own(leading) if not one.functions & told), MAX_PLACES_NAMED):
        in_all = sum(one.took_ns.values())
        spot = _Spot(one.place.frame, one.took_ns, one.ran * in_all, {one.place: in_all})
        if spot.is_alike(len(case.run.ranks)):
            yield _cause(spot, one.measured)


def _price(case: Case, spot: _Spot, times: FunctionTimes | None) -> str | MeasuredPrice | None:
    """The what-if without it, or what it takes in the steps of the whole run where that is clearly more, or less; None
    where it is not worth naming.

    It is more where a function spends its time in operations too short to leave gaps, and less where a pause came in the
    recorded steps by chance. Samples come when Python's lock is free, so that of code that holds it less is seen.
    """
    saving = case.pricer.saving_ns(spot.scenario) or 0.0
    of_run = None if times is None or spot.collects else times.of(re.compile(spot.pattern))
    if of_run is not None:
        is_more = of_run.saving_ns - of_run.margin_ns > saving
        is_less = spot.ran_share <= MAX_RAN_SHARE_ASLEEP and of_run.saving_ns + of_run.margin_ns < saving
        if is_more or is_less:
            return of_run if of_run.is_worth_naming else None
    return spot.scenario if case.worth_naming(saving) else None


def _is_told(job: RecordedJob, all_of_run: Collections) -> bool:
    """Whether most of what collections cost is told of the steps that they make slow: that tells more."""
    most = [group for group in job.slow_groups if group.measured.saving_ns >= all_of_run.measured.saving_ns / 2]
    groups = [group for group in most if group.measured.is_worth_naming]
    stages = [stage_of(job.steps, group) for group in groups]
    return any(stage is not None and stage.what == GARBAGE_COLLECTION for stage in stages)


def _spots(case: Case) -> list[_Spot]:
    found: dict[str, _Spot] = {}
    ranks = case.replayed.built.dfg.marks.ranks
    leading = leading_functions(case.job.samples, ranks)
    for rank in ranks:
        if not (len(case.run.stacks(rank)) or len(case.job.samples.of(rank)) or len(case.run.stages(rank))):
            continue  # Nothing tells of Python there: of a large job that saves a look at all of its nodes.
        places = PythonTime(case.run, case.replayed.built.dfg, rank).places(case.replayed.steps.steady)
        for place, (took_ns, ran) in places.items():
            pattern = _pattern(place, leading)
            spot = found.setdefault(pattern, _Spot(pattern))
            spot.took[rank] += took_ns
            spot.ran += ran * took_ns
            spot.places[place] += took_ns
    return [spot for spot in found.values() if spot.collects or spot.is_alike(len(ranks))]


def _pattern(place: SourceLocation, leading: set[str]) -> str:
    """What finds a place: collections wherever they come, a line of the training loop with what it calls, or else all lines
    of the function, those within its comprehensions and lambdas too."""
    if place.call == GARBAGE_COLLECTION:
        return GARBAGE_COLLECTION
    line = frame(place.frame)
    if not line.file:
        return f"^{literal(text_of(place))}$"
    function = _ANONYMOUS.sub("", line.function)
    if f"{line.file}: {function}" not in leading and leading:
        return rf"^{literal(line.file)}\(\d+\): {literal(function)}{_WITHIN}( →|$)"
    here = rf"^{literal(line.file)}\({line.line}\): {literal(function)}{_WITHIN}"
    called = frame(place.call) if place.call else None
    if called is None or not called.file:
        return f"{here}$"
    return rf"{here} → {literal(called.file)}\(\d+\): {literal(called.function)}$"


_ANONYMOUS = re.compile(r"(\.<locals>\.<\w+>)+$")
"""Ends the names of comprehensions and lambdas, which are parts of the function around them."""
_WITHIN = r"(\.<locals>\.<\w+>)*"
"""Finds what `_ANONYMOUS` takes away."""


def _collecting(took: dict[Rank, float], line: str, price: str | MeasuredPrice) -> Cause:
    """Garbage collections, seen at `line`, that take each rank so long in a mean step, ns. The price is a scenario's, or
    measured."""
    where = printable(line, LONGEST_NAME) or "unknown code"
    return Cause(
        id="ESP403",
        title=f"Garbage collections take {_takes(took)}, at {where}",
        ranks=tuple(sorted(took)),
        scenario=price if isinstance(price, str) else None,
        measured=None if isinstance(price, str) else price,
        confidence="high",
        evidence={"place": Evidence(where), "per_step": _per_step(took)},
        advice=COLLECT_LESS,
    )


def _takes(took: dict[Rank, float]) -> str:
    return f"{'up to ' if len(took) > 1 else ''}{readable.duration(max(took.values()))} a step"


def _per_step(took: dict[Rank, float]) -> Evidence:
    return by_rank({rank: round(took[rank]) for rank in sorted(took)}, "ns")


def _cause(spot: _Spot, price: str | MeasuredPrice) -> Cause:
    ranks, worst, ran = tuple(sorted(spot.took)), spot.worst, spot.ran_share
    takes = _takes(spot.took) if isinstance(price, str) else f"{readable.duration(price.saving_ns)} a step"
    who = readable.ranks(ranks).capitalize()
    where = printable(worst.frame, LONGEST_NAME)
    evidence = {
        "place": Evidence(where),
        "per_step": _per_step(spot.took),
        "on_a_cpu": Evidence(round(ran, 3), "share"),
    }
    if isinstance(price, MeasuredPrice):
        evidence["per_step_of_the_run"] = Evidence(round(price.saving_ns), "ns")
    calling = f", calling {printable(worst.call, LONGEST_NAME)}" if worst.call else ""
    return Cause(
        id="ESP402",
        title=f"{who} {readable.verb('spend', ranks)} {takes} in {where}{calling}",
        ranks=ranks,
        scenario=price if isinstance(price, str) else None,
        measured=None if isinstance(price, str) else price,
        confidence="high",
        evidence=evidence | ({"calls": Evidence(printable(worst.call, LONGEST_NAME))} if worst.call else {}),
        advice=_advice(ran),
    )


def _advice(ran: float) -> str:
    if ran <= MAX_RAN_SHARE_ASLEEP:
        return (
            f"The thread ran for {100 * ran:.0f} % of that time only: it sleeps, or waits for a file, the network, a "
            "lock, a CPU or another process. Do that in a thread or process of its own, less often, or not on every rank."
        )
    if ran >= MIN_RUNNING_SHARE:
        return (
            "Python computes there while no operation runs: do it less often, on tensors as a whole, or ahead of time in "
            "the loader's workers."
        )
    return (
        f"The thread ran for {100 * ran:.0f} % of that time, and waited for the rest: do the work less often, in a thread "
        "of its own, or ahead of time in the loader's workers."
    )


_SEEN = (
    "The stack of the training thread is sampled a thousand times a second in windows with stacks (`--stack-steps`). "
    "`place` is the line of the job's own code that was at work while no operation ran, or that a backward pass had called, "
    "`calls` the innermost line that it led to; `per_step` how long that takes in a mean step of each rank, and `on_a_cpu` "
    "the share of it that the thread ran; `per_step_of_the_run` is what all steps without profiler show instead. Code that "
    "a GPU's backward pass calls in a thread of its own is not seen."
)

_PAGES = (
    Page(
        "ESP402",
        "Python code takes long",
        "Between two operations, or called back by a backward pass, Python code runs or waits for so long that the step "
        "becomes longer: hooks, logging, metrics, tokenising, reading files, sleeping. All ranks do so alike, or there is "
        "but one.",
        _SEEN,
        "`python[…]=0`: replay lets that code take no time and runs the whole job again. Where the job computes on CPUs and "
        "the samples of all steps without profiler show the function for clearly longer, the price is measured: that time, "
        "which the operations that it calls take, too, if they are too short to leave gaps. So it is where the code sleeps, "
        "and they show it for clearly less: a pause came in the recorded steps by chance. Functions that leave no gaps are "
        "named by these samples alone, from 3 % of a step on, unless they are part of the model, of the input or of the "
        "optimizer, or mostly in long operations.",
        "Do it less often, in another thread or process, ahead of time, or on whole tensors.",
    ),
    Page(
        "ESP403",
        "Garbage collections stop the step",
        "Python looks for objects that nobody needs, and the training thread waits. Each rank does so in steps of its own, "
        "so that on several ranks all wait for one after the other.",
        f"{_SEEN} Collections of half a millisecond or more are noted by Python itself, in all of the run, with the "
        "line that they came in.",
        "On GPUs `python[garbage collection]=0`: replay lets them take no time. Between CPUs nothing hides them, and the "
        "price is measured: what they take in all steps without profiler. Where they make some steps slow, those are told, "
        "and priced as ESP807 is.",
        "gc.freeze() after the start, higher thresholds, or collecting by hand on all ranks at once.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=python_code)
