"""Measured speed of devices, links, codecs and storage: the content of `probes.json`, which `esprof probe` writes."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec

from esprof.core.types import Bytes, Ns, Rank
from esprof.run.curve import Curve

SCHEMA = "esprof.probes/1"

Kind = Literal[
    "collective",
    "congestion",
    "backward",
    "encode",
    "decode",
    "begin",
    "coding",
    "exchange",
    "shards",
    "narrow",
    "add",
    "matmul",
    "dense",
    "sparse",
    "sparsify",
    "copy",
    "read",
    "launch",
    "threads",
    "load",
    "save",
]
"""Measured operation:

- `collective`: one collective, called at the same time by all ranks of a group;
- `congestion`: a collective over connections with one TCP congestion control, named like `all_reduce:bbr`;
- `backward`: a backward pass of matrix products, possibly concurrent with another operation;
- `encode`, `decode`: conversion of a gradient into the bytes of a codec, and back;
- `exchange`: computing the mean gradient of the ranks with a codec; `begin`: its time before the first collective;
  `coding`: its time between and after collectives;
- `shards`: computing each rank's shard of the summed gradient, sent in the codec's format; `narrow`: its time before the
  collective; `add`: its time after it;
- `dense`, `sparse`: a product with the weight of a linear layer, dense and with two of each four neighbours zero (2:4),
  named like `bfloat16 4096x1024`; `sparsify`: choosing the zeros and packing the weight;
