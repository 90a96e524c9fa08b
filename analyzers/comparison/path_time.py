"""Time of each recorded step on the critical path, by class and by what ran."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np

from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.analyzers.rule import Case
from esprof.analyzers.views.breakdown import layers, partition
from esprof.analyzers.views.kernel_names import kernel_label
from esprof.core.types import Rank
from esprof.replay.cpu.frames import frame
from esprof.replay.cpu.python_time import UNRECORDED, PythonTime, text_of
from esprof.replay.dfg import Cls, LaneKind
from esprof.run.collective_names import collective_word
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.stacks import SourceLocation

WHILE_MADE = "while a batch is made"

_CLASSES = (Cls.COMPUTE, Cls.COMMUNICATION, Cls.COPY, Cls.WAIT, Cls.DATA, Cls.CPU, Cls.RESIDUAL)
"""The class of each of `ACTIVITIES`."""


@dataclass(frozen=True)
class PathTime:
    """The critical path of the steady-state steps."""

    took_ns: dict[tuple[str, str], np.ndarray]
    """(class, name) -> time in each step, ns, float64[steps]. The times of a step sum to its replayed duration."""
    lines: dict[str, str]
    """Name of a place in the job's code -> its line with most time."""


def path_time(case: Case) -> PathTime:
    """The critical path of each steady-state step by class and name."""
    pieces = _PathPieces.of(case)
    names = _Names(case)
    found: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(len(pieces.inside_ns)))
    is_batch = case.replayed.built.dfg.on(LaneKind.LOADER)[pieces.node]
    for rank in np.unique(pieces.rank).tolist():
        mine = pieces.rank == rank
        for cls, took in _while_batches_are_made(case, rank, pieces, mine & is_batch).items():
            found[cls, WHILE_MADE] += took
        for number in np.unique(pieces.cls[mine & ~is_batch]).tolist():
            at = np.flatnonzero(mine & ~is_batch & (pieces.cls == number))
            for name, took in names.times(Cls(number), rank, pieces.node[at], pieces.inside_ns[:, at]).items():
                found[Cls(number).label, name] += took
    lines = {place: max(of.items(), key=itemgetter(1))[0] for place, of in names.lines.items()}
    return PathTime(dict(found), lines)


@dataclass(frozen=True)
class _PathPieces:
    """The pieces of a critical path, one entry for each, and their time in each steady-state step."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    node: np.ndarray
    cls: np.ndarray
    rank: np.ndarray
    steps_ns: np.ndarray
    """Begin and end of each step, int64[steps, 2]."""

    @classmethod
    def of(cls, case: Case) -> "_PathPieces":
        replayed = case.replayed
        marks, end_ns, path = replayed.built.dfg.marks, replayed.timeline.end_ns, replayed.path
        at = replayed.pricer.steady_at
        steps = np.stack([end_ns[marks.first[at]].max(axis=1), end_ns[marks.last[at]].max(axis=1)], axis=1)
        rows = [(piece.start_ns, piece.end_ns, piece.node, piece.cls, piece.rank) for piece in path]
        start, end, node, classes, rank = np.array(rows, np.int64).reshape(-1, 5).T
        return cls(start, end, node, classes, rank, steps)

    @cached_property
    def inside_ns(self) -> np.ndarray:
        """Time of each piece in each step, ns, float64[steps, pieces]."""
        begin, end = self.steps_ns[:, :1], self.steps_ns[:, 1:]
        inside: np.ndarray = np.maximum(np.minimum(self.end_ns, end) - np.maximum(self.start_ns, begin), 0)
        return inside.astype(np.float64)


def _while_batches_are_made(case: Case, rank: Rank, pieces: _PathPieces, chosen: np.ndarray) -> dict[str, np.ndarray]:
    """The time of the chosen pieces, which are on loader workers, by what their rank itself did, float64[steps] each.

    A worker that is always busy would bear the whole step, of which the rank waits for a part.
    """
    found: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(pieces.steps_ns)))
    if not chosen.any():
        return found
    activity = layers(case.replayed.timeline, rank)
    for step, (begin, end) in enumerate(pieces.steps_ns.tolist()):
        at = chosen & (pieces.inside_ns[step] > 0)
        spans = np.stack([np.maximum(pieces.start_ns[at], begin), np.minimum(pieces.end_ns[at], end)], axis=1)
        for cls, took in zip(_CLASSES, partition(activity, spans).sum(axis=0).tolist(), strict=True):
            found[cls.label][step] += took
    return found


class _Names:
    """What runs at the nodes of a graph, in names that two runs of one job share."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._dfg = case.replayed.built.dfg
        self._on_stream = self._dfg.on(LaneKind.STREAM)
        self._launchers: dict[Rank, dict[int, str]] = {}
        self.lines: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        """Place in the job's code -> time of each of its lines on the path, ns."""

    def times(self, cls: Cls, rank: Rank, nodes: np.ndarray, inside: np.ndarray) -> dict[str, np.ndarray]:
        """Time of these pieces of one class and rank, float64[steps, pieces], by name."""
        if cls is Cls.HOST_GAP:
            return self.of_gaps(rank, nodes, inside)
        texts = [self.of(cls, node, rank) for node in nodes.tolist()]
        return {text: inside[:, [other == text for other in texts]].sum(axis=1) for text in set(texts)}

    def of(self, cls: Cls, node: int, rank: Rank) -> str:
        """The name of a piece of the path that runs through a node on a rank."""
        label = self._dfg.label(node)
        if cls in (Cls.COMMUNICATION, Cls.WAIT):
            return collective_word(label) or label
        if self._on_stream[node]:
            return kernel_label(label, self._launcher(rank).get(int(self._dfg.event[node])))
        return label

    def _launcher(self, rank: Rank) -> dict[int, str]:
        """Row of GPU work in the event table -> the operation that launched it."""
        if rank not in self._launchers:
            calls: GpuCalls = self._case.gpu_calls[rank]
            known = np.flatnonzero(calls.work.by >= 0)
            by = calls.work.by[known].tolist()
            self._launchers[rank] = dict(
                zip(calls.work.row[known].tolist(), [calls.name[call] for call in by], strict=True)
            )
        return self._launchers[rank]

    def of_gaps(self, rank: Rank, nodes: np.ndarray, inside: np.ndarray) -> dict[str, np.ndarray]:
        """Time of these gaps, float64[steps, gaps], by the function of the job that ran; else by the operations around."""
        python = PythonTime(self._case.run, self._dfg, rank)
        found: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(inside)))
        for step, took in enumerate(inside):
            on_path = np.bincount(nodes, took, self._dfg.nodes)
            for location, (ns, _) in python.took(on_path).items():
                found[place_of(location)][step] += ns
                self.lines[place_of(location)][text_of(location)] += ns
        unknown = 1 - python.share(lambda location: location is not UNRECORDED)[nodes]
        for at in np.flatnonzero(unknown > 0).tolist():
            found[self._dfg.label(int(nodes[at]))] += inside[:, at] * unknown[at]
        return found


def place_of(location: SourceLocation) -> str:
    """A source location without its line, which moves when the file is edited: `train.py: step → model.py: forward`."""
    if location.call == GARBAGE_COLLECTION:
        return text_of(location)
    return " → ".join(function_of(text) for text in location if text is not None)


def function_of(text: str) -> str:
    """A frame without its line: `train.py: step`."""
    called = frame(text)
    return f"{called.file}: {called.function}" if called.file else text
