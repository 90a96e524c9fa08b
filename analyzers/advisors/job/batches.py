"""Unequal batches for plain data-parallel training on unlike devices: the slowest rank then takes as long as the others.

The same optimum as for ESTs, with samples in their place. DDP takes the mean of the ranks' gradients as if all had as many
samples: each rank's loss must be weighed by its share, so that the training script changes.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from esprof.analyzers.advisors.job.makespan import Device, fewest_seconds
from esprof.core.errors import EsprofError
from esprof.core.types import NS_PER_S, Rank, us
from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import cpu_work, gpu_work

_MIN_GAIN_IN_ERRORS = 2.0
"""Errors of a prediction that a gain must be worth at least."""

_TERM = "balance"
"""The what-if that is most like this change: what it is known to be off by counts here."""


class RankBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The batch of one rank."""

    rank: Rank
    device: str | None
    samples_now: int
    samples: int
    weight: float
    """By which its mean loss is multiplied before the backward pass: its samples, over the mean of all ranks'."""
    busy_us: float
    """What its computing takes in a step now, without waiting."""


class BatchAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """How many samples each rank should have, at the same number in all."""

    schema: Literal["esprof.advice/1"] = "esprof.advice/1"
    objective: Literal["step-time"] = "step-time"
    value: float
    """Predicted step time, us."""
    low_us: float
    high_us: float
    baselines: dict[str, float]
    gain_pct: float
    error_pct: float
    is_worth_it: bool
    """Whether the gain is at least twice what the prediction may be off."""
    decision: tuple[RankBatch, ...]
    samples_below: int
    """Samples that all ranks together end in any shorter time, by computing: fewer than a step has."""
    warnings: tuple[str, ...] = (
        "this changes the training script: batches by rank, and each rank's loss multiplied by its weight",
        "that a rank's computing grows with its samples is assumed; `esprof probe --vary` measures it",
    )
    not_modelled: tuple[str, ...] = (
        "BatchNorm, whose statistics depend on each rank's batch",
        "memory of larger batches",
    )


def advise_batches(replayed: Replayed) -> BatchAdvice:
    """The batches of the shortest step. Raises EsprofError where the run does not tell how many samples a rank has."""
    pricer, run = replayed.pricer, replayed.run
    if pricer.too_far_off:
        raise EsprofError(pricer.too_far_off, path=run.path)
    samples = [_samples(replayed, rank) for rank in pricer.dfg.marks.ranks]
    busy = [_busy_ns(replayed, rank) for rank in pricer.dfg.marks.ranks]
    if len(samples) < 2 or run.missing_ranks or not all(samples) or not all(busy):
        raise EsprofError(
            "does not tell which EST ran where, nor of all ranks how many samples they had and that they computed",
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
    error, interval = pricer.error.of_terms([_TERM]), pricer.error.interval(price.step_ns, [_TERM])
    predicted = float(price.step_ns.mean())
    gain = 1 - predicted / pricer.step_ns
    return BatchAdvice(
        value=us(predicted),
        low_us=us(interval.low_ns),
        high_us=us(interval.high_ns),
        baselines={"now": us(pricer.step_ns)},
        gain_pct=round(100 * gain, 3),
        error_pct=round(100 * error, 3),
        is_worth_it=gain >= _MIN_GAIN_IN_ERRORS * error,
        decision=tuple(_ranks(replayed, samples, counts, busy)),
        samples_below=found.ests_below,
    )


def _samples(replayed: Replayed, rank: Rank) -> int:
    """Samples of the rank in a steady step, 0 where that is not known or differs."""
    steps = replayed.run.steps(rank)
    mine = steps.ints("samples")[np.isin(steps.ints("step"), replayed.steps.steady)]
    return int(mine[0]) if len(mine) and mine[0] > 0 and (mine == mine[0]).all() else 0


def _computing(replayed: Replayed) -> np.ndarray:
    """Mask of what grows with the batch: the work of GPUs, or of the CPUs where nothing runs on a GPU."""
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
