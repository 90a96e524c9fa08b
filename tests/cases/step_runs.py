"""Runs made by hand that contain only steps, in memory and on disk."""

from pathlib import Path

import numpy as np

from esprof.core.types import NS_PER_MS
from esprof.run.run import RankMeta, Run, RunMeta
from esprof.run.schema import EVENTS, STEPS, Table, table
from tests.cases.run_directory import write_run

EPOCH_NS = 1_700_000_000_000_000_000


def step_table(step_ms, *, first=0, start_ns=EPOCH_NS, phase="plain", **columns) -> Table:
    """Steps that follow one another without a gap. `phase` is one for all steps or one per step; `columns` are added."""
    durations = np.rint(np.asarray(step_ms, float) * NS_PER_MS).astype(np.int64)
    ends = start_ns + durations.cumsum()
    phases = [phase] * len(durations) if isinstance(phase, str) else phase
    numbers = np.arange(first, first + len(durations))
    return table({"step": numbers, "start_ns": ends - durations, "dur_ns": durations, "phase": phases} | columns, STEPS)


def meta(ranks=1, *, device="NVIDIA H100", host="node0", **fields) -> RunMeta:
    fields = {"versions": {"torch": "2.13.0", "python": "3.11.7"}, "command": ("python", "train.py")} | fields
    return RunMeta(
        world_size=ranks, ranks=tuple(RankMeta(rank=rank, host=host, device=device) for rank in range(ranks)), **fields
    )


def run(*steps: Table, **fields) -> Run:
    """A Run of one rank for each step table."""
    return Run(
        meta(len(steps), **fields), lambda name, rank: {"steps": steps[rank], "events": table({}, EVENTS)}.get(name)
    )


def write(path: Path, *steps: Table, **fields) -> Path:
    """The same on disk."""
    tables = {("steps", rank): rows for rank, rows in enumerate(steps)}
    tables |= {("events", rank): table({}, EVENTS) for rank in range(len(steps))}
    write_run(path, meta(len(steps), **fields), tables)
    return path
