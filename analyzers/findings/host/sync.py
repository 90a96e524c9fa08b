"""ESP405: calls inside the step that wait for the device, which has nothing to do afterwards."""

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

_NONE = "sync=0"

_MAX_CALLERS_NAMED = 5
"""Callers that are named, the worst first."""

_REMEDIES = {
    ITEM: "read losses and metrics every so many steps, or keep them on the device and read them when the next step runs",
    "aten::nonzero": "avoid shapes that depend on values (masks as indices, `nonzero`, `unique`); `torch.where` has none",
    "aten::copy_": "copy with `non_blocking=True` into pinned memory, and read the result later",
}
_OTHERWISE = "take the synchronisation out of the step, or do it every so many steps"


@dataclass
class _Caller:
    """What waits for the device under one name, over all steps and ranks that count."""

    calls: int = 0
    idle_ns: int = 0
    line: str | None = None
    module: str | None = None
    by_rank: dict[Rank, Ns] = field(default_factory=lambda: defaultdict(int))


def blocking_sync(case: Case) -> Iterator[Cause]:
    """CPU threads wait for their device within the step, and it waits for them afterwards."""
    if not case.replayed.built.dfg.has_gpu() or not case.worth_naming(case.pricer.saving_ns(_NONE)):
        return
    callers = _callers(case)
    idle = sum(caller.idle_ns for caller in callers.values())
    if not idle:
        return
    steps, ranks = len(case.replayed.steps.steady), case.replayed.built.dfg.marks.ranks
    shares = steps * len(ranks)
    worst_first = sorted(callers, key=lambda name: -callers[name].idle_ns)
    first, worst = worst_first[0], callers[worst_first[0]]
    often, idle_ns = round(worst.calls / shares), worst.idle_ns / shares
    times = f"{often} times a step" if often > 1 else "once a step"
    yield Cause(
        id="ESP405",
        title=f"{first} blocks the CPU {times}; afterwards the GPU idles {readable.duration(idle_ns)} in total",
        ranks=tuple(rank for rank in ranks if any(caller.by_rank.get(rank) for caller in callers.values())),
        scenario=_NONE,
        confidence="medium",
        evidence=_evidence(callers, worst_first[:_MAX_CALLERS_NAMED], shares, steps, ranks),
        advice=_advice(first, worst),
    )


def _advice(name: str, caller: _Caller) -> str:
    where = f"At {caller.line}: " if caller.line else ""
    remedy = _REMEDIES.get(name, _OTHERWISE)
    text = f"{where}{remedy}" if where else f"{remedy[0].upper()}{remedy[1:]}"
    return f"{text}. The saving is that of a step in which no call waits for the device."


def _evidence(
    callers: dict[str, _Caller], named: list[str], shares: int, steps: int, ranks: tuple[Rank, ...]
) -> dict[str, Evidence]:
    idle = {rank: round(sum(caller.by_rank.get(rank, 0) for caller in callers.values()) / steps) for rank in ranks}
    evidence = {
        "calls_per_step_and_rank": Evidence(
            {name: round(callers[name].calls / shares, 2) for name in named}, None, "cause"
        ),
        "idle_after": Evidence({name: round(callers[name].idle_ns / shares) for name in named}, "ns", "cause"),
        "idle_after_by_rank": by_rank(idle, "ns"),
    }
    places = {
        "python_line": {name: line for name in named if (line := callers[name].line)},
        "module": {name: module for name in named if (module := callers[name].module)},
    }
    return evidence | {name: Evidence(dict(of), None, "cause") for name, of in places.items() if of}


def _callers(case: Case) -> dict[str, _Caller]:
    """Name of an operation, or of a call outside of any -> what waited for the device in it, in the steady steps."""
    dfg, timeline = case.replayed.built.dfg, case.replayed.timeline
    waits = np.flatnonzero(waits_for_device(dfg))
    target = dfg.pred_target[waits]
    kept = np.isin(dfg.step[target], case.replayed.steps.steady)
    found: dict[str, _Caller] = defaultdict(_Caller)
    for rank in dfg.marks.ranks:
        mine = kept & (dfg.rank[target] == rank)
        calls = np.unique(target[mine])
        idle = _idle_after(timeline.end_ns[calls], _busy(case, rank))
        around = EnclosingCalls(case.job.samples, rank)
        for call, ns in zip(calls.tolist(), idle.tolist(), strict=True):
            row = int(dfg.event[call])
            caller = found[around.caller(row) or dfg.label(call)]
            caller.calls += 1
            caller.idle_ns += ns
            caller.by_rank[rank] += ns
            caller.line = caller.line or around.line(row)
            caller.module = caller.module or around.modules(row)
    return dict(found)


def _busy(case: Case, rank: Rank) -> np.ndarray:
    """When anything runs on the rank's GPU, what waits for peers on it included: disjoint spans, ns, shape (n, 2)."""
    dfg, timeline = case.replayed.built.dfg, case.replayed.timeline
    nodes = np.flatnonzero(dfg.on(LaneKind.STREAM) & (dfg.rank == rank))
    # A kernel that waits for its peers is there from its arrival on: what follows it on the stream begins at its end.
    start = timeline.start_ns[nodes]
    order = np.argsort(start, kind="stable")
    begin, end = start[order], np.maximum.accumulate(timeline.end_ns[nodes][order])
    opens = np.r_[True, begin[1:] > end[:-1]] if len(begin) else np.zeros(0, bool)
    last = np.r_[np.flatnonzero(opens)[1:] - 1, len(begin) - 1] if len(begin) else np.zeros(0, np.int64)
    return np.stack([begin[opens], end[last]], axis=1)


def _idle_after(returned: np.ndarray, busy: np.ndarray) -> np.ndarray:
    """How long the GPU (`busy`, spans) has had and will have nothing to do where each call returns, ns; 0 where it works. Of
    several calls in one pause the last counts."""
    after = np.searchsorted(busy[:, 0], returned, side="right")
    inside = (after > 0) & (after < len(busy))
    since, until = busy[np.maximum(after - 1, 0), 1], busy[np.minimum(after, len(busy) - 1), 0]
    idle = np.where(inside & (returned >= since), until - since, 0)
    is_last = np.r_[after[1:] != after[:-1], True] if len(after) else np.zeros(0, bool)
    pause: np.ndarray = np.where(is_last, idle, 0)
    return pause


_PAGES = (
    Page(
        "ESP405",
        "The CPU waits for its GPU within the step",
        "`.item()`, `.cpu()`, `nonzero`, a copy that is not asynchronous or a synchronisation makes the CPU wait until "
        "the GPU has done all that it was given. When the CPU goes on, the GPU has nothing left to do until the next "
        "kernel is launched.",
        "`calls_per_step_and_rank` by the operation that called, and `idle_after`: how long the GPU has nothing to do "
        "around the moment at which these calls return. `python_line` is the line of the job, where stacks were recorded, "
        "and `module` the modules around the call, where the trace has them.",
        "`sync=0`: replay lets no call wait for its device, so that kernels are launched while others run. What the CPU "
        "reads is taken to be there at once.",
        "Losses and metrics read every so many steps, `non_blocking=True` with pinned memory, no shapes that depend on "
        "values, no torch.cuda.synchronize within the step.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=blocking_sync)
