"""Convert the measurements that the ranks wrote to `raw` (`esprof.recorder.probes`) into `Probes`."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from esprof.core.disk import read_regular
from esprof.run.probes import Condition, NotMeasured, Point, Probes, Sweep, put_together
from esprof.run.raw import names
from esprof.run.raw.settings import Settings
from esprof.run.reading import memory_limit


class _PointRow(Point, frozen=True, kw_only=True):
    kind: str
    name: str
    unit: str
    ranks: tuple[int, ...]
    device: str
    backend: str | None
    beside: str
    concurrency: int


class _ProbeRow(msgspec.Struct, frozen=True):
    kind: str
    content: msgspec.Raw = msgspec.field(name="is")


class _StageRow(msgspec.Struct, frozen=True):
    name: str


class _EndRow(msgspec.Struct, frozen=True):
    took_s: float
    whole: bool


_ROWS = msgspec.json.Decoder(_ProbeRow)
_POINTS = msgspec.json.Decoder(_PointRow)
_STAGES = msgspec.json.Decoder(_StageRow)
_ENDS = msgspec.json.Decoder(_EndRow)
_LEFT_OUT = msgspec.json.Decoder(NotMeasured)
_CONDITIONS = msgspec.json.Decoder(Condition)


class _OfRank:
    """The measurements of one rank."""

    def __init__(self, path: Path) -> None:
        self.points: list[_PointRow] = []
        self.stages: list[str] = []
        self.left_out: list[NotMeasured] = []
        self.conditions: list[Condition] = []
        self.end = _EndRow(0.0, False)
        content = b""
        with suppress(OSError):
            content = read_regular(path, memory_limit())
        for line in content.splitlines():
            try:
                self._add(_ROWS.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue  # An incomplete line of a killed process.

    def _add(self, row: _ProbeRow) -> None:
        match row.kind:
            case "point":
                self.points.append(_POINTS.decode(row.content))
            case "stage":
                self.stages.append(_STAGES.decode(row.content).name)
            case "left-out":
                self.left_out.append(_LEFT_OUT.decode(row.content))
            case "condition":
                self.conditions.append(_CONDITIONS.decode(row.content))
            case "end":
                self.end = _ENDS.decode(row.content)

    def sweeps(self) -> list[Sweep]:
        found: dict[Sweep, dict[int, list[Point]]] = {}
        for row in self.points:
            fields = {name: getattr(row, name) for name in Sweep.__struct_fields__ if name != "points"}
            of_sweep = found.setdefault(Sweep(**fields), {})
            of_sweep.setdefault(row.size, []).append(row)
        return [
            msgspec.structs.replace(sweep, points=tuple(_as_one(size, at[size]) for size in sorted(at)))
            for sweep, at in found.items()
        ]


def probes_of(raw: Path, settings: Settings, command: Sequence[str], world_size: int, here: int) -> Probes | None:
    """Return the measurements, which may be incomplete; None if there are none. `here` is the number of recorded ranks."""
    ranks = [_OfRank(path) for path in sorted(raw.glob(names.PROBES))]
    if not ranks:
        return None
    return Probes(
        created_ns=time.time_ns(),
        command=tuple(command),
        world_size=world_size,
        budget_s=settings.probe_s,
        took_s=max(one.end.took_s for one in ranks),
        whole=len(ranks) == here and all(one.end.whole for one in ranks),
        stages=tuple(stage for stage in ranks[0].stages if all(stage in one.stages for one in ranks)),
        sweeps=tuple(put_together(sweep for one in ranks for sweep in one.sweeps())),
        left_out=tuple(row for one in ranks for row in one.left_out),
        conditions=tuple(row for one in ranks for row in one.conditions),
    )


def _as_one(size: int, points: Sequence[Point]) -> Point:
    """Combine points of one size. CPU time is the mean, weighted by the number of repeats."""
    samples = tuple(sample for point in points for sample in point.samples_ns)
    known = [(point.cpu_ns, len(point.samples_ns)) for point in points if point.cpu_ns is not None]
    cpu = round(sum(cpu * many for cpu, many in known) / sum(many for _, many in known)) if known else None
    return Point(size=size, samples_ns=samples, cpu_ns=cpu, sent=points[0].sent, vnmse=points[0].vnmse)
