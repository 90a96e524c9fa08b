"""Unequal batches for plain data-parallel training on unequal devices, so that all ranks take the same time.

The optimum is that of ESTs, with samples in place of ESTs. DDP averages the ranks' gradients as if all had the same number
of samples: the training script must weight each rank's loss by its share.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from esprof.analyzers.advisors.job.makespan import Device, fewest_seconds
from esprof.analyzers.advisors.step_advice import MIN_GAIN_IN_ERRORS, StepAdvice
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.errors import EsprofError
from esprof.core.types import NS_PER_S, Rank, us
from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import cpu_work, gpu_work

_TERM = "balance"
"""The what-if term most similar to this change: its known error applies."""


class RankBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The batch of one rank."""

    rank: Rank
    device: str | None
    samples_now: int
    samples: int
    weight: float
    """Factor of the rank's mean loss before the backward pass: its samples divided by the ranks' mean."""
    busy_us: float
    """Time of its computation in a present step, without waiting, us."""


class BatchAdvice(StepAdvice, frozen=True, kw_only=True):
    """Number of samples that each rank should have; their total stays the same."""

    schema: Literal["esprof.advice/1"] = "esprof.advice/1"
    objective: Literal["step-time"] = "step-time"
    is_worth_it: bool
    """Whether the gain is at least twice the prediction's error."""
    decision: tuple[RankBatch, ...]
    samples_below: int
    """Samples that all ranks together compute in any shorter time: fewer than a step has."""
    warnings: tuple[str, ...] = (
        "the training script must change: batches differ by rank, and each rank's loss is multiplied by its weight",
        "the time of computation is assumed to be proportional to the samples; `esprof probe --vary` measures it",
    )
    not_modelled: tuple[str, ...] = (
        "BatchNorm, whose statistics depend on each rank's batch",
        "the memory of larger batches",
    )


def advise_batches(replayed: Replayed, job: JobSteps) -> BatchAdvice:
    """The batches of the shortest step of a `job`. Raises EsprofError if a rank's number of samples is unknown."""
    pricer, run = replayed.pricer, replayed.run
    if pricer.too_far_off:
        raise EsprofError(pricer.too_far_off, path=run.path)
    samples = [_samples(job, replayed.steps.steady, rank) for rank in pricer.dfg.marks.ranks]
    busy = [_busy_ns(replayed, rank) for rank in pricer.dfg.marks.ranks] if all(samples) else []
    if len(samples) < 2 or run.missing_ranks or not all(samples) or not all(busy):
        raise EsprofError(
            "records neither the assignment of ESTs nor the number of samples and the computation of every rank",
            path=run.path,
            remedy="Record a job whose ranks load batches, or one of ElasticTrainer(telemetry=RUN).",
        )
    devices = [
        Device(f"rank {rank}", run.rank(rank).device or "", time / count / NS_PER_S, time / count / NS_PER_S)
        for rank, count, time in zip(pricer.dfg.marks.ranks, samples, busy, strict=True)
    ]
    found = fewest_seconds(devices, sum(samples))
    counts = found.ests if min(found.ests) > 0 else tuple(samples)
    dfg = pricer.dfg
    for rank, before, after in zip(dfg.marks.ranks, samples, counts, strict=True):
        dfg = edits.scale(dfg, _computing(replayed) & (dfg.rank == rank), before / after)
    price = pricer.price_edited(dfg)
    error, interval = pricer.error.of_terms([_TERM]), pricer.interval(price, [_TERM])
    predicted = float(price.step_ns.mean())
    gain = 1 - predicted / pricer.step_ns
    return BatchAdvice(
        value=us(predicted),
        low_us=us(interval.low_ns),
        high_us=us(interval.high_ns),
        baselines={"now": us(pricer.step_ns)},
        gain_pct=round(100 * gain, 3),
        error_pct=round(100 * error, 3),
        is_worth_it=gain >= MIN_GAIN_IN_ERRORS * error,
        decision=tuple(_ranks(replayed, samples, counts, busy)),
        samples_below=found.ests_below,
    )


def _samples(job: JobSteps, steady: Sequence[int], rank: Rank) -> int:
    """Samples of the rank in a steady-state step; 0 if unknown, or if steps differ."""
    steps = job.table(rank)
    mine = steps.ints("samples")[np.isin(steps.ints("step"), steady)]
    return int(mine[0]) if len(mine) and mine[0] > 0 and (mine == mine[0]).all() else 0


def _computing(replayed: Replayed) -> np.ndarray:
    """Mask of the nodes that grow with the batch: GPU work, or CPU work if the job uses no GPU, bool[nodes]."""
    dfg = replayed.pricer.dfg
    if dfg.has_gpu():
        return gpu_work(dfg)
    mask: np.ndarray = cpu_work(dfg) & dfg.on(LaneKind.CPU) & dfg.of(Cls.COMPUTE, Cls.CPU)
    return mask


def _busy_ns(replayed: Replayed, rank: Rank) -> float:
    dfg, steps = replayed.pricer.dfg, replayed.pricer.steps
    nodes = _computing(replayed) & (dfg.rank == rank) & np.isin(dfg.step, steps)
    return float(dfg.dur_ns[nodes].sum()) / len(steps)


def _ranks(
    replayed: Replayed, before: Sequence[int], after: Sequence[int], busy: Sequence[float]
) -> Sequence[RankBatch]:
    mean = sum(after) / len(after)
    return [
        RankBatch(
            rank=rank,
            device=replayed.run.rank(rank).device,
            samples_now=before[at],
            samples=after[at],
            weight=round(after[at] / mean, 6),
            busy_us=us(busy[at]),
        )
        for at, rank in enumerate(replayed.pricer.dfg.marks.ranks)
    ]
