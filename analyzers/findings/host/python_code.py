"""ESP402 and ESP403: time in Python code on all ranks, by source line."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.price import MIN_PCT_OF_STEP, MeasuredPrice
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause, Page, Rule
from esprof.analyzers.samples.function_time import FunctionTimes, is_outside_training, leading_functions
from esprof.analyzers.samples.garbage import COLLECT_LESS, Collections
from esprof.analyzers.samples.sampled_lines import seen_above
from esprof.analyzers.steps.excess import stage_of
from esprof.analyzers.steps.step_groups import MIN_STEPS_AT_RANDOM
from esprof.core import readable
from esprof.core.statistics import lower_median, mean_margin
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank
from esprof.replay.cpu.frames import frame
from esprof.replay.cpu.python_time import PythonTime, matches, text_of
from esprof.replay.cpu.sampled import MIN_RUNNING_SHARE
from esprof.replay.whatif.grammar import literal
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.stacks import SourceLocation, functions_of

MIN_SHARE_ON_MEDIAN_RANK = 0.5
"""Least time of the median rank in a source location, as a share of the worst rank's. Code that delays a single rank is
reported as a straggler (ESP201)."""

MAX_CPU_SHARE_WAITING = 0.3
"""Largest share of time on a CPU for which code is reported as waiting."""

MIN_KNOWN_SHARE = 0.8
"""Least share of the time of code for which it must be known whether the thread ran."""

MAX_LOCATIONS_REPORTED = 5
"""Number of source locations that are reported, costliest first."""


@dataclass
class _HotSpot:
    """A line or a function of the job's code."""

    pattern: str
    """Regular expression that matches it."""
    took: dict[Rank, float] = field(default_factory=lambda: defaultdict(float))
    """Time in a mean step, ns, by rank."""
    cpu_ns: float = 0.0
    """Known CPU time in a mean step, ns, summed over ranks."""
    unknown_ns: float = 0.0
    """Time in a mean step of which it is unknown whether the thread ran, ns, summed over ranks."""
    locations: dict[SourceLocation, float] = field(default_factory=lambda: defaultdict(float))
    """Time of each source location in a mean step, ns, summed over ranks."""
    on_tensors: bool = False
    """Whether it mostly runs long operations on tensors."""

    @property
    def total_ns(self) -> float:
        return sum(self.took.values())

    @property
    def scenario(self) -> str:
        """The what-if that removes it, with the shortest pattern."""
        has_anonymous = any(_ANONYMOUS.search(location.frame) for location in self.locations)
        return f"python[{self.pattern if has_anonymous else self.pattern.replace(_WITHIN, '')}]=0"

    @property
    def cpu_share(self) -> float:
        """Share of its time on a CPU; NaN if unknown."""
        known_ns = self.total_ns - self.unknown_ns
        return self.cpu_ns / known_ns if known_ns >= MIN_KNOWN_SHARE * self.total_ns else math.nan

    @property
    def is_garbage_collection(self) -> bool:
        return self.pattern == GARBAGE_COLLECTION

    @property
    def worst(self) -> SourceLocation:
        return max(self.locations, key=lambda location: self.locations[location])

    def is_on_most(self, ranks: int) -> bool:
        """Whether the median of that many ranks spends `MIN_SHARE_ON_MEDIAN_RANK` of the worst rank's time there."""
        took = [*self.took.values(), *[0.0] * (ranks - len(self.took))]
        # The lower median: of two ranks, both must spend the time there.
        return lower_median(took) >= MIN_SHARE_ON_MEDIAN_RANK * max(took)


def python_code(case: Case) -> Iterator[Cause]:
    """Python code that takes time between operations on all ranks, and garbage collection on any rank, costliest first."""
    spots = sorted(_spots(case), key=lambda spot: -spot.total_ns)
    worth_ns = MIN_PCT_OF_STEP / 100 * case.pricer.step_ns
    # Removing a location never saves more than the longest time of any rank there.
    costly = [spot for spot in spots if max(spot.took.values()) >= worth_ns][:MAX_LOCATIONS_REPORTED]
    # On CPUs no device work hides garbage collections, so those of the whole run are counted: a window has few or none.
    collections = case.job.collections
    if collections is not None and (not case.replayed.built.dfg.has_gpu() or _is_reported(case.job, collections)):
        costly = [spot for spot in costly if not spot.is_garbage_collection]
        measured, is_reported = collections.measured, _is_reported(case.job, collections)
        if measured.is_worth_reporting and collections.count >= MIN_STEPS_AT_RANDOM and not is_reported:
            yield _garbage_cause(collections.per_step_ns, collections.location, measured)
    times = None if case.replayed.built.dfg.has_gpu() else case.job.function_times
    reported: set[str] = set()
    for spot in costly:
        price = _price(case, spot, times)
        if price is not None:
            yield (
                _garbage_cause(spot.took, spot.worst.frame, price)
                if spot.is_garbage_collection
                else _cause(case, spot, price, CERTAIN_SHARE if _is_certain(case, spot, times) else 0.0)
            )
            reported |= {spot.worst.frame, *functions_of(spot.worst.frame)}
    if times is not None:
        yield from _without_gaps(case, times, reported)


