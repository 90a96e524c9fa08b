"""ESP405: calls within the step that wait for the device, which then idles."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.enclosing import ITEM, EnclosingCalls
from esprof.core import readable
from esprof.core.types import Ns, Rank
from esprof.replay.dfg import LaneKind
from esprof.replay.whatif.graph.selections import waits_for_device

_SCENARIO = "sync=0"

_MAX_CALLERS_REPORTED = 5
"""Number of callers that are listed, costliest first."""

_REMEDIES = {
    ITEM: "read losses and metrics every so many steps, or keep them on the device and read them when the next step runs",
    "aten::nonzero": "avoid shapes that depend on values (masks as indices, `nonzero`, `unique`); `torch.where` has "
    "none",
    "aten::copy_": "copy with `non_blocking=True` into pinned memory, and read the result later",
}
_DEFAULT_REMEDY = "take the synchronisation out of the step, or do it every so many steps"


@dataclass
class _Caller:
    """Calls of one operation that wait for the device, over the steady-state steps of all ranks."""

    calls: int = 0
    idle_ns: int = 0
    """Time for which the device idles after the calls, until the next call that waits for it, ns."""
    line: str | None = None
    module: str | None = None
    by_rank: dict[Rank, Ns] = field(default_factory=lambda: defaultdict(int))
    """`idle_ns` of each rank."""


def blocking_sync(case: Case) -> Iterator[Cause]:
    """Calls within the step that make the CPU wait for its device, which then idles."""
    if not case.replayed.built.dfg.has_gpu() or not case.is_worth_reporting(case.pricer.saving_ns(_SCENARIO)):
        return
    callers = _callers(case)
    steps, ranks = len(case.replayed.steps.steady), case.replayed.built.dfg.marks.ranks
    rank_steps = steps * len(ranks)
    idle_by_rank = {rank: sum(caller.by_rank.get(rank, 0) for caller in callers.values()) / steps for rank in ranks}
    if not case.is_worth_reporting(max(idle_by_rank.values())):
        return
    worst_first = sorted(callers, key=lambda name: -callers[name].idle_ns)
    first, worst = worst_first[0], callers[worst_first[0]]
    often, idle_ns = round(worst.calls / rank_steps), worst.idle_ns / rank_steps
    times = f"{often} times a step" if often > 1 else "once a step"
    yield Cause(
        id="ESP405",
        title=f"{first} blocks the CPU {times}; afterwards the GPU idles {readable.duration(idle_ns)}",
        ranks=tuple(rank for rank, idle in idle_by_rank.items() if idle),
        scenario=_SCENARIO,
        most_ns=max(idle_by_rank.values()),
        confidence="medium",
        evidence=_evidence(callers, worst_first[:_MAX_CALLERS_REPORTED], rank_steps)
        | {"idle_after_by_rank": by_rank({rank: round(idle) for rank, idle in idle_by_rank.items()}, "ns")},
        advice=_advice(first, worst),
    )


def _advice(name: str, caller: _Caller) -> str:
    where = f"At {caller.line}: " if caller.line else ""
    remedy = _REMEDIES.get(name, _DEFAULT_REMEDY)
    text = f"{where}{remedy}" if where else f"{remedy[0].upper()}{remedy[1:]}"
    return f"{text}. The saving assumes a step in which no call waits for the device."


def _evidence(callers: dict[str, _Caller], reported: list[str], rank_steps: int) -> dict[str, Evidence]:
    evidence = {
        "calls_per_step_and_rank": Evidence(
            {name: round(callers[name].calls / rank_steps, 2) for name in reported}, None, "cause"
        ),
        "idle_after": Evidence({name: round(callers[name].idle_ns / rank_steps) for name in reported}, "ns", "cause"),
    }
    details = {
        "python_line": {name: line for name in reported if (line := callers[name].line)},
        "module": {name: module for name in reported if (module := callers[name].module)},
    }
    return evidence | {name: Evidence(dict(of), None, "cause") for name, of in details.items() if of}


def _callers(case: Case) -> dict[str, _Caller]:
    """Name of an operation, or of a call outside of operations -> its waits for the device in the steady-state steps."""
    dfg, timeline = case.replayed.built.dfg, case.replayed.timeline
    waits = np.flatnonzero(waits_for_device(dfg))
    target = dfg.pred_target[waits]
    is_steady = np.isin(dfg.step[target], case.replayed.steps.steady)
    found: dict[str, _Caller] = defaultdict(_Caller)
    for rank in dfg.marks.ranks:
        mine = is_steady & (dfg.rank[target] == rank)
        calls = np.unique(target[mine])
        idle = _idle_after(timeline.end_ns[calls], _busy(case, rank))
        enclosing = EnclosingCalls(case.job.samples, rank)
        for call, ns in zip(calls.tolist(), idle.tolist(), strict=True):
            row = int(dfg.event[call])
            caller = found[enclosing.caller(row) or dfg.label(call)]
            caller.calls += 1
            caller.idle_ns += ns
            caller.by_rank[rank] += ns
            caller.line = caller.line or enclosing.line(row)
            caller.module = caller.module or enclosing.modules(row)
    return dict(found)


def _busy(case: Case, rank: Rank) -> np.ndarray:
    """Disjoint intervals in which kernels occupy the rank's GPU, also while they wait for peers: ns, shape (n, 2)."""
    dfg, timeline = case.replayed.built.dfg, case.replayed.timeline
    nodes = np.flatnonzero(dfg.on(LaneKind.STREAM) & (dfg.rank == rank))
    # A collective's kernel occupies its stream from its arrival on: the next kernel starts when it ends.
    start = timeline.start_ns[nodes]
    order = np.argsort(start, kind="stable")
    begin, end = start[order], np.maximum.accumulate(timeline.end_ns[nodes][order])
    opens = np.r_[True, begin[1:] > end[:-1]] if len(begin) else np.zeros(0, bool)
    last = np.r_[np.flatnonzero(opens)[1:] - 1, len(begin) - 1] if len(begin) else np.zeros(0, np.int64)
    return np.stack([begin[opens], end[last]], axis=1)


