"""Time of Python code on a rank's threads by source location: recorded functions, sampled stacks and garbage collections,
mapped to the graph."""

import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from esprof.core.types import NS_PER_MS, Ns, Rank
from esprof.replay.cpu.recorded_frames import RecordedFrames, recorded_frames
from esprof.replay.cpu.sampled import LocationShare, RankSamples, is_waiting
from esprof.replay.dfg import Cls, Dfg, LaneKind, gap_name
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.run import Run
from esprof.run.stacks import MIN_SILENCE_NS, MIN_SILENCE_SAMPLED_NS, SourceLocation

_OPERATIONS = (Cls.CPU, Cls.COMPUTE)

_SLEEP = "<built-in function sleep>"
"""`time.sleep` as torch.profiler names it: of all recorded functions the only one that is known not to run on a CPU."""

SAMPLED: Ns = 40 * NS_PER_MS
"""Shortest gap, ns, that is attributed by its own samples: outside of windows with stacks they are 20 ms apart."""

MIN_GAP_RATIO = 2.0
"""A gap longer than this many times the usual gap of its name is attributed by its own samples."""


UNRECORDED = SourceLocation("unrecorded code", None)
"""Stands for the code of long gaps on ranks whose stacks are unknown (`PythonTime.unnamed`)."""


class _Silence(NamedTuple):
    """Time in Python, without recorded operations, in a step with stacks: between two operations or within one."""

    kind: int
    """Kind of the nodes that it belongs to (`PythonTime._kinds`)."""
    is_gap: bool
    """Whether it lay between two operations."""
    location: SourceLocation | None
    """Sampled source location; None if the silence was too short to be sampled."""
    dur_ns: int
    cpu_ns: int


