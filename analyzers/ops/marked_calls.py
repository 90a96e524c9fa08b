"""Work of calls of modules that the recorder has marked: its time, module and line."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.ops.calling_lines import calling_line
from esprof.analyzers.rule import Case
from esprof.analyzers.views.enclosing import EnclosingCalls
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank
from esprof.replay.whatif.graph.thread_ranges import ThreadRanges, work_share
from esprof.run.schema import Table

MOST_MODULES = 8
"""Most modules of which the work on the GPU is compared: those that take longest on the CPU."""


@dataclass(frozen=True)
class MarkedWork:
    """Work of marked calls in the steady-state steps."""

    module: str
    """The module whose calls take longest."""
    others: int
    """Number of other modules."""
    calls: float
    """Calls in a mean step of a mean rank."""
    spent_ns: dict[Rank, float]
    """Time of threads and GPU in a mean step, ns, by rank."""
    line: str | None
    """The line of the job's own code that makes the calls, if samples show it."""

    @property
    def ranks(self) -> tuple[Rank, ...]:
        worst = max(self.spent_ns.values())
        return tuple(rank for rank, spent in self.spent_ns.items() if spent >= worst / 2)

    @property
    def modules(self) -> str:
        """Their names, with the verb of a title."""
        return f"{self.module} and {self.others} more are" if self.others else f"{self.module} is"

    @property
    def takes(self) -> str:
        up_to = "up to " if len(self.spent_ns) > 1 else ""
        return up_to + readable.duration(max(self.spent_ns.values()))

    @property
    def where(self) -> str:
        """The line behind a comma, if it is known."""
        return f", at {printable(self.line, LONGEST_NAME)}" if self.line else ""

    def evidence(self) -> dict[str, Evidence]:
        found = {
            "module": Evidence(self.module),
            "calls_per_step_and_rank": Evidence(round(self.calls, 1)),
            "per_step": by_rank({rank: round(spent) for rank, spent in self.spent_ns.items()}, "ns"),
        }
        return found | ({"source_line": Evidence(printable(self.line, LONGEST_NAME))} if self.line else {})


def marked_work(
    case: Case,
    scenario: str,
    calls_in: Callable[[Table], np.ndarray],
    ranges_of: Callable[[Table, np.ndarray], ThreadRanges],
) -> MarkedWork | None:
    """The work of the calls (rows) in each rank's events, in the ranges of these. None if `scenario`, which is without it,
    saves too little, or no step after the window's first has a call."""
    steps = case.replayed.steps.steady
    calls_of = {rank: calls_in(case.run.events(rank)) for rank in case.replayed.built.dfg.marks.ranks}
    if not any(map(len, calls_of.values())) or not case.is_worth_reporting(case.pricer.saving_ns(scenario)):
        return None
    events_of = {rank: case.run.events(rank) for rank in calls_of}
    steady = {rank: rows[np.isin(events_of[rank].ints("step")[rows], steps)] for rank, rows in calls_of.items()}
    if all((events_of[rank].ints("step")[rows] <= min(steps)).all() for rank, rows in steady.items()):
        return None
    spent = _spent_ns(case, {rank: ranges_of(events_of[rank], calls) for rank, calls in calls_of.items()})
    worst = max(spent, key=lambda rank: spent[rank])
    if not len(steady[worst]):
        return None
    modules = _by_module(case, worst, calls_of[worst])
    longest = max(
        list(modules)[:MOST_MODULES],
        key=lambda module: _spent_ns(case, {worst: ranges_of(events_of[worst], modules[module])})[worst],
    )
    return MarkedWork(
        module=printable(longest, LONGEST_NAME),
        others=len(modules) - 1,
        calls=sum(map(len, steady.values())) / len(steps) / len(steady),
        spent_ns=spent,
        line=calling_line(case.job.samples, worst, modules[longest].tolist()),
    )


def _spent_ns(case: Case, ranges: dict[Rank, ThreadRanges]) -> dict[Rank, float]:
    """Time of threads and GPU in these ranges in a mean step, ns, by rank."""
    dfg, steps = case.replayed.built.dfg, case.replayed.steps.steady
    took = np.where(np.isin(dfg.step, steps), work_share(case.run, dfg, ranges) * dfg.dur_ns, 0.0) / len(steps)
    return {rank: float(took[dfg.nodes_of(rank)].sum()) for rank in ranges}


def _by_module(case: Case, rank: Rank, calls: np.ndarray) -> dict[str, np.ndarray]:
    """These calls (rows) of a rank by module; those first that take longest on the CPU."""
    enclosing, took_ns = EnclosingCalls(case.job.samples, rank), case.run.events(rank).ints("dur_ns")
    rows: dict[str, list[int]] = defaultdict(list)
    for row in calls.tolist():
        rows[enclosing.modules(row) or "a module"].append(row)
    by_time = sorted(rows.items(), key=lambda one: -int(took_ns[one[1]].sum()))
    return {module: np.array(mine) for module, mine in by_time}
