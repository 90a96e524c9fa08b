"""ESP406: time in which a rank runs no recorded operation while its device idles, and no stack tells what runs."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.host.python_code import MIN_SHARE_ON_MEDIAN_RANK
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.breakdown import layers, partition
from esprof.core import readable
from esprof.core.statistics import lower_median
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank
from esprof.replay.cpu.python_time import UNRECORDED, PythonTime, text_of
from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.whatif.grammar import literal

MIN_SHARE_OF_STEP = 0.05
"""Least share of a step that is worth recording again: about the error of a price without lines."""

_SCENARIO = f"python[^{literal(text_of(UNRECORDED))}$]=0"

_MAX_GAPS_REPORTED = 5
"""Number of gaps that are listed, costliest first."""


def uncovered_time(case: Case) -> Iterator[Cause]:
    """Time on most ranks in which no operation was recorded, if its code is unknown."""
    dfg, steps = case.replayed.built.dfg, case.replayed.steps.steady
    is_steady = np.isin(dfg.step, steps)
    gaps = {rank: np.flatnonzero(PythonTime(case.run, dfg, rank).unnamed & is_steady) for rank in dfg.marks.ranks}
    # Removing gaps never saves more than all of them take.
    if not case.is_worth_reporting(sum(float(dfg.dur_ns[nodes].sum()) for nodes in gaps.values()) / len(steps)):
        return
    saving = case.pricer.saving_ns(_SCENARIO)
    if saving is None or not case.is_worth_reporting(saving):
        return
    uncovered = {rank: _uncovered_ns(case, rank, nodes) for rank, nodes in gaps.items()}
    took = {rank: float(ns.sum()) / len(steps) for rank, ns in uncovered.items()}
    # The lower median: of two ranks, both must spend the time.
    least_ns = max(MIN_SHARE_OF_STEP * case.pricer.step_ns, MIN_SHARE_ON_MEDIAN_RANK * max(took.values()))
    if lower_median(took.values()) < least_ns:
        return
    yield _cause(case, gaps, uncovered, took)


def _uncovered_ns(case: Case, rank: Rank, gaps: np.ndarray) -> np.ndarray:
    """Time of each of these nodes in which no device, no other thread and no collective of the rank is active, ns."""
    timeline, dfg = case.replayed.timeline, case.replayed.built.dfg
    if not len(gaps):
        return np.zeros(0, np.int64)
    of_rank = (dfg.rank == rank) & dfg.on(LaneKind.CPU) & (dfg.lane != dfg.main_lane(rank))
    others = np.flatnonzero(of_rank & dfg.of(Cls.CPU, Cls.COMPUTE, Cls.LAUNCH, Cls.ALLOCATOR))
    # The last layer is the host's, which contains the gaps themselves.
    busy = [*layers(timeline, rank)[:-1], np.stack([timeline.start_ns[others], timeline.end_ns[others]], axis=1)]
    uncovered: np.ndarray = partition(busy, np.stack([timeline.start_ns[gaps], timeline.end_ns[gaps]], axis=1))[:, -1]
    return uncovered


def _cause(
    case: Case, gaps: dict[Rank, np.ndarray], uncovered: dict[Rank, np.ndarray], took: dict[Rank, float]
) -> Cause:
    dfg, steps = case.replayed.built.dfg, len(case.replayed.steps.steady)
    total: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for rank, nodes in gaps.items():
        for node, ns in zip(nodes.tolist(), uncovered[rank].tolist(), strict=True):
            total[name := printable(dfg.label(node), LONGEST_NAME)] += ns
            times[name] += 1
    most = [name for name, _ in total.most_common(_MAX_GAPS_REPORTED)]
    ranks = tuple(rank for rank, ns in took.items() if ns)
    worst, rank_steps = max(took.values()), steps * len(took)
    up_to = "up to " if len(ranks) > 1 else ""
    return Cause(
        id="ESP406",
        title=f"{readable.ranks(ranks).capitalize()} {readable.verb('run', ranks)} no recorded operation for {up_to}"
        f"{readable.duration(worst)} of a step, most of it between {most[0]}",
        ranks=ranks,
        scenario=_SCENARIO,
        is_bound=True,
        confidence="medium",
        evidence={
            "uncovered_per_step": by_rank({rank: round(ns) for rank, ns in took.items()}, "ns"),
            "largest_gaps": Evidence({name: round(total[name] / rank_steps) for name in most}, "ns", "cause"),
            "gaps_per_step_and_rank": Evidence(
                {name: round(times[name] / rank_steps, 2) for name in most}, None, "cause"
            ),
            "priced_as": Evidence("upper bound: these gaps take no time"),
        },
        advice="What runs there is unknown: Python code, making batches, files, the network, or a sleep. Record it with "
        "stacks to see its line: `esprof record --stack-steps 2`, or torch.profiler with `with_stack=True`.",
    )


_PAGES = (
    Page(
        "ESP406",
        "Much of the step is covered by no recorded operation",
        "The main threads of most ranks run no recorded operation for long, while their devices idle, and no stacks "
        "show what runs there. ESP402 reports such time where the line is known, and ESP201 where a single rank spends it.",
        "`uncovered per step` is the time of a mean step in which neither the device, nor any thread, nor a "
        "collective of the rank is active, in gaps of at least 1 ms: shorter ones are ordinary overhead of Python "
        "(ESP401). It is reported from 5 % of a step on. Recorded waits, for the device or for other ranks, do not "
        "count. `largest gaps` are the operations before and after, with the mean time of a step, and `gaps per step "
        "and rank` is how often they occur. A wait that the trace does not contain, such as for a lock or a store, "
        "counts.",
        "`python[unrecorded code]=0`: replay removes these gaps and replays the whole job. This is an upper bound, since "
        "the work in them may be needed.",
        "Record with stacks: `esprof record --stack-steps 2`, or torch.profiler with `with_stack=True`.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=uncovered_time)