@dataclass(frozen=True)
class PythonTime:
    """Source locations in Python that a rank's threads ran while no operation was recorded.

    If torch.profiler recorded Python functions (`recorded_frames`), they show what ran in each gap, but not whether it ran
    on a CPU (NaN). Otherwise the main thread was sampled. Windows with stacks and the window of the graph hold different
    steps: nodes of a name are assumed to consist of the same locations as silences of that name. A long gap that is shorter
    elsewhere is explained by its own samples, and garbage collections by their own times. Waiting for a collective is not
    Python code.
    """

    run: Run
    dfg: Dfg
    rank: Rank

    def share(self, wanted: Callable[[SourceLocation], bool]) -> np.ndarray:
        """Share of each node's time that is spent at `wanted` source locations, float64[N], from 0 to 1. The code of
        `unnamed` gaps is at `UNRECORDED`."""
        of_kind = np.zeros(2 * len(self.dfg.names))
        for kind, rows in self._rows.items():
            of_kind[kind] = min(1.0, sum(row.share for row in rows if wanted(row.location)))
        share = np.where(self._nodes, of_kind[self._kinds], 0.0)
        for node, rows in self._seen.items():
            share[node] = min(1.0, sum(row.share for row in rows if wanted(row.location)))
        return np.where(self.unnamed, float(wanted(UNRECORDED)), share)

    @cached_property
    def unnamed(self) -> np.ndarray:
        """Mask of the gaps of the main thread whose code is unknown, bool[N]: those of at least `MIN_SILENCE_SAMPLED_NS`,
        if stacks were neither recorded in the trace nor sampled in a window or in the gap itself."""
        dfg = self.dfg
        is_gap = dfg.of(Cls.HOST_GAP) & (dfg.lane == dfg.main_lane(self.rank))
        mask: np.ndarray = is_gap & (dfg.dur_ns >= MIN_SILENCE_SAMPLED_NS)
        if len(self.frames) or len(self.run.stacks(self.rank)):
            return np.zeros(dfg.nodes, bool)
        mask[list(self._seen)] = False
        return mask

    def by_location(self, steps: tuple[int, ...]) -> dict[SourceLocation, tuple[float, float]]:
        """(mean time in a step of `steps`, ns; share of it that the thread ran on a CPU) of each source location."""
        took = self.took(np.where(np.isin(self.dfg.step, steps), self.dfg.dur_ns, 0))
        return {location: (ns / max(1, len(steps)), ran) for location, (ns, ran) in took.items()}

    def took(self, time_ns: np.ndarray) -> dict[SourceLocation, tuple[float, float]]:
        """(total time, ns; share of it that the thread ran on a CPU) of each source location.

        `time_ns` is the time spent in each node, ns, shape (N,).
        """
        alike = self._nodes.copy()
        alike[list(self._seen)] = False
        of_kind = np.bincount(self._kinds[alike], time_ns[alike], 2 * len(self.dfg.names)).tolist()
        shares = [(of_kind[kind], rows) for kind, rows in self._rows.items()]
        shares += [(float(time_ns[node]), rows) for node, rows in self._seen.items()]
        took: dict[SourceLocation, float] = defaultdict(float)
        ran: dict[SourceLocation, float] = defaultdict(float)
        for total, rows in shares:
            for row in rows:
                took[row.location] += row.share * total
                ran[row.location] += row.share * total * row.ran
        return {location: (ns, ran[location] / ns) for location, ns in took.items() if ns > 0}

    @cached_property
    def frames(self) -> RecordedFrames:
        """The Python functions that torch.profiler recorded; empty without stacks."""
        return recorded_frames(self.run.events(self.rank))

    @property
    def leading(self) -> set[str]:
        """Recorded functions, as `file: function`, that run for nearly all of the steps: the loop and what leads to it."""
        begin, end = self._recorded_at
        main = self.dfg.main_lane(self.rank)
        mine = (self.dfg.lane == main) & (self.dfg.step >= 0)
        return self.frames.leading(self._threads[main], int(begin[mine].min()), int(end[mine].max()))

    @cached_property
    def _threads(self) -> dict[int, int]:
        """CPU lane of the rank -> thread id, for lanes with recorded rows."""
        dfg = self.dfg
        nodes = np.flatnonzero((dfg.rank == self.rank) & dfg.on(LaneKind.CPU) & (dfg.event >= 0))
        lanes, first = np.unique(dfg.lane[nodes], return_index=True)
        threads = self.run.events(self.rank).ints("tid")[dfg.event[nodes[first]]]
        return dict(zip(lanes.tolist(), threads.tolist(), strict=True))

    @cached_property
    def _recorded(self) -> dict[int, list[LocationShare]]:
        """Locations of the nodes in which recorded functions ran.

        Of operations only code that they call back counts, such as hooks of a backward pass. Time of PyTorch and of a
        module's forward counts in gaps of at least `MIN_SILENCE_SAMPLED_NS`: shorter ones are ordinary overhead.
        """
        dfg, (begin, end) = self.dfg, self._recorded_at
        counts = (dfg.of(Cls.HOST_GAP) & (dfg.dur_ns > MIN_SILENCE_NS)) | dfg.of(*_OPERATIONS)
        is_long = dfg.of(Cls.HOST_GAP) & (dfg.dur_ns >= MIN_SILENCE_SAMPLED_NS)
        took: dict[tuple[int, int], int] = defaultdict(int)
        for lane, thread in self._threads.items():
            nodes = np.flatnonzero(counts & (dfg.lane == lane))
            nodes = nodes[np.argsort(begin[nodes], kind="stable")]
            span, piece, ns = self.frames.within(thread, np.stack([begin[nodes], end[nodes]], axis=1))
            chosen = is_long[nodes[span]] | ~self.frames.overhead[piece]
            keys = zip(nodes[span[chosen]].tolist(), self.frames.location[piece[chosen]].tolist(), strict=True)
            for key, inside in zip(keys, ns[chosen].tolist(), strict=True):
                took[key] += inside
        found: dict[int, list[LocationShare]] = defaultdict(list)
        for (node, location), inside in took.items():
            share = inside / int(dfg.dur_ns[node])
            where = self.frames.locations[location]
            found[node].append(LocationShare(where, share, 0.0 if where.call == _SLEEP else math.nan))
        return found

    @cached_property
    def _sampled(self) -> RankSamples:
        return RankSamples(self.run, self.rank)

    @cached_property
    def _recorded_at(self) -> tuple[np.ndarray, np.ndarray]:
        """When each node begins and ends on the rank's own clock, ns, int64[N]."""
        dfg, events = self.dfg, self.run.events(self.rank)
        own = np.flatnonzero((dfg.lane == dfg.main_lane(self.rank)) & (dfg.event >= 0))
        begin = dfg.recorded_ns + dfg.clock_offset_ns(events.ints("start_ns"), own)
        return begin, begin + dfg.dur_ns

    @cached_property
    def _collecting(self) -> np.ndarray:
        """The share of each node's time in which garbage was collected, float64[N], from 0 to 1; 0 for other nodes."""
        begin, end = self._recorded_at
        within = np.zeros(self.dfg.nodes)
        spans = self._sampled.collections
        # The samples cover the whole run, the graph only a window of it.
        for first, last in spans[(spans[:, 1] > begin.min()) & (spans[:, 0] < end.max())].tolist():
            within += np.maximum(np.minimum(end, last) - np.maximum(begin, first), 0)
        return np.where(self._nodes, np.minimum(within / np.maximum(self.dfg.dur_ns, 1), 1), 0.0)

    @cached_property
    def _seen(self) -> dict[int, list[LocationShare]]:
        """Locations of single nodes: those with recorded functions or garbage collections, and gaps much longer than usual
        for their name."""
        dfg, begin, end = self.dfg, *self._recorded_at
        usual_ns = self._usual_gap[dfg.name]
        is_long = self._nodes & dfg.of(Cls.HOST_GAP) & (dfg.dur_ns > np.maximum(SAMPLED, MIN_GAP_RATIO * usual_ns))
        is_long &= len(self._sampled) > 0
        found = {}
        for node in sorted({*np.flatnonzero(is_long | (self._collecting > 0)).tolist(), *self._recorded}):
            collecting = float(self._collecting[node])
            sampled = self._sampled.within(int(begin[node]), int(end[node])) if is_long[node] else None
            rows = self._rows.get(int(self._kinds[node]), []) if sampled is None else sampled
            rows = self._recorded.get(node, rows)
            # Samples that were due during a collection are taken right after it, and say nothing about the rest.
            found[node] = [LocationShare(row.location, row.share * (1 - collecting), row.ran) for row in rows]
            if collecting:
                (frame, _), *_ = self._sampled.frames_behind(end[[node]])
                found[node].append(LocationShare(SourceLocation(frame, GARBAGE_COLLECTION), collecting, 1.0))
        return found

    @cached_property
    def _nodes(self) -> np.ndarray:
        """Mask of the nodes whose time has source locations: long gaps and operations on the main thread."""
        dfg = self.dfg
        long_gap = dfg.of(Cls.HOST_GAP) & (dfg.dur_ns > MIN_SILENCE_NS)
        mask: np.ndarray = (dfg.lane == dfg.main_lane(self.rank)) & (long_gap | dfg.of(*_OPERATIONS))
        return mask

    @cached_property
    def _kinds(self) -> np.ndarray:
        """Number of each node's kind, int64[N]: its name, and whether it is a gap, since an operation may share the name."""
        is_gap = self.dfg.of(Cls.HOST_GAP)
        kinds: np.ndarray = self.dfg.name + len(self.dfg.names) * ~is_gap
        return kinds

    @cached_property
    def _silences(self) -> list[_Silence]:
        """Silences between or within operations whose names occur in the graph."""
        stacks = self.run.stacks(self.rank)
        number = {name: at for at, name in enumerate(self.dfg.names)}
        texts = (stacks.texts(column) for column in ("before", "after", "frame", "call"))
        times = (stacks.ints(column).tolist() for column in ("dur_ns", "cpu_ns"))
        found = []
        for before, after, frame, call, dur, cpu in zip(*texts, *times, strict=True):
            name = number.get(before or "" if after is None else gap_name(before or "", after))
            if name is not None:
                location = None if frame is None else SourceLocation(frame, call)
                found.append(
                    _Silence(name + len(number) * (after is None), after is not None, location, dur, max(0, cpu))
                )
        return found

    @cached_property
    def _rows(self) -> dict[int, list[LocationShare]]:
        """Kind of nodes (`_kinds`) -> shares of its source locations."""
        if len(self.frames):
            return {}  # what was recorded says more than samples of other steps
        gaps: dict[int, int] = defaultdict(int)
        """Total length of the silences of each kind, ns, without those too short to be sampled."""
        took: dict[int, dict[SourceLocation, tuple[int, int]]] = defaultdict(lambda: defaultdict(lambda: (0, 0)))
        for silence in self._silences:
            location = silence.location
            if location is not None and location.call == GARBAGE_COLLECTION:
                continue  # collections are placed by their own times: steps without stacks may have fewer or more
            if silence.is_gap and (location is not None or silence.dur_ns >= MIN_SILENCE_SAMPLED_NS):
                gaps[silence.kind] += silence.dur_ns
            if location is not None:
                sum_ns, sum_cpu = took[silence.kind][location]
                took[silence.kind][location] = (sum_ns + silence.dur_ns, sum_cpu + silence.cpu_ns)
        return {
            kind: [
                LocationShare(location, ns / (gaps.get(kind) or self._of_operations(kind)), min(1.0, cpu / ns))
                for location, (ns, cpu) in by_location.items()
                if ns and not is_waiting(location, cpu / ns)
            ]
            for kind, by_location in took.items()
        }

    @cached_property
    def _usual_gap(self) -> np.ndarray:
        """Mean total time of the gaps of each name in a step with stacks, ns, float64[names]."""
        found = np.zeros(len(self.dfg.names))
        for silence in self._silences:
            if silence.is_gap:
                found[silence.kind] += silence.dur_ns / self._steps_with_stacks
        return found

    @cached_property
    def _steps_with_stacks(self) -> int:
        """Number of steps with stacks; 1 if there are none."""
        windows = [window for window in self.run.rank(self.rank).windows if window.stacks]
        return max(1, sum(window.last - window.first + 1 for window in windows))

    def _of_operations(self, kind: int) -> float:
        """Time of the operations of this kind, scaled to the number of steps with stacks, ns."""
        mine = self._nodes & (self._kinds == kind) & np.isin(self.dfg.step, self.dfg.marks.steps)
        return float(max(self.dfg.dur_ns[mine].sum() * self._steps_with_stacks / len(self.dfg.marks.steps), 1.0))


def matches(pattern: re.Pattern[str]) -> Callable[[SourceLocation], bool]:
    """Predicate: whether the pattern matches the text of a source location (`text_of`)."""
    return lambda location: bool(pattern.search(text_of(location)))


def text_of(location: SourceLocation) -> str:
    """A source location as text: `file(line): function`, followed by an arrow and the called function, if any.

    Garbage may be collected at any line, so a collection is shown without one.
    """
    if location.call == GARBAGE_COLLECTION:
        return GARBAGE_COLLECTION
    return location.frame if location.call is None else f"{location.frame} → {location.call}"
