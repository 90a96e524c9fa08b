"""Memory use of a run: each rank's peaks, and use over time."""

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from esprof.core.types import NS_PER_S, Bytes, Rank
from esprof.run.run import RankMeta, Run

MAX_CURVES = 8
MAX_POINTS_OF_A_CURVE = 200


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Peak memory of one rank, overall and in each phase of its steps; None where unknown."""

    rank: Rank
    of: Literal["cuda", "rss"]
    """`cuda`: bytes allocated by CUDA's caching allocator. `rss`: resident set of the process."""
    peak: Bytes
    limit: Bytes | None
    reached: str | None = None
    """Phase and step of the peak."""
    forward: Bytes | None = None
    backward: Bytes | None = None
    optimizer: Bytes | None = None


class MemoryCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one rank over time; each point is the maximum of a short interval."""

    rank: Rank
    at_s: tuple[float, ...]
    """Seconds since the first sample of any rank."""
    used: tuple[Bytes, ...]
    reserved: tuple[Bytes, ...]
    """Bytes that CUDA's allocator has reserved on the device; empty without CUDA."""


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled memory use: peaks of every rank, and curves of the few ranks with the highest peaks."""

    ranks: tuple[RankMemory, ...]
    curves: tuple[MemoryCurve, ...]
    samples: int


@dataclass(frozen=True)
class _MemorySamples:
    """Samples of one rank by time. `used` is the known maximum since the previous sample."""

    of: Literal["cuda", "rss"]
    at_ns: np.ndarray
    used: np.ndarray
    reserved: np.ndarray
    """-1 where unknown."""
    step: np.ndarray
    phase: list[str | None]


def memory_use(run: Run) -> MemoryUse | None:
    """Memory use for the report; None if memory was not sampled."""
    samples = {rank: of_rank for rank in run.ranks if (of_rank := _samples(run, rank)) is not None}
    if not samples:
        return None
    ranks = [peaks for rank in samples if (peaks := rank_memory(run, run.rank(rank))) is not None]
    fullest = sorted(ranks, key=lambda rank: (-rank.peak, rank.rank))[:MAX_CURVES]
    begin = min(int(of_rank.at_ns[0]) for of_rank in samples.values())
    curves = tuple(_curve(rank.rank, samples[rank.rank], begin) for rank in sorted(fullest, key=lambda one: one.rank))
    return MemoryUse(ranks=tuple(ranks), curves=curves, samples=sum(len(one.at_ns) for one in samples.values()))


def rank_memory(run: Run, meta: RankMeta) -> RankMemory | None:
    """Peaks of one rank, from its samples and from the peak it noted at its end; None if it has neither."""
    samples = _samples(run, meta.rank)
    if samples is None:
        if meta.peak_memory is None or meta.peak_memory_of is None:
            return None
        of: Literal["cuda", "rss"] = "cuda" if meta.peak_memory_of == "cuda" else "rss"
        return RankMemory(rank=meta.rank, of=of, peak=meta.peak_memory, limit=meta.memory_limit)
    top = int(samples.used.argmax())
    noted = meta.peak_memory if meta.peak_memory_of == samples.of else None
    return RankMemory(
        rank=meta.rank,
        of=samples.of,
        peak=max(int(samples.used[top]), noted or 0),
        limit=meta.memory_limit,
        reached=_moment(samples, top) if top else None,
        **{phase: _peak_in(samples, phase) for phase in ("forward", "backward", "optimizer")},
    )


def _samples(run: Run, rank: Rank) -> _MemorySamples | None:
    table = run.memory(rank)
    if not len(table):
        return None
    allocated, reserved, peak = (table.ints(column) for column in ("allocated", "reserved", "peak_allocated"))
    is_cuda = bool((allocated >= 0).any())
    # The allocator's peak covers the whole job: if it has risen, it was reached since the previous sample.
    moved = np.diff(peak, prepend=-1) != 0
    return _MemorySamples(
        of="cuda" if is_cuda else "rss",
        at_ns=table.ints("at_ns"),
        used=np.where(moved, np.maximum(peak, allocated), allocated) if is_cuda else table.ints("rss"),
        reserved=reserved,
        step=table.ints("step"),
        phase=table.texts("phase"),
    )


def _moment(samples: _MemorySamples, sample: int) -> str:
    phase = samples.phase[sample]
    return f"{phase} of step {samples.step[sample]}" if phase else f"step {samples.step[sample]}"


def _peak_in(samples: _MemorySamples, phase: str) -> Bytes | None:
    inside = np.array([of == phase for of in samples.phase], bool)
    return int(samples.used[inside].max()) if inside.any() else None


def _curve(rank: Rank, samples: _MemorySamples, begin: int) -> MemoryCurve:
    """At most `MAX_POINTS_OF_A_CURVE` points, each the maximum of its interval."""
    span = int(samples.at_ns[-1] - samples.at_ns[0]) + 1
    stretch = (samples.at_ns - samples.at_ns[0]) * MAX_POINTS_OF_A_CURVE // span
    first = np.flatnonzero(np.diff(stretch, prepend=-1))
    return MemoryCurve(
        rank=rank,
        at_s=tuple(((samples.at_ns[first] - begin) / NS_PER_S).round(3).tolist()),
        used=tuple(np.maximum.reduceat(samples.used, first).tolist()),
        reserved=tuple(np.maximum.reduceat(samples.reserved, first).tolist()) if samples.of == "cuda" else (),
    )
