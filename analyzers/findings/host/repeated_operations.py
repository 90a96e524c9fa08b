"""ESP408 on CPUs: loops of Python that call the same operations for one item after the other."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.findings.host.operation_runs import OperationRuns, StepRuns
from esprof.analyzers.rule import Case, Cause
from esprof.core.readable import duration
from esprof.core.text import LONGEST_NAME, printable
from esprof.replay.whatif.gradients.operation_loops import operation_loops
from esprof.run.schema import Table

CERTAIN_SHARE = 0.5
"""Share of the predicted saving that is certain: every step spends it in calls of small operations."""

_SCENARIO = "loops=0"


def repeated_operations(case: Case) -> Iterator[Cause]:
    """Loops over small operations that one call on larger tensors could replace."""
    if not case.is_worth_reporting(case.pricer.saving_ns(_SCENARIO)):
        return
    runs = StepRuns.of(case, _runs)
    if not len(runs.by_rank[runs.worst].begin_ns):
        return
    loops = operation_loops(case.run.events(runs.worst))
    longest = np.argmax(loops.end_ns - loops.begin_ns)
    operations, iterations = int(loops.operations[longest]), int(loops.iterations[longest])
    same = "The same operation runs" if operations == 1 else f"The same {operations} operations run"
    where = printable(runs.line.text, LONGEST_NAME) if runs.line else None
    yield Cause(
        id="ESP408",
        title=f"{same} {iterations} times in a row; such loops take {duration(runs.took_ns[runs.worst])} of a step"
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


def _runs(events: Table, steps: tuple[int, ...]) -> OperationRuns:
    """The loops in these steps."""
    loops = operation_loops(events)
    here = np.isin(loops.step, steps)
    return OperationRuns(loops.begin_ns[here], loops.end_ns[here], (loops.operations * loops.iterations)[here])
