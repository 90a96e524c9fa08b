"""Runs for exports, by hand."""

from esprof.analyzers.tracks.content import Exported
from esprof.replay.replayed import Replayed
from esprof.run.run import Run
from esprof.run.schema import MEMORY, table
from tests.cases.graph import (
    EPOCH_NS,
    gloo,
    op,
    run_of,
    step,
)

MS = 1_000.0


def cpu_rank(late_ms: float) -> list:
    """Six steps of 50 ms: 10 ms of forward, `late_ms` of nothing recorded, 20 ms of backward, all-reduce, optimizer."""
    rows = []
    for number in range(6):
        begin = number * 50 * MS
        arrive = begin + (30 + late_ms) * MS
        rows += [
            step(number, begin, begin + 50 * MS),
            op("secret::forward", begin, 10 * MS),
            op("secret::inner", begin + MS, 2 * MS),
            op("autograd::engine::evaluate_function: AddmmBackward0", begin + (10 + late_ms) * MS, 20 * MS),
            *gloo(arrive - 5, arrive, begin + 44 * MS),
            op("Optimizer.step#secret_sgd", begin + 45 * MS, 5 * MS),
        ]
    return rows


def cpu_run() -> Run:
    """Two ranks on one host; rank 1 arrives 10 ms later at each all-reduce. Both have samples of memory."""
    run = run_of({0: cpu_rank(0), 1: cpu_rank(10)}, hosts={0: "secret-host", 1: "secret-host"})
    samples = {"at_ns": [EPOCH_NS + round(ms * 1e6) for ms in (-5, 10, 60)], "step": [0, 0, 1], "rss": [1, 2000, 3000]}
    tables = {"events": run.events, "steps": run.steps, "stages": run.stages}

    def read(name, rank):
        return table(samples, MEMORY) if name == "memory" else tables[name](rank) if name in tables else None

    return Run(run.meta, read)


def exported(run: Run, *scenarios: str, **options) -> Exported:
    return Exported.of(Replayed.of(run), scenarios, **options)
