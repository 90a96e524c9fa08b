"""Runs made by hand of jobs that save."""

import numpy as np

from esprof.core.types import NS_PER_MS
from esprof.run.run import Run
from esprof.run.schema import EVENTS, STAGES, table
from tests.cases.step_runs import meta, step_table


def job_that_saves(
    *,
    steps=80,
    every=10,
    usual_ms=100.0,
    stops_ms=50.0,
    calls_ms=None,
    writes_ms=0.0,
    slows_ms=0.0,
    name="torch.save",
    world=1,
) -> Run:
    """Every `every`-th step takes `stops_ms` longer, of which `calls_ms`, or all, are in a save of rank 0.

    If `writes_ms` is given, the save is durable so long after the step's begin, and whole steps until then take `slows_ms`
    longer.
    """
    took = usual_ms + np.random.default_rng(0).normal(0, 0.5, steps)
    numbers = np.arange(1, steps + 1)
    saves = numbers % every == 0
    since_save = numbers % every
    beside = (numbers > every) & (since_save > 0) & ((since_save + 1) * usual_ms <= writes_ms)
    took += np.where(saves, stops_ms, 0.0) + np.where(beside, slows_ms, 0.0)
    tables = [step_table(took, first=1) for _ in range(world)]
    begin = tables[0].ints("start_ns")[saves]
    calls_ns = round((stops_ms if calls_ms is None else calls_ms) * NS_PER_MS)
    rows = [("stage", start, start + calls_ns) for start in begin.tolist()]
    if writes_ms:
        rows += [("background", start, start + round(writes_ms * NS_PER_MS)) for start in begin.tolist()]
    columns = dict(zip(("kind", "start_ns", "end_ns"), zip(*rows, strict=True), strict=True)) if rows else {}
    stages = table({"name": [name] * len(rows), "pid": [7] * len(rows), **columns}, STAGES)

    def read(what, rank):
        found = {"steps": tables[rank], "stages": stages if rank == 0 else None, "events": table({}, EVENTS)}
        return found.get(what)

    return Run(meta(world), read)