- `matmul`: a product of square matrices; `threads`: one product on a number of CPU threads;
- `copy`, `read`: copying and reading device memory;
- `launch`: a sequence of tiny kernels, or of operations;
- `load`, `save`: reading files, and writing and syncing them.
"""

Unit = Literal["bytes", "flop", "calls", "threads"]
"""Unit of the sizes of a sweep. For a collective, size is the larger of its input and output on a rank, bytes."""

_Size = Annotated[int, msgspec.Meta(ge=1)]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats of one measurement at one size."""

    size: _Size
    samples_ns: Annotated[tuple[Annotated[Ns, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)]
    """Duration of each repeat, in order of time."""
    cpu_ns: Ns | None = None
    """Mean CPU time of a rank's process per repeat, over all threads; None if unknown."""
    sent: Bytes | None = None
    """Bytes that a rank sends per repeat; None if they were not counted."""
    vnmse: float | None = None
    """Squared error of an exchange of normal random numbers, relative to their square; None if unknown."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """One operation, measured at several sizes."""

    kind: Kind
    name: str
    """Variant of the kind: `all_reduce`, `topk:0.01`, `float32`, …"""
    unit: Unit
    ranks: tuple[Rank, ...]
    """The ranks that measured it together, ascending, or the only rank."""
    device: str
    """Type of the device: `cpu`, `cuda`, …"""
    backend: str | None = None
    """Backend of a collective: `gloo`, `nccl`, …"""
    beside: str = ""
    """Concurrent operation: none (empty), `itself` (two collectives in flight, timed until both end), `backward`, or the
    collective or codec that ran during a backward pass."""
    concurrency: int = 1
    """Number of threads that each handle an equal share of the size."""
    points: tuple[Point, ...] = ()
    """By size, ascending."""

    def curve(self) -> Curve:
        """Return duration by size."""
        return Curve.through([(point.size, point.samples_ns) for point in self.points])


class NotMeasured(msgspec.Struct, frozen=True):
    """A measurement that was skipped, and the reason."""

    what: str
    reason: str
    by_budget: bool = False
    """Whether the time budget was too short."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of a rank's device and host during the measurements. Unknown values are None."""

    rank: Rank
    device: str | None = None
    """Name of the device."""
    clock_mhz: int | None = None
    clock_most_mhz: int | None = None
    throttled: tuple[str, ...] | None = None
    """Reasons why its clock was throttled; empty if it was not."""
    foreign: tuple[int, ...] | None = None
    """Ids of other processes on the same device."""
    congestion: str | None = None
    """TCP congestion control of new connections of the rank's host."""
    unknown: str | None = None
    """Reason why the conditions are unknown."""


class VariedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of the job on one rank, with the options of its command unchanged or with one changed."""

    rank: Rank
    device: str | None
    setting: str = ""
    """The changed option and its value: `--batch-size 64`; empty for the unchanged command."""
    samples_ns: tuple[Ns, ...]
    """Durations of its steps without the profiler, except the first, which includes one-time work."""
    parts_ns: dict[str, Ns] = {}
    """Time of the training thread in each phase of a mean profiled step: `data` (waiting for a batch), `forward`,
    `backward`, `optimizer`, and `rest`. On a GPU this is the time of launching work, not of executing it. Empty if
    unknown."""
    peak_memory: Bytes | None = None
    """Peak memory, as `RankMeta.peak_memory`."""


class Probes(msgspec.Struct, frozen=True, kw_only=True):
    """All measurements for one job."""

    schema: str = SCHEMA
    created_ns: Ns
    command: tuple[str, ...] = ()
    world_size: int
    budget_s: float
    took_s: float = 0.0
    whole: bool = False
    """Whether the probe ran to its end: each planned measurement was made or is in `left_out`."""
    stages: tuple[str, ...] = ()
    """Names of the measurement stages that all ranks completed."""
    sweeps: tuple[Sweep, ...] = ()
    left_out: tuple[NotMeasured, ...] = ()
    conditions: tuple[Condition, ...] = ()
    steps: tuple[VariedStep, ...] = ()

    def find(
        self, kind: Kind, name: str, *, ranks: tuple[Rank, ...] | None = None, beside: str = "", concurrency: int = 1
    ) -> Sweep | None:
        """Return the sweep of this kind and name with points, on `ranks` or on any; None if there is none."""
        wanted = (kind, name, beside, concurrency)
        found = (
            one
            for one in self.sweeps
            if (one.kind, one.name, one.beside, one.concurrency) == wanted and one.points and ranks in (None, one.ranks)
        )
        return next(found, None)


def joined(probes: Sequence[Probes]) -> Probes:
    """Join the measurements of one job from several hosts. `probes` must not be empty."""
    first = probes[0]
    return msgspec.structs.replace(
        first,
        took_s=max(one.took_s for one in probes),
        whole=all(one.whole for one in probes),
        stages=tuple(stage for stage in first.stages if all(stage in one.stages for one in probes)),
        sweeps=tuple(put_together(sweep for one in probes for sweep in one.sweeps)),
        left_out=tuple(dict.fromkeys(row for one in probes for row in one.left_out)),
        conditions=tuple(row for one in probes for row in one.conditions),
        steps=tuple(step for one in probes for step in one.steps),
    )


def put_together(sweeps: Iterable[Sweep]) -> list[Sweep]:
    """Return the sweeps of all ranks, with one sweep for a collective that several ranks measured together.

    The duration of a collective is that of the rank that arrived last: the shortest one, since the others waited.
    """
    found: dict[Sweep, list[Sweep]] = {}
    for sweep in sweeps:
        found.setdefault(msgspec.structs.replace(sweep, points=()), []).append(sweep)
    return [_as_one(mine) if len(mine) > 1 else mine[0] for mine in found.values()]


def _as_one(sweeps: Sequence[Sweep]) -> Sweep:
    points: dict[int, list[Point]] = {}
    for point in (point for sweep in sweeps for point in sweep.points):
        points.setdefault(point.size, []).append(point)
    return msgspec.structs.replace(sweeps[0], points=tuple(_at_once(points[size]) for size in sorted(points)))


def _at_once(points: Sequence[Point]) -> Point:
    """Combine the same repeats, measured by several ranks."""
    cpu = [point.cpu_ns for point in points if point.cpu_ns is not None]
    return Point(
        size=points[0].size,
        samples_ns=tuple(map(min, zip(*(point.samples_ns for point in points), strict=False))),
        cpu_ns=max(cpu, default=None),
        sent=points[0].sent,
        vnmse=points[0].vnmse,
    )