def _without_gaps(case: Case, times: FunctionTimes, reported: Set[str]) -> Iterator[Cause]:
    """Functions whose operations leave no visible gaps; functions and lines in `reported` are skipped.

    In a pipeline also those of single stages: the ranks of other stages do other work, so that no rule compares them.
    """
    has_stages = bool(case.blame.roles.any())
    for one in islice((one for one in times.own() if not one.functions & reported), MAX_LOCATIONS_REPORTED):
        total_ns = sum(one.took_ns.values())
        spot = _HotSpot(
            one.location.frame,
            one.took_ns,
            one.ran * total_ns,
            locations={one.location: total_ns},
            on_tensors=one.on_tensors,
        )
        if spot.is_on_most(len(case.run.ranks)):
            yield _cause(case, spot, one.measured)
        elif has_stages:
            worst_ns = max(one.took_ns.values())
            spot.took = {rank: ns for rank, ns in one.took_ns.items() if ns >= MIN_SHARE_ON_MEDIAN_RANK * worst_ns}
            spot.cpu_ns = one.ran * spot.total_ns
            yield _cause(case, spot, one.measured.times(worst_ns * len(one.took_ns) / total_ns))


def _price(case: Case, spot: _HotSpot, times: FunctionTimes | None) -> str | MeasuredPrice | None:
    """The what-if that removes it, or its measured time in all steps of the run; None if it costs too little.

    The measured time is used if it is clearly longer, because the operations of a function are too short to leave gaps, or
    clearly shorter, because a pause occurred in the recorded steps by chance. Code that computes is never measured as
    shorter: samples are taken when the GIL is free, so they underestimate code that holds it.
    """
    saving = case.pricer.saving_ns(spot.scenario) or 0.0
    of_run = None if times is None or spot.is_garbage_collection else times.of(re.compile(spot.pattern))
    if of_run is not None:
        is_longer = of_run.saving_ns - of_run.margin_ns > saving
        is_shorter = spot.cpu_share <= MAX_CPU_SHARE_WAITING and of_run.saving_ns + of_run.margin_ns < saving
        if is_longer or is_shorter:
            return of_run if of_run.is_worth_reporting else None
    return spot.scenario if case.is_worth_reporting(saving) else None


def _is_certain(case: Case, spot: _HotSpot, times: FunctionTimes | None) -> bool:
    """Whether the samples of all steps without profiler show this code of the job, or every recorded step, beyond their
    scatter. Code that computes holds the GIL and is hardly sampled; code that waits may do so by chance."""
    line = frame(spot.worst.frame)
    if times is None or line.origin != "job" or line.function.endswith(".forward"):
        return False
    pattern = re.compile(spot.pattern)
    of_run = times.of(pattern)
    if of_run is not None and of_run.saving_ns > of_run.margin_ns:
        return True
    computes = spot.cpu_share >= MIN_RUNNING_SHARE and is_outside_training(case.job.samples, matches(pattern))
    return computes and all(took.mean() > mean_margin(took) for took in _took_in_steps(case, pattern))


def _took_in_steps(case: Case, pattern: re.Pattern[str]) -> Iterator[np.ndarray]:
    """Time of the matching code in each steady-state step of each rank, ns, float64[steps]."""
    dfg, steps = case.replayed.built.dfg, case.replayed.steps.steady
    for rank in dfg.marks.ranks:
        took = PythonTime(case.run, dfg, rank).share(matches(pattern)) * dfg.dur_ns
        yield np.array([took[dfg.step == step].sum() for step in steps])


def _is_reported(job: RecordedJob, collections: Collections) -> bool:
    """Whether slow steps, which are more specific, are reported for most of the cost of garbage collection."""
    most = [group for group in job.slow_groups if group.measured.saving_ns >= collections.measured.saving_ns / 2]
    groups = [group for group in most if group.measured.is_worth_reporting]
    stages = [stage_of(job.steps, group) for group in groups]
    return any(stage is not None and stage.what == GARBAGE_COLLECTION for stage in stages)


