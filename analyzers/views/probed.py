"""Summary of a probe: figures of a job's devices, links, codecs and storage."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec
import numpy as np

from esprof.analyzers.views.device_peaks import Precision, peak_of
from esprof.core.types import Bytes, Rank, us
from esprof.replay.whatif.communication.links import bus_factor
from esprof.run.probes import Condition, NotMeasured, Probes, Sweep

SCHEMA = "esprof.probe/1"

POOR_LINE_PCT = 15.0
"""Worst error of the α–β line from which on only the curve should be used."""

_PRECISIONS: dict[str, Precision] = {"float32": "float32", "bfloat16": "16 bits", "float16": "16 bits"}


class PointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats at one size: the median and the quartiles."""

    size: int
    median_us: float
    low_us: float
    high_us: float
    samples: int


class LineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The α–β line through a curve, with the least relative errors."""

    alpha_us: float
    us_per_mib: float
    """Time of a MiB in addition to `alpha_us`; for sizes that are not bytes, of 2²⁰ units."""
    worst_pct: float
    """Its worst error at a measured size. Above some 15 % only the curve should be used."""


class CurveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One sweep; its fields are those of `esprof.run.probes.Sweep`."""

    kind: str
    name: str
    unit: str
    ranks: tuple[Rank, ...]
    device: str
    backend: str | None
    beside: str
    concurrency: int
    points: tuple[PointSummary, ...]
    line: LineSummary
    rate: float
    """At the largest size: bytes, operations, or calls per second; for threads, the speedup over one thread."""
    bus_bytes_per_s: float | None
    """Bus bandwidth of a collective at its largest size (`links.bus_factor`)."""
    peak_pct: float | None
    """Rate of matrix products in per cent of the device's data sheet; None if unknown."""


class OverlapSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Slowdown of an operation and of a backward pass that run concurrently."""

    what: str
    """`all_reduce`, `encode fp16`, …"""
    rank: Rank
    size: Bytes
    longer_pct: float | None
    """Slowdown of the operation over running alone; None if that was not measured at this size."""
    pass_longer_pct: float
    """Slowdown of the backward pass."""
    lost_us_per_mib: float | None
    """Additional time of concurrent CPU work for each MiB that is sent or encoded."""


class TwoAtOnce(msgspec.Struct, frozen=True, kw_only=True):
    """Time of two concurrent collectives relative to one: 1 is full overlap, 2 is no overlap."""

    name: str
    size: Bytes
    times_one: float


class StepSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The job's own step on one rank: see `esprof.run.probes.Step`."""

    rank: Rank
    device: str | None
    setting: str
    median_us: float
    low_us: float
    high_us: float
    steps: int
    parts_us: dict[str, float]
    peak_memory: Bytes | None


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements. A curve belongs to a single rank, or to the ranks of a collective."""

    schema: str = SCHEMA
    command: tuple[str, ...]
    world_size: int
    took_s: float
    whole: bool
    steps: tuple[StepSummary, ...]
    curves: tuple[CurveSummary, ...]
    beside: tuple[OverlapSummary, ...]
    two_at_once: tuple[TwoAtOnce, ...]
    conditions: tuple[Condition, ...]
    left_out: tuple[NotMeasured, ...]


def probed(probes: Probes) -> Probed:
    """Summarize the measurements of a probe."""
    names = {one.rank: one.device for one in probes.conditions}
    with_points = [sweep for sweep in probes.sweeps if sweep.points]
    return Probed(
        command=probes.command,
        world_size=probes.world_size,
        took_s=probes.took_s,
        whole=probes.whole,
        steps=tuple(
            StepSummary(
                rank=step.rank,
                device=step.device,
                setting=step.setting,
                **_quartiles(step.samples_ns),
                steps=len(step.samples_ns),
                parts_us={part: us(took) for part, took in step.parts_ns.items()},
                peak_memory=step.peak_memory,
            )
            for step in probes.steps
        ),
        curves=tuple(_curve(sweep, names.get(sweep.ranks[0])) for sweep in with_points if _stands_alone(sweep)),
        beside=tuple(_overlaps(with_points)),
        two_at_once=tuple(_two_at_once(with_points)),
        conditions=probes.conditions,
        left_out=tuple(dict.fromkeys(probes.left_out)),
    )


def _stands_alone(sweep: Sweep) -> bool:
    """Whether the sweep is a curve of its own. Backward passes are measured at the sizes of the concurrent operation."""
    return sweep.kind != "backward" and sweep.beside in ("", "itself")


def _curve(sweep: Sweep, device: str | None) -> CurveSummary:
    curve = sweep.curve()
    line, largest, took_ns = curve.line(), int(curve.sizes[-1]), float(curve.median_ns[-1])
    rate = largest / took_ns * 1e9
    if sweep.unit == "threads":
        rate = float(curve.median_ns[0] / took_ns)
    return CurveSummary(
        **{name: getattr(sweep, name) for name in Sweep.__struct_fields__ if name != "points"},
        points=tuple(
            PointSummary(size=point.size, **_quartiles(point.samples_ns), samples=len(point.samples_ns))
            for point in sweep.points
        ),
        line=LineSummary(
            alpha_us=us(line.alpha_ns), us_per_mib=us(line.beta_ns * (1 << 20)), worst_pct=round(100 * line.residual, 1)
        ),
        rate=rate,
        bus_bytes_per_s=_bus_rate(sweep, rate) if sweep.kind == "collective" else None,
        peak_pct=_peak_pct(sweep, device, rate),
    )


def _bus_rate(sweep: Sweep, rate: float) -> float | None:
    factor = bus_factor(sweep.name, len(sweep.ranks))
    return None if factor is None else rate * factor


def _peak_pct(sweep: Sweep, device: str | None, rate: float) -> float | None:
    peak = peak_of(device) if sweep.kind == "matmul" and sweep.device != "cpu" else None
    precision = _PRECISIONS.get(sweep.name)
    if peak is None or precision not in peak.rates:
        return None
    return round(100 * rate / (1e12 * peak.rates[precision]), 1)


def _quartiles(samples_ns: tuple[int, ...]) -> dict[str, float]:
    low, median, high = np.quantile(samples_ns, (0.25, 0.5, 0.75)).tolist()
    return {"median_us": us(median), "low_us": us(low), "high_us": us(high)}


def _overlaps(sweeps: list[Sweep]) -> Iterator[OverlapSummary]:
    for passes in sweeps:
        if passes.kind == "backward" and passes.beside:
            yield from _overlaps_of(passes, sweeps)


def _overlaps_of(passes: Sweep, sweeps: list[Sweep]) -> Iterator[OverlapSummary]:
    """Summaries of the operation that ran concurrently with these backward passes of one rank."""
    (rank,), what = passes.ranks, passes.beside
    kind, _, name = what.rpartition(" ")
    mine = [one for one in sweeps if (one.kind, one.name) == (kind or "collective", name) and rank in one.ranks]
    alone = next((one.curve() for one in mine if not one.beside), None)
    took = {
        point.size: float(np.median(point.samples_ns))
        for one in mine
        if one.beside == "backward"
        for point in one.points
    }
    for point in passes.points:
        longer = float(np.median(point.samples_ns)) / _pass_ns(sweeps, rank, point.size)
        concurrent_ns = took.get(point.size)
        usual = alone.at(point.size) if alone is not None and alone.holds(point.size) else None
        yield OverlapSummary(
            what=what,
            rank=rank,
            size=point.size,
            longer_pct=round(100 * (concurrent_ns / usual - 1), 1) if concurrent_ns and usual else None,
            pass_longer_pct=round(100 * (longer - 1), 1),
            lost_us_per_mib=us(max(0.0, concurrent_ns * (1 - 1 / longer)) / point.size * (1 << 20))
            if concurrent_ns
            else None,
        )


def _pass_ns(sweeps: list[Sweep], rank: Rank, size: Bytes) -> float:
    """Duration of a backward pass alone, ns: interleaved with the concurrent passes of this size, else of all sizes."""
    alone = [one for one in sweeps if one.kind == "backward" and one.ranks == (rank,) and not one.beside]
    interleaved = [point for one in alone if one.unit == "bytes" for point in one.points if point.size == size]
    points = interleaved or [point for one in alone for point in one.points]
    return float(np.median([sample for point in points for sample in point.samples_ns]))


def _two_at_once(sweeps: list[Sweep]) -> Iterator[TwoAtOnce]:
    singles: dict[tuple[str, tuple[Rank, ...]], Sweep] = {}
    pairs = defaultdict[str, list[Sweep]](list)
    for sweep in sweeps:
        if sweep.kind == "collective" and not sweep.beside:
            singles[sweep.name, sweep.ranks] = sweep
        elif sweep.beside == "itself":
            pairs[sweep.name].append(sweep)
    for name, found in pairs.items():
        for pair in found:
            single = singles.get((name, pair.ranks))
            sizes = [point.size for point in pair.points if single is not None and single.curve().holds(point.size)]
            if single is not None and sizes:
                at = max(sizes)
                yield TwoAtOnce(name=name, size=at, times_one=round(pair.curve().at(at) / single.curve().at(at), 2))
