"""What Python code takes of a rank's main thread, by place: the windows with stacks, held against the graph."""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.replay.dfg import Cls, Dfg, gap_name
from esprof.trace.run import Run
from esprof.trace.stacks import SHORTEST_SILENCE, Place
from esprof.types import Rank

_OPERATIONS = (Cls.CPU, Cls.COMPUTE)


@dataclass(frozen=True)
class _Row:
    """What one place takes of the nodes of one name."""

    place: Place
    share: float
    """Share of the time of each of these nodes, from 0 to 1."""
    ran: float
    """Share of its time that the thread ran there, from 0 to 1."""


@dataclass(frozen=True)
class PythonTime:
    """The places in Python that the main thread of a rank was seen at while no operation was recorded.

    Windows with stacks and those of the graph hold different steps: what the silences of a name were made of there is taken
    for what the nodes of that name are made of.
    """

    run: Run
    dfg: Dfg
    rank: Rank

    def share(self, wanted: Callable[[Place], bool]) -> np.ndarray:
        """The share of each node's time that lies in places that are `wanted`, float64[N], from 0 to 1."""
        by_name = np.zeros(len(self.dfg.names))
        for name, rows in self._rows.items():
            by_name[name] = min(1.0, sum(row.share for row in rows if wanted(row.place)))
        return np.where(self._nodes, by_name[self.dfg.name], 0.0)

    def places(self, steps: tuple[int, ...]) -> dict[Place, tuple[float, float]]:
        """(ns in a mean one of `steps`, share of it that the thread ran) of each place."""
        nodes = self._nodes & np.isin(self.dfg.step, steps)
        of_name = np.bincount(self.dfg.name[nodes], self.dfg.dur_ns[nodes], len(self.dfg.names))
        total = (of_name / max(1, len(steps))).tolist()
        took: dict[Place, float] = defaultdict(float)
        ran: dict[Place, float] = defaultdict(float)
        for name, rows in self._rows.items():
            for row in rows:
                took[row.place] += row.share * total[name]
                ran[row.place] += row.share * total[name] * row.ran
        return {place: (ns, ran[place] / ns) for place, ns in took.items() if ns > 0}

    @cached_property
    def _nodes(self) -> np.ndarray:
        """Mask of the nodes that places can be told of: long gaps and operations on the main thread."""
        dfg = self.dfg
        long_gap = dfg.of(Cls.HOST_GAP) & (dfg.dur_ns > SHORTEST_SILENCE)
        mask: np.ndarray = (dfg.lane == dfg.main_lane(self.rank)) & (long_gap | dfg.of(*_OPERATIONS))
        return mask

    @cached_property
    def _rows(self) -> dict[int, list[_Row]]:
        """Number of a node's name -> what places take of such nodes."""
        stacks = self.run.stacks(self.rank)
        number = {name: at for at, name in enumerate(self.dfg.names)}
        texts = (stacks.texts(column) for column in ("before", "after", "frame", "call"))
        times = (stacks.ints(column).tolist() for column in ("dur_ns", "cpu_ns"))
        gaps: dict[int, int] = defaultdict(int)
        """How long all silences of a name lasted, ns."""
        took: dict[int, dict[Place, tuple[int, int]]] = defaultdict(lambda: defaultdict(lambda: (0, 0)))
        for before, after, frame, call, dur, cpu in zip(*texts, *times, strict=True):
            name = number.get(before or "" if after is None else gap_name(before or "", after))
            if name is None:
                continue
            if after is not None:
                gaps[name] += dur
            if frame is not None:
                sum_ns, sum_cpu = took[name][Place(frame, call)]
                took[name][Place(frame, call)] = (sum_ns + dur, sum_cpu + max(0, cpu))
        return {
            name: [
                _Row(place, ns / (gaps.get(name) or self._of_operations(name)), min(1.0, cpu / ns))
                for place, (ns, cpu) in places.items()
                if ns
            ]
            for name, places in took.items()
        }

    def _of_operations(self, name: int) -> float:
        """How long the operations of this name would take in as many steps as the windows with stacks hold, ns."""
        windows = [window for window in self.run.rank(self.rank).windows if window.stacks]
        steps = sum(window.last - window.first + 1 for window in windows)
        mine = self._nodes & (self.dfg.name == name) & np.isin(self.dfg.step, self.dfg.marks.steps)
        return float(max(self.dfg.dur_ns[mine].sum() * steps / len(self.dfg.marks.steps), 1.0))


def matches(pattern: re.Pattern[str]) -> Callable[[Place], bool]:
    """Whether a pattern finds something in a place: in the line of the job's code, or in what that called."""
    return lambda place: bool(pattern.search(text_of(place)))


def text_of(place: Place) -> str:
    """A place as text: `file(line): function`, and what it called behind an arrow."""
    return place.frame if place.call is None else f"{place.frame} → {place.call}"