def _spots(case: Case) -> list[_HotSpot]:
    found: dict[str, _HotSpot] = {}
    ranks = case.replayed.built.dfg.marks.ranks
    leading = leading_functions(case.job.samples, ranks)
    times = {rank: PythonTime(case.run, case.replayed.built.dfg, rank) for rank in ranks}
    recorded = [rank for rank in ranks if len(times[rank].frames)]
    leading |= {function for rank in recorded for function in times[rank].leading}
    for rank in ranks:
        sampled = len(case.run.stacks(rank)) or len(case.job.samples.of(rank)) or len(case.run.stages(rank))
        if not sampled and rank not in recorded:
            continue  # Without a record of Python code skip the nodes of the rank, which are many in a large job.
        for location, (took_ns, cpu_share) in times[rank].by_location(case.replayed.steps.steady).items():
            pattern = _pattern(location, leading)
            spot = found.setdefault(pattern, _HotSpot(pattern))
            spot.took[rank] += took_ns
            if math.isnan(cpu_share):
                spot.unknown_ns += took_ns
            else:
                spot.cpu_ns += cpu_share * took_ns
            spot.locations[location] += took_ns
    return [spot for spot in found.values() if spot.is_garbage_collection or spot.is_on_most(len(ranks))]


def _pattern(location: SourceLocation, leading: set[str]) -> str:
    """Regular expression for what is reported together with a source location.

    All garbage collections; for a line of the training loop, that line with its callee; otherwise all lines of the function,
    with its comprehensions and lambdas.
    """
    if location.call == GARBAGE_COLLECTION:
        return GARBAGE_COLLECTION
    line = frame(location.frame)
    if not line.file:
        return f"^{literal(text_of(location))}$"
    function = _ANONYMOUS.sub("", line.function)
    if f"{line.file}: {function}" not in leading and leading:
        return rf"^{literal(line.file)}\(\d+\): {literal(function)}{_WITHIN}( →|$)"
    here = rf"^{literal(line.file)}\({line.line}\): {literal(function)}{_WITHIN}"
    if location.call is None:
        return f"{here}$"
    called = frame(location.call)
    if not called.file:
        return f"{here} → {literal(location.call)}$"
    return rf"{here} → {literal(called.file)}\(\d+\): {literal(called.function)}$"


_ANONYMOUS = re.compile(r"(\.<locals>\.<\w+>)+$")
"""Matches the suffix of the names of comprehensions and lambdas, which count as their enclosing function."""
_WITHIN = r"(\.<locals>\.<\w+>)*"
"""Matches what `_ANONYMOUS` removes."""


def _garbage_cause(took: dict[Rank, float], line: str, price: str | MeasuredPrice) -> Cause:
    """Garbage collection at `line`, which takes `took`, ns in a mean step, by rank; `price` is a scenario or measured."""
    where = printable(line, LONGEST_NAME) or "unknown code"
    return Cause(
        id="ESP403",
        title=f"Python's garbage collection takes {_takes(took)}, at {where}",
        ranks=tuple(sorted(took)),
        scenario=price if isinstance(price, str) else None,
        measured=None if isinstance(price, str) else price,
        confidence="high",
        evidence={"source_line": Evidence(where), "per_step": _per_step(took)},
        advice=COLLECT_LESS,
    )


def _takes(took: dict[Rank, float]) -> str:
    return f"{'up to ' if len(took) > 1 else ''}{readable.duration(max(took.values()))} a step"


def _per_step(took: dict[Rank, float]) -> Evidence:
    return by_rank({rank: round(took[rank]) for rank in sorted(took)}, "ns")


def _cause(case: Case, spot: _HotSpot, price: str | MeasuredPrice, certain_share: float = 0.0) -> Cause:
    ranks, worst, cpu_share = tuple(sorted(spot.took)), spot.worst, spot.cpu_share
    takes = _takes(spot.took) if isinstance(price, str) else f"{readable.duration(price.saving_ns)} a step"
    who = readable.ranks(ranks).capitalize()
    where = printable(worst.frame, LONGEST_NAME)
    evidence = {
        "source_line": Evidence(where),
        "per_step": _per_step(spot.took),
    }
    if not math.isnan(cpu_share):
        evidence["cpu_share"] = Evidence(round(cpu_share, 3), "share")
    if isinstance(price, MeasuredPrice):
        evidence["per_unprofiled_step"] = Evidence(round(price.saving_ns), "ns")
    if caller := _loop_line(case, spot):
        evidence["called_from"] = Evidence(printable(caller, LONGEST_NAME))
    calling = f", calling {printable(worst.call, LONGEST_NAME)}" if worst.call else ""
    return Cause(
        id="ESP402",
        title=f"{who} {readable.verb('spend', ranks)} {takes} in {where}{calling}",
        ranks=ranks,
        scenario=price if isinstance(price, str) else None,
        measured=None if isinstance(price, str) else price,
        certain_share=certain_share,
        confidence="high",
        evidence=evidence | ({"calls": Evidence(printable(worst.call, LONGEST_NAME))} if worst.call else {}),
        advice=_ON_TENSORS if spot.on_tensors else _advice(cpu_share),
    )


