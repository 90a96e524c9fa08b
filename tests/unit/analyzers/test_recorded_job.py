"""Data that several analyses use is read once from a Run."""

import sys
from collections import Counter

import numpy as np

from esprof.analyzers import summarize
from esprof.core.types import NS_PER_MS, NS_PER_US
from esprof.run.run import Run
from esprof.run.schema import SAMPLES, Table, table
from tests.cases.graph import EPOCH_NS, gloo, op, run_of, step
from tests.cases.step_runs import step_table

STEPS, STEP_MS = 40, 50
RECORDED = range(30, 34)
READ = "train.py(9): main\ndata.py(3): read"


class CountedRun(Run):
    """A Run that counts how often analyzers ask for each table of each rank."""

    def __init__(self, run: Run, samples: Table) -> None:
        super().__init__(run.meta, lambda name, rank: samples if name == "samples" else run._table(name, rank))
        self.read: Counter[tuple[str, int]] = Counter()

    def _count(self, name: str, rank: int) -> None:
        if sys._getframe(2).f_globals["__name__"].startswith("esprof.analyzers."):
            self.read[name, rank] += 1

    def steps(self, rank: int) -> Table:
        self._count("steps", rank)
        return super().steps(rank)

    def samples(self, rank: int) -> Table:
        self._count("samples", rank)
        return super().samples(rank)


def recorded() -> CountedRun:
    """Two ranks of a data-parallel job on CPUs: 40 steps, four of them recorded, with a sample in each step."""
    phases = ["timed" if number in RECORDED else "plain" for number in range(STEPS)]
    took = [STEP_MS * (3 if number % 5 == 4 else 1) for number in range(STEPS)]
    steps = step_table(took, start_ns=EPOCH_NS, phase=phases, loader_wait_ns=[0] * STEPS)
    rows = []
    for number in RECORDED:
        at = int(steps.ints("start_ns")[number] - EPOCH_NS) / NS_PER_US
        rows += [
            step(number, at, at + 50_000),
            op("aten::mm", at, 30_000),
            *gloo(at + 30_000, at + 30_000, at + 44_000),
        ]
    samples = {
        "at_ns": steps.ints("start_ns") + 10 * NS_PER_MS,
        "dur_ns": np.full(STEPS, 8 * NS_PER_MS),
        "cpu_ns": np.zeros(STEPS, np.int64),
        "step": steps.ints("step"),
        "stack": [READ] * STEPS,
    }
    return CountedRun(run_of({0: rows, 1: rows}, steps={0: steps, 1: steps}), table(samples, SAMPLES))


def test_a_report_reads_the_steps_and_the_samples_of_each_rank_once():
    run = recorded()
    report = summarize(run)
    assert report.steps is not None
    assert report.flame is not None
    assert {finding.id for finding in report.diagnosis.findings} >= {"ESP806"}
    assert dict(run.read) == {(name, rank): 1 for name in ("steps", "samples") for rank in (0, 1)}
