"""Small jobs made by hand, in pairs of which one has a planted change: steps with noise, most of them without profiler."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from esprof.run.run import Run
from tests.cases.graph import EPOCH_NS, Row, gloo, load_call, op, run_of, step
from tests.cases.step_runs import step_table

MS = 1000.0
FORWARD, BACKWARD, OPTIMIZER = "aten::linear", "autograd::engine::evaluate_function: AddmmBackward0", "Optimizer.step"


@dataclass(frozen=True)
class Made:
    """A job of two ranks, in ms: input, forward, code of its own, backward, all-reduces after it, optimizer."""

    forward: float = 20
    extra: float = 0
    """An operation that no other job has."""
    code: float = 1
    """Code between forward and backward pass."""
    buckets: int = 4
    bucket: float = 2
    """Each all-reduce."""
    wait: float = 0
    """For input, on both ranks."""
    slow: float = 0
    """Longer forward of rank 1."""
    pace: float = 1
    """Factor of the duration of every operation."""
    ready: float = 0
    """Of each step in which a rank waits for a CPU."""
    save: float = 0
    """Longer every eighth step."""
    plain: int = 60
    timed: int = 8
    noise: float = 0.01
    seed: int = 0

    def but(self, **changed: float) -> "Made":
        """The same with a change, and with other noise."""
        return replace(self, **({"seed": self.seed + 1} | changed))


def made(job: Made) -> Run:
    """The Run: plain steps first, then a window."""
    rng = np.random.default_rng(job.seed)
    rows: dict[int, list[Row]] = {0: [], 1: []}
    ends: dict[int, list[float]] = {0: [0.0], 1: [0.0]}
    for number in range(job.plain + job.timed):
        added = _step(job, number, [ends[rank][-1] for rank in rows], rng)
        for rank, (of_step, end) in enumerate(added):
            if number >= job.plain:
                rows[rank] += [step(number, ends[rank][-1], end), *of_step]
            ends[rank].append(end)
    phases = ["plain"] * job.plain + ["timed"] * job.timed
    waits, ready = ([round(ms * 1_000_000)] * len(phases) for ms in (job.wait, job.ready))
    steps = {
        rank: step_table(np.diff(end) / MS, start_ns=EPOCH_NS, phase=phases, loader_wait_ns=waits, ready_ns=ready)
        for rank, end in ends.items()
    }
    return run_of(rows, steps=steps, stacks=_stacks(job))


def _step(job: Made, number: int, begin: Sequence[float], rng: np.random.Generator) -> list[tuple[list[Row], float]]:
    """(rows, end) of one step of each rank, µs."""
    found, arrived = [], []
    for rank, now in enumerate(begin):
        rows: list[Row] = []
        now += 5

        def work(name: str, ms: float, rows: list[Row] = rows) -> None:
            nonlocal now
            took = job.pace * ms * MS * (1 + job.noise * rng.standard_normal())
            rows.append(op(name, now, took))
            now += took

        if job.wait:
            rows.append(load_call(now, now + job.wait * MS, worker=False))
            now += job.wait * MS
        work(FORWARD, job.forward + rank * job.slow)
        if job.extra:
            work("aten::sort", job.extra)
        now += job.code * MS
        if number % 8 == 7:
            now += job.save * MS
        work(BACKWARD, 20)
        found.append(rows)
        arrived.append(now + 10)
    # Each rank waits for the last one within its first all-reduce.
    starts = [moment + 150 for moment in arrived]
    for bucket in range(job.buckets):
        end = max(starts) + job.bucket * MS * (1 + job.noise * rng.standard_normal())
        for rank, rows in enumerate(found):
            rows += gloo(arrived[rank] + 10 * bucket, starts[rank], end)
        starts = [end + 5] * len(starts)
    ended = []
    for rows in found:
        took = job.pace * 5 * MS * (1 + job.noise * rng.standard_normal())
        rows.append(op(OPTIMIZER, starts[0], took))
        ended.append((rows, starts[0] + took))
    return ended


def _stacks(job: Made) -> dict[int, list[dict]]:
    """The code between forward and backward pass, as sampled in a window with stacks."""
    before = "aten::sort" if job.extra else FORWARD
    row = {"before": before, "after": BACKWARD, "frame": "train.py(12): augment", "call": None}
    return {rank: [row | {"dur_ns": round(job.code * 1_000_000), "cpu_ns": 0}] for rank in (0, 1)}