def _idle_after(returned: np.ndarray, busy: np.ndarray) -> np.ndarray:
    """How long the GPU idles after each call until the next one, ns, int64[calls].

    `returned` are the times at which calls return, ns; `busy` the GPU's busy intervals (`_busy`). The idle interval in which
    a call returns counts as a whole. If several calls return in it, it counts for the last.
    """
    order = np.argsort(returned, kind="stable")
    gaps, gap_ends = busy[1:, 0] - busy[:-1, 1], busy[1:, 0]
    last_call = np.searchsorted(returned[order], gap_ends, side="right") - 1
    idle = np.zeros(len(returned), np.int64)
    np.add.at(idle, order[last_call[last_call >= 0]], gaps[last_call >= 0])
    return idle


_PAGES = (
    Page(
        "ESP405",
        "The CPU waits for its GPU within the step",
        "`.item()`, `.cpu()`, `nonzero`, a blocking copy or a synchronisation makes the CPU wait until the GPU has "
        "finished all submitted work. When the CPU goes on, the GPU idles until the next kernel is launched.",
        "`calls per step and rank` counts the calls by operation. `idle after` is how long the GPU idles a step from "
        "such a call to the next one. `python line` is the line of the job, if stacks were recorded, and "
        "`module` the modules that enclose the call, if the trace has them.",
        "`sync=0`: in replay no call waits for its device, so kernels are launched while others run. Values that "
        "the CPU reads are assumed to be available at once. The saving is at most what the GPU idles after such calls.",
        "Read losses and metrics only every few steps, use `non_blocking=True` with pinned memory, avoid shapes "
        "that depend on values, and remove torch.cuda.synchronize from the step.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=blocking_sync)
