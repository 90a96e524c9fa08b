"""ESP408 and ESP201 on CPUs: loops of Python that call the same operations for one item after the other."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.findings.host.operation_runs import OperationRuns, StepRuns
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause
from esprof.core.readable import duration
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank
from esprof.replay.cpu.python_time import PythonTime
from esprof.replay.whatif.graph.thread_ranges import ThreadRanges, share_within
from esprof.replay.whatif.host.operation_loops import OperationLoops, operation_loops
from esprof.run.schema import Table

MAX_SHARE_OF_OTHERS = 0.1
"""Longest loops of any other rank, relative to those of a rank that counts as the only one with loops."""

_SCENARIO = "loops=0"


def repeated_operations(case: Case) -> Iterator[Cause]:
    """ESP408: loops over small operations that one call on larger tensors could replace."""
    runs = _runs_of(case)
    if runs is not None:
        yield _cause(case, runs, "ESP408")


def loops_of_one_rank(case: Case) -> Iterator[Cause]:
    """ESP201: such loops that a single rank runs, for which the others wait."""
    runs = _runs_of(case)
    if runs is not None and _is_of_one_rank(case, runs):
        yield _cause(case, runs, "ESP201", f"Rank {runs.worst} delays the other ranks by loops that it alone runs. ")


def _runs_of(case: Case) -> StepRuns | None:
    """The loops of a job on CPUs, if they are worth reporting."""
    if case.replayed.built.dfg.has_gpu() or not case.is_worth_reporting(case.pricer.saving_ns(_SCENARIO)):
        return None
    runs = StepRuns.of(case, _runs)
    return runs if len(runs.by_rank[runs.worst].begin_ns) else None


def _is_of_one_rank(case: Case, runs: StepRuns) -> bool:
    """Whether there are other ranks, all of the same role, that run hardly any loops."""
    others = [took for rank, took in runs.took_ns.items() if rank != runs.worst]
    most_ns = MAX_SHARE_OF_OTHERS * runs.took_ns[runs.worst]
    return bool(others) and max(others) <= most_ns and not case.blame.roles.any()


def _cause(case: Case, runs: StepRuns, finding: str, who: str = "") -> Cause:
    loops = operation_loops(case.run.events(runs.worst))
    longest = np.argmax(loops.end_ns - loops.begin_ns)
    operations, iterations = int(loops.operations[longest]), int(loops.iterations[longest])
    same = "The same operation runs" if operations == 1 else f"The same {operations} operations run"
    where = printable(runs.line.text, LONGEST_NAME) if runs.line else _line_between(case, runs.worst, loops)
    return Cause(
        id=finding,
        title=f"{who}{same} {iterations} times in a row; such loops take {duration(runs.took_ns[runs.worst])} of a step"
        + (f", most of it at {where}" if where else ""),
        ranks=runs.ranks,
        scenario=_SCENARIO,
        certain_share=CERTAIN_SHARE,
        confidence="medium",
        evidence={"operations_of_an_iteration": Evidence(operations), "iterations": Evidence(iterations)}
        | runs.evidence("in_loops_per_step", "operations_in_loops_per_step", where),
        advice="Calling an operation takes longer than its arithmetic here. Compute all items at once, by operations on "
        "tensors with one more dimension (torch.vmap, torch.stack, the torch._foreach functions of an optimizer), or "
        "compile the loop (torch.compile).",
    )


def _line_between(case: Case, rank: Rank, loops: OperationLoops) -> str | None:
    """The line that takes most of the time between the operations of the loops, if windows with stacks show one."""
    run, dfg = case.run, case.replayed.built.dfg
    share = share_within(run, dfg, {rank: ThreadRanges(loops.tid, loops.begin_ns, loops.end_ns)})
    took = PythonTime(run, dfg, rank).took(share * dfg.dur_ns)
    location = max(took, key=lambda one: took[one][0], default=None)
    return printable(location.frame, LONGEST_NAME) if location else None


def _runs(events: Table, steps: tuple[int, ...]) -> OperationRuns:
    """The loops in these steps."""
    loops = operation_loops(events)
    here = np.isin(loops.step, steps)
    return OperationRuns(loops.begin_ns[here], loops.end_ns[here], (loops.operations * loops.iterations)[here])