def _loop_line(case: Case, spot: _HotSpot) -> str | None:
    """The line of the training loop that most often leads to the spot; None if samples show none, or it is in the loop."""
    line, leading = frame(spot.worst.frame), leading_functions(case.job.samples, case.ranks)
    if not line.file or f"{line.file}: {line.function}" in leading:
        return None
    rank = max(spot.took, key=lambda rank: spot.took[rank])
    function = re.compile(rf"^{re.escape(line.file)}\(\d+\): {re.escape(line.function)}$", re.MULTILINE)
    return seen_above(case.job.samples, rank, function, among=leading)


_ON_TENSORS = (
    "It computes on tensors, outside the model's forward pass and without a gradient. Do this work less often, on fewer or "
    "smaller tensors, or on one rank only."
)


def _advice(cpu_share: float) -> str:
    if math.isnan(cpu_share):
        return (
            "No PyTorch operation runs in that time; the trace does not show whether Python computes or waits. Do this work "
            "less often, on whole tensors, or ahead of time in the loader's workers or another thread."
        )
    if cpu_share <= MAX_CPU_SHARE_WAITING:
        return (
            f"The thread ran for only {100 * cpu_share:.0f} % of that time. For the rest it slept, or waited for a file, "
            "the network, a lock, a CPU or another process. Do this work in a separate thread or process, less often, "
            "or not on every rank."
        )
    if cpu_share >= MIN_RUNNING_SHARE:
        return (
            "Python computes there while no PyTorch operation runs. Do this work less often, on whole tensors, or "
            "ahead of time in the loader's workers."
        )
    return (
        f"The thread ran for {100 * cpu_share:.0f} % of that time, and waited for the rest. Do this work less often, in a "
        "separate thread, or ahead of time in the loader's workers."
    )


_SAMPLING = (
    "The stack of the training thread is sampled a thousand times a second in windows with stacks (`--stack-steps`). "
    "`source line` is the line of the job's own code that ran while no operation did, or that a backward pass called; "
    "`calls` is the line that ran innermost, in a function that it called; `called from` is the line of the training loop "
    "that leads there. `per step` is its time in a mean "
    "step of each rank, and `cpu share` the share of it on a CPU. `per unprofiled step` is its time in all steps "
    "without profiler. Traces of torch.profiler with `with_stack=True` show which function of the job ran in each gap "
    "(`source line` is then its first line, `calls` what it calls itself), but not whether it ran on a CPU."
)

_PAGES = (
    Page(
        "ESP402",
        "Code of the job takes long",
        "Between two operations, or in a callback of a backward pass, Python code runs or waits for so long that "
        "the step becomes longer: hooks, logging, metrics, tokenising, reading files, sleeping. Or code outside the model "
        "computes on tensors: statistics of layers, averages of weights. If it happens on one rank only, ESP201 reports it; "
        "in a pipeline this finding does, since the ranks of other stages do other work.",
        f"{_SAMPLING} Code that a GPU's backward pass calls in a thread of its own is not sampled.",
        "`python[…]=0`: replay removes the time of that code and replays the whole job. The samples of all steps without "
        "profiler replace this prediction by a measured time in two cases. On CPUs, if they show clearly more time for "
        "the function: it also runs operations too short to leave gaps. And if the code sleeps and they show clearly "
        "less time: the profiled steps had a pause by chance. At least half of the saving counts as certain if they show "
        "the code beyond their scatter, or if it computes in every recorded step. A function that leaves no gaps at all, or "
        "a line of the training loop, is reported if the samples show it for at least 3 % of a step. Excluded are the "
        "model, the input pipeline, the optimizer, and what mostly has a gradient, as a loss does.",
        "Do this work less often, in another thread or process, ahead of time, or on whole tensors.",
    ),
    Page(
        "ESP403",
        "Garbage collection stops the step",
        "Python's garbage collector runs while the training thread waits. Ranks collect in different steps, so that on "
        "several ranks all wait for one after the other.",
        "Python itself reports collections of half a millisecond or more in the whole run, with the line at which they "
        "occurred: `source line`. `per step` is their time in a mean step of each rank.",
        "On GPUs `python[garbage collection]=0`: replay removes their time. On CPUs no device work hides them, and "
        "the saving is measured: their time in all steps without profiler. If they make single steps slow, those "
        "steps are reported instead, with a saving as in ESP807.",
        "Call gc.freeze() after start-up, raise the thresholds, or collect manually on all ranks in the same step.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=python_code)
