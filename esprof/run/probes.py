"""What devices, links, codecs and storage can do: the content of `probes.json`, as `esprof probe` measured it."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec

from esprof.core.types import Bytes, Ns, Rank
from esprof.run.curve import Curve

SCHEMA = "esprof.probes/1"

Kind = Literal[
    "collective",
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
    "copy",
    "read",
    "launch",
    "threads",
    "load",
    "save",
]
"""What is timed:

- `collective`: one collective, called at the same time by all ranks of a group;
- `backward`: a backward pass made of matrix products, in the time of which something else may go on;
- `encode`, `decode`: a gradient made into a codec's bytes, and these into a gradient;
- `exchange`: the ranks come to the mean of a gradient by a codec; `begin`: what of that is before the first transfer;
  `coding`: what is between transfers and after them;
- `shards`: each rank comes to its shard of the sum of a gradient that travels as the codec's numbers; `narrow`: what of that
  is before the transfer; `add`: what is after it;
- `matmul`: a product of square matrices; `threads`: one product on so many CPU threads;
- `copy`, `read`: memory of the device copied, and read;
- `launch`: so many tiny kernels, or operations, one after the other;
- `load`, `save`: files read, and written and synced.
"""

Unit = Literal["bytes", "flop", "calls", "threads"]
"""What the sizes of a sweep count. Of a collective the bytes of the larger of its input and its output on a rank."""

_Size = Annotated[int, msgspec.Meta(ge=1)]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats of one measurement at one size."""

    size: _Size
    samples_ns: Annotated[tuple[Annotated[Ns, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)]
    """Each repeat, in the order in which they were made."""
    cpu_ns: Ns | None = None
    """CPU time of a rank's process in one repeat, all its threads together, on the mean; None where that is not known."""
    sent: Bytes | None = None
    """Bytes that a rank sends to others in one repeat; None where they were not counted."""
    vnmse: float | None = None
    """What an exchange of normal numbers loses, as squared error relative to their square; None where that is not known."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing, measured at several sizes."""

    kind: Kind
    name: str
    """Which of its kind: `all_reduce`, `topk:0.01`, `float32`, …"""
    unit: Unit
    ranks: tuple[Rank, ...]
    """The ranks that took part together, ascending; the only one that measured it."""
    device: str
    """Type of the device: `cpu`, `cuda`, …"""
    backend: str | None = None
    """What carries a collective: `gloo`, `nccl`, …"""
    beside: str = ""
    """What went on at the same time: nothing, `itself` (two collectives in flight, timed until both have ended),
    `backward`, or the collective or codec beside a backward pass."""
    concurrency: int = 1
    """How many threads did it at the same time, each its share of the size."""
    points: tuple[Point, ...] = ()
    """By size, ascending."""

    def curve(self) -> Curve:
        """What it takes by size."""
        return Curve.through([(point.size, point.samples_ns) for point in self.points])


class NotMeasured(msgspec.Struct, frozen=True):
    """Something that was not measured, and why not."""

    what: str
    reason: str
    by_budget: bool = False
    """Whether only the time was too short: a longer budget measures more."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What may have made a rank's device slower than it can be, while it was measured. Unknown things are None."""

    rank: Rank
    device: str | None = None
    """Its name."""
    clock_mhz: int | None = None
    clock_most_mhz: int | None = None
    throttled: tuple[str, ...] | None = None
    """Why its clock was held down; empty where it was not."""
    foreign: tuple[int, ...] | None = None
    """Processes of others on the same device, by number."""
    unknown: str | None = None
    """Why nothing of this is known."""


class VariedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of the job itself on one rank, with the command's options as they were given or with one of them changed."""

    rank: Rank
    device: str | None
    setting: str = ""
    """The option that was changed, and its value: `--batch-size 64`; empty for the command as it was given."""
    samples_ns: tuple[Ns, ...]
    """Durations of its steps without the profiler, but for the first, in which jobs do what they do once."""
    parts_ns: dict[str, Ns] = {}
    """How long the training thread was in each part of a mean profiled step: `data` (it waits for a batch), `forward`,
    `backward`, `optimizer`, and `rest`. On a GPU that is when work was launched, not when it was done. Empty where the parts
    are unknown."""
    peak_memory: Bytes | None = None
    """As in `RankMeta`."""


class Probes(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured for one job."""

    schema: str = SCHEMA
    created_ns: Ns
    command: tuple[str, ...] = ()
    world_size: int
    budget_s: float
    took_s: float = 0.0
    whole: bool = False
    """Whether all that was planned was measured, or is named in `left_out`; not where something broke off the probe."""
    stages: tuple[str, ...] = ()
    """Names of the groups of measurements that all ranks have made to their end."""
    sweeps: tuple[Sweep, ...] = ()
    left_out: tuple[NotMeasured, ...] = ()
    conditions: tuple[Condition, ...] = ()
    steps: tuple[VariedStep, ...] = ()

    def find(
        self, kind: Kind, name: str, *, ranks: tuple[Rank, ...] | None = None, beside: str = "", concurrency: int = 1
    ) -> Sweep | None:
        """The sweep of this kind and name with points, on these ranks or on any; None where there is none."""
        wanted = (kind, name, beside, concurrency)
        found = (
            one
            for one in self.sweeps
            if (one.kind, one.name, one.beside, one.concurrency) == wanted and one.points and ranks in (None, one.ranks)
        )
        return next(found, None)


def joined(parts: Sequence[Probes]) -> Probes:
    """What several launchers measured of one job, each of the ranks on its host. `parts` is not empty."""
    first = parts[0]
    return msgspec.structs.replace(
        first,
        took_s=max(part.took_s for part in parts),
        whole=all(part.whole for part in parts),
        stages=tuple(stage for stage in first.stages if all(stage in part.stages for part in parts)),
        sweeps=tuple(put_together(sweep for part in parts for sweep in part.sweeps)),
        left_out=tuple(dict.fromkeys(row for part in parts for row in part.left_out)),
        conditions=tuple(row for part in parts for row in part.conditions),
        steps=tuple(step for part in parts for step in part.steps),
    )


def put_together(sweeps: Iterable[Sweep]) -> list[Sweep]:
    """The sweeps of all ranks, those of a collective that several ranks measured together as one.

    A repeat of a collective took what it took the rank that came to it last: the least of the ranks' times, since the others
    waited in it.
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
    """The same repeats, as several ranks measured them."""
    cpu = [point.cpu_ns for point in points if point.cpu_ns is not None]
    return Point(
        size=points[0].size,
        samples_ns=tuple(map(min, zip(*(point.samples_ns for point in points), strict=False))),
        cpu_ns=max(cpu, default=None),
        sent=points[0].sent,
        vnmse=points[0].vnmse,
    )
