"""ESP501: cudaMalloc and cudaFree calls that stop the device."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from esprof.analyzers.evidence import by_rank, by_step
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.core.readable import duration, verb
from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.runtime_names import allocates
from esprof.replay.steps import LeftOutFor
from esprof.replay.whatif.graph import edits
from esprof.run.schema import Table

_SCENARIO = "allocator=0"
_RETRY = re.compile(r"MF+(?=M)")
_RETRIED = "The device's memory is full: the allocator had to free its cache and ask again (`num_alloc_retries`). "


def allocator(case: Case) -> Iterator[Cause]:
    """Allocator calls in steady-state steps, and the outlier steps that they cause."""
    replayed, dfg = case.replayed, case.replayed.built.dfg
    outliers = [step for step, reason in replayed.steps.left_out.items() if reason.cause is LeftOutFor.ALLOCATOR]
    saving = case.pricer.saving_ns(_SCENARIO)
    if not outliers and not case.is_worth_reporting(saving):
        return
    calls = dfg.of(Cls.ALLOCATOR)
    spent = {rank: dfg.dur_ns[calls & (dfg.rank == rank)].sum() for rank in dfg.marks.ranks}
    retried = {rank: _retries(case.run.events(rank), dfg.marks.steps) for rank in dfg.marks.ranks}
    worst, steps = max(spent.values()), len(dfg.marks.steps)
    # Only evidence: the price is the saving of a steady-state step, and outliers are not steady-state steps.
    without = dict(zip(dfg.marks.steps, replay(edits.shorten(dfg, calls, 0)).step_ns(), strict=True))
    measured = dict(zip(dfg.marks.steps, replayed.measured_ns, strict=True))
    yield Cause(
        id="ESP501",
        title=_outlier_title(outliers, steps, measured, without)
        if outliers
        else f"cudaMalloc and cudaFree take up to {duration(worst / steps)} a step",
        ranks=tuple(rank for rank, total in spent.items() if total >= worst / 2),
        scenario=_SCENARIO,
        severity="warning" if outliers else None,
        confidence="high" if case.is_explained else "medium",
        evidence={
            "allocator_per_step": by_rank({rank: round(total / steps) for rank, total in spent.items()}, "ns"),
            "outliers": by_step({step: int(measured[step]) for step in outliers}, "ns"),
            "outliers_without_allocator": by_step({step: int(without[step]) for step in outliers}, "ns"),
            **({"retries": by_rank(retried)} if any(retried.values()) else {}),
        },
        advice=(_RETRIED if any(retried.values()) else "")
        + "Lower the memory peak, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or avoid shapes "
        "that change from step to step. The saving is for a steady-state step; outliers are not part of it.",
    )


def _retries(events: Table, steps: tuple[int, ...]) -> int:
    """How often PyTorch's allocator failed to get memory in these steps: it then frees what it caches, and asks again.

    In the calls of a thread that is cudaMalloc, cudaFree once or more, and cudaMalloc, without a launch between them.
    """
    codes, names = events.codes("name")
    letter = np.array([_letter(name) for name in names] + [""])
    rows = np.flatnonzero(events.is_kind("runtime") & np.isin(events.ints("step"), steps))
    rows = rows[letter[codes[rows]] != ""]
    tid = events.ints("tid")[rows]
    order = np.lexsort((events.ints("start_ns")[rows], tid))
    threads = np.split(order, np.flatnonzero(np.diff(tid[order])) + 1)
    return sum(len(_RETRY.findall("".join(letter[codes[rows[mine]]]))) for mine in threads)


def _letter(call: str) -> str:
    """M for a call that asks the driver for memory, F for one that frees it, L for a launch; empty for others."""
    if allocates(call):
        return "F" if "free" in call.lower() else "M"
    return "L" if "launch" in call.lower() else ""


def _outlier_title(outliers: list[int], steps: int, measured: Mapping[int, int], without: Mapping[int, int]) -> str:
    """Number of outliers, and the longest one with and without the allocator's calls; durations in ns by step."""
    longest = max(outliers, key=lambda step: measured[step])
    most = "" if len(outliers) == 1 else "up to "
    return (
        f"{len(outliers)} of {steps} steps {verb('were', outliers)} slow because of cudaMalloc or cudaFree: "
        f"{most}{duration(measured[longest])}, not {duration(without[longest])}"
    )


_PAGES = (
    Page(
        "ESP501",
        "Memory allocation stops the step",
        "cudaMalloc and cudaFree stop the device. PyTorch's caching allocator calls them when it has no free block "
        "that fits: at the start, when tensor shapes change, and near the memory limit.",
        "`allocator per step` is the time in these calls, by rank. `outliers` are the steps that spend more than a "
        "quarter of their time in them; `outliers without allocator` is the replayed duration of those steps "
        "without the calls. `retries` counts how often memory was full: cudaMalloc failed, the allocator freed its cache "
        "and asked again (cudaMalloc, cudaFree and cudaMalloc in a row on a thread).",
        "`allocator=0`: replay removes these calls. The saving is for a steady-state step and does not include "
        "outliers.",
        "Lower the memory peak, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or keep tensor shapes constant.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=allocator, scenarios=(_SCENARIO,))
