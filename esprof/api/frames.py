"""Results as pandas tables. Columns name their unit: `_us` (microseconds), `_pct` (per cent), `_bytes`.

A table without rows has all its columns.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from esprof.analyzers.finding import ACTIVITIES, Diagnosis, Finding, RankBreakdown
from esprof.analyzers.ops.answer import Op, OpsAnswer
from esprof.core import readable
from esprof.core.errors import UsageError
from esprof.core.types import NS_PER_US, Ns
from esprof.replay.answer import ReplayAnswer, StepLeftOut, StepTime, WhatIf
from esprof.replay.dfg import JOIN_LANE, Cls, Dfg
from esprof.replay.engine.timeline import Timeline
from esprof.replay.replayed import Replayed
from esprof.run.run import Run

_CLASSES = [cls.label for cls in Cls]


def step_times(run: Run) -> pd.DataFrame:
    """All steps of all ranks, profiled or not: the columns of `schema.STEPS`, with times in microseconds.

    `start_us` counts from the start of the first step of any rank, on the ranks' own clocks.
    """
    frames = [run.steps(rank).to_pandas().assign(rank=rank) for rank in run.ranks]
    table = pd.concat(frames, ignore_index=True)
    table["start_ns"] -= table["start_ns"].min()
    times = [name for name in table.columns if name.endswith("_ns")]
    table[times] = table[times] / NS_PER_US
    table = table.rename(columns={name: f"{name.removesuffix('_ns')}_us" for name in times})
    return table[["rank", *(name for name in table.columns if name != "rank")]]


def steps(answer: ReplayAnswer) -> pd.DataFrame:
    """One row per step of the graph: its duration, measured and replayed; or the reason why it is excluded."""
    replayed, left_out = _table(answer.steps, StepTime), _table(answer.left_out, StepLeftOut)
    tables = [table for table in (replayed, left_out) if len(table)]
    joined = pd.concat(tables, ignore_index=True) if tables else replayed
    columns = [*replayed.columns, "reason"]
    return (
        joined.reindex(columns=columns)
        .rename(columns={"reason": "left_out_for"})
        .sort_values("step", ignore_index=True)
    )


def breakdown(diagnosis: Diagnosis) -> pd.DataFrame:
    """One row per rank: the time of its mean step by activity. The times sum to `step_us`."""
    table = _table(diagnosis.breakdown, RankBreakdown).set_index("rank")
    return table.rename(columns={"host_name": "host"} | {name: f"{name}_us" for name in ACTIVITIES})


def findings(diagnosis: Diagnosis) -> pd.DataFrame:
    """One row per finding, in the order of the diagnosis. `symptoms` holds ids."""
    table = _table(diagnosis.findings, Finding).drop(columns="evidence")
    return table.assign(symptoms=[tuple(one.id for one in finding.symptoms) for finding in diagnosis.findings])


def evidence(diagnosis: Diagnosis) -> pd.DataFrame:
    """One row per observation: the finding that it supports, its name, value and unit, and its rank, step or cause."""
    rows = []
    for finding in diagnosis.findings:
        for name, seen in finding.evidence.items():
            values = seen.value.items() if isinstance(seen.value, dict) else [(None, seen.value)]
            rows += [(finding.id, name, seen.by, key, value, seen.unit) for key, value in values]
    return pd.DataFrame(rows, columns=["finding", "name", "by", "key", "value", "unit"])


def operations(answer: OpsAnswer, by_rank: bool) -> pd.DataFrame:
    """One row per operation, per mean steady-state step, the mean of the ranks; with `by_rank`, one per rank."""
    found = _table(answer.ops, Op).drop(
        columns=["by_rank", "kernels", "kernels_found", "inputs", "inputs_found", "places"]
    )
    found["differs"] = found["differs"].astype("Int64")
    if not by_rank:
        return found
    described = [{"name": op.name, "kind": op.kind, "shapes": op.shapes} for op in answer.ops]
    rows = [
        about | msgspec.structs.asdict(one)
        for about, op in zip(described, answer.ops, strict=True)
        for one in op.by_rank
    ]
    of_all = ("share_pct", "differs", "backward_cpu_us", "backward_gpu_us")
    columns = ["rank", *(name for name in found.columns if name not in of_all)]
    return pd.DataFrame(rows, columns=columns)


def what_if(answer: ReplayAnswer) -> pd.DataFrame:
    """One row per scenario, in the given order; if it was declined, the figures are NaN and `reason` explains it.

    `peak` is the peak memory in bytes, where a term changes it."""
    figures = [name for name in msgspec.structs.asdict(WhatIf(spec="", answered=False)) if name.endswith("_us")]
    table = _table(answer.what_if, WhatIf)
    table["peak"] = [one.peak.peak if one.peak is not None else None for one in answer.what_if]
    return table.astype(dict.fromkeys([*figures, "speedup", "peak"], float))


def critical_path(replayed: Replayed) -> pd.DataFrame:
    """One row per segment of the path through the steady-state steps, in order. Segments of adjacent steps neither overlap
    nor leave gaps.

    `class` is the class of the segment's time; `name` and `lane` are those of the node that the path runs through.
    """
    dfg, path = replayed.built.dfg, replayed.path
    nodes = np.array([piece.node for piece in path], np.int64)
    start = np.array([piece.start_ns for piece in path], np.int64)
    end = np.array([piece.end_ns for piece in path], np.int64)
    classes = np.array([piece.cls for piece in path], np.int8)
    table = _nodes(dfg, nodes, _categories(classes, _CLASSES)) | {
        "rank": np.array([piece.rank for piece in path], np.int64),
        "start_us": _in_us(start - start_ns(replayed.timeline)),
        "dur_us": _in_us(end - start),
    }
    return pd.DataFrame(table)


def timeline(replayed: Replayed, steps: Collection[int] | None) -> pd.DataFrame:
    """One row per node of the graph with a duration, on all lanes of all ranks, by rank, lane and start."""
    dfg, times = replayed.built.dfg, replayed.timeline
    nodes = np.flatnonzero((dfg.dur_ns > 0) & (dfg.lane != JOIN_LANE) & in_steps(dfg, steps))
    nodes = nodes[np.lexsort((times.start_ns[nodes], dfg.lane[nodes], dfg.rank[nodes]))]
    table = _nodes(dfg, nodes, _categories(dfg.cls[nodes], _CLASSES)) | {
        "start_us": _in_us(times.start_ns[nodes] - start_ns(times)),
        "dur_us": _in_us(times.end_ns[nodes] - times.start_ns[nodes]),
        "bytes": _known(dfg.bytes[nodes]),
    }
    return pd.DataFrame(table).rename(columns={"bytes": "moved_bytes"})


def collectives(replayed: Replayed) -> pd.DataFrame:
    """One row per rank of each matched collective, send or receive, by first arrival.

    `late_us` is the delay after the first rank's arrival, `waited_us` the time until the communication started, which is
    when the last rank arrived.
    """
    dfg, times, run = replayed.built.dfg, replayed.timeline, replayed.run
    arrival, communication = (_of_collectives(dfg, cls) for cls in (Cls.WAIT, Cls.COMMUNICATION))
    arrival_ns, start, end = times.end_ns[arrival], times.start_ns[communication], times.end_ns[communication]
    table = pd.DataFrame(
        {
            "collective": dfg.collective[communication],
            "step": dfg.step[communication],
            "rank": dfg.rank[communication],
            "name": _names(dfg, communication),
            "group": _groups(run, dfg, communication),
            "moved_bytes": _known(dfg.bytes[communication]),
            "arrived_us": _in_us(arrival_ns - start_ns(times)),
            "late_us": 0.0,
            "waited_us": _in_us(start - arrival_ns),
            "transfer_us": _in_us(end - start),
        }
    )
    first_us = table.groupby("collective")["arrived_us"].transform("min")
    table["late_us"] = (table["arrived_us"] - first_us).round(3)
    in_order = np.lexsort((table["rank"], table["collective"], first_us))
    return table.iloc[in_order].reset_index(drop=True)


def in_steps(dfg: Dfg, steps: Collection[int] | None) -> np.ndarray:
    """Mask of the nodes of `steps`, bool[N]; of all nodes for None. Raises UsageError for a step outside the graph."""
    if steps is None:
        return np.ones(dfg.nodes, bool)
    if not isinstance(steps, Iterable):
        raise UsageError(
            f"steps={steps!r} is not a list of steps", remedy=f"For a single step, pass steps=[{steps!r}]."
        )
    unknown = sorted(set(steps).difference(dfg.marks.steps))
    if unknown:
        raise UsageError(
            f"the graph has no {readable.numbered('step', unknown)}",
            remedy=f"It has {readable.numbered('step', dfg.marks.steps)}.",
        )
    mask: np.ndarray = np.isin(dfg.step, list(steps))
    return mask


def start_ns(timeline: Timeline) -> Ns:
    """Zero of the times in tables and graphs, ns since `dfg.t0_ns`: the first rank enters the first step."""
    return int(timeline.end_ns[timeline.dfg.marks.first[0]].min())


def _table(rows: Sequence[msgspec.Struct], of: type[msgspec.Struct]) -> pd.DataFrame:
    """One row per struct, one column per field."""
    return pd.DataFrame([msgspec.structs.asdict(row) for row in rows], columns=list(of.__struct_fields__))


def _nodes(dfg: Dfg, nodes: np.ndarray, classes: pd.Categorical) -> dict[str, Any]:
    """The columns that describe `nodes` (ids), in display order."""
    lanes = pd.Categorical(["", *(lane.role for lane in dfg.lanes)])
    # The first entry is that of lane -1, the joins of collectives.
    of_lane = _categories(lanes.codes[dfg.lane[nodes] + 1], list(lanes.categories))
    return {
        "step": dfg.step[nodes],
        "rank": dfg.rank[nodes],
        "lane": of_lane,
        "class": classes,
        "name": _names(dfg, nodes),
    }


def _names(dfg: Dfg, nodes: np.ndarray) -> pd.Categorical:
    return _categories(dfg.name[nodes], list(dfg.names))


def _categories(codes: np.ndarray, texts: list[str]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, texts)


def _known(amounts: np.ndarray) -> pd.Series:
    """Amounts of bytes; negative ones are unknown."""
    return pd.Series(amounts, dtype="Int64").mask(amounts < 0)


def _of_collectives(dfg: Dfg, cls: Cls) -> np.ndarray:
    """Ids of the nodes of class `cls` that belong to collectives, without joins, by collective and rank."""
    nodes = np.flatnonzero((dfg.collective >= 0) & (dfg.rank >= 0) & dfg.of(cls))
    ordered: np.ndarray = nodes[np.lexsort((dfg.rank[nodes], dfg.collective[nodes]))]
    return ordered


def _groups(run: Run, dfg: Dfg, nodes: np.ndarray) -> list[str | None]:
    """The process group of each node; None if unknown."""
    texts = {rank: run.events(rank).texts("group") for rank in np.unique(dfg.rank[nodes]).tolist()}
    events = zip(dfg.rank[nodes].tolist(), dfg.event[nodes].tolist(), strict=True)
    return [texts[rank][row] if row >= 0 else None for rank, row in events]


def _in_us(ns: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.round(ns / NS_PER_US, 3)
    return rounded
