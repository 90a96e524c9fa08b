"""The layers of the stages of a recorded pipeline job: the entries of the list of modules that all its stages have, and the
time of each in every pass."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import msgspec
import numpy as np

from esprof.core.types import Ns
from esprof.replay.schedules.passes import RankPasses
from esprof.replay.schedules.pipeline import PipelineTask, StagePass
from esprof.replay.schedules.recorded import RecordedPipeline
from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE, GRADIENT
from esprof.replay.whatif.memory.layers import module_lists
from esprof.replay.whatif.scenario import Declined
from esprof.run.kineto.steps.trace_steps import OPTIMIZER
from esprof.run.run import Run
from esprof.run.schema import Table

_ALIKE = 0.8
"""Lists whose entries take this share of the time of the longest one count as equally long: one may enclose the other."""

StepTask = tuple[int, PipelineTask]
"""A step's number and a pass in it."""


@dataclass(frozen=True)
class StageLayers:
    """The layers of one recorded stage in order. K layers."""

    kinds: tuple[str, ...]
    """What each computes, of what shapes."""
    spans: Mapping[StepTask, np.ndarray]
    """When each pass is in each layer: (begin, end) on the rank's clock, int64[K, 2], ns."""
    times_ns: Mapping[StepTask, np.ndarray]
    """CPU time of each pass in each layer, int64[K]."""
    parameters: np.ndarray
    """Number of parameters of each layer, int64[K]; 0 where gradients were not recorded."""
    all_parameters: int
    """Number of parameters of the whole stage."""
    optimizer_ns: Mapping[int, Ns]
    """By step: CPU time of the optimizer of its rank after the passes."""


def stage_layers(run: Run, pipeline: RecordedPipeline) -> tuple[StageLayers, ...]:
    """The layers of each stage. Raises Declined where modules, shapes or backward passes were not recorded."""
    of_rank = [(run.events(passes.rank), passes) for passes in pipeline.passes]
    stages = [_StageEvents(*of_rank[pipeline.shape.rank_of(stage)], stage) for stage in range(pipeline.shape.stages)]
    lists = [stage.lists() for stage in stages]
    common = sorted(set.intersection(*(set(found) for found in lists)))
    if not common:
        raise Declined("no list of modules (nn.Sequential, nn.ModuleList) was recorded that all stages have")
    took = {
        name: sum(int(one.dur[found[name]].sum()) for one, found in zip(stages, lists, strict=True)) for name in common
    }
    close = [name for name in common if took[name] >= _ALIKE * max(took.values())]
    best = max(close, key=lambda name: sum(found[name].shape[1] for found in lists))
    return tuple(one.layers(found[best]) for one, found in zip(stages, lists, strict=True))


class _StageEvents:
    """The events of the rank of a stage, sorted by start, and the passes of the stage."""

    def __init__(self, events: Table, passes: RankPasses, stage: int) -> None:
        self._events, self._passes, self._stage = events, passes, stage
        self._start, self.dur = events.ints("start_ns"), events.ints("dur_ns")
        self._end = self._start + self.dur
        self._sequence = events.ints("autograd_seq", -1)
        is_op = events.is_kind("op")
        if len(passes.row):
            is_op &= events.ints("tid") == events.ints("tid")[passes.row[0]]
        is_node = is_op & events.matches("name", lambda name: name.startswith(AUTOGRAD_NODE))
        self._op = np.flatnonzero(is_op)
        self._node = np.flatnonzero(is_node)
        self._forward = np.flatnonzero(is_op & ~is_node & (self._sequence >= 0) & (events.ints("fwd_tid") <= 0))
        self._gradient = np.flatnonzero(is_op & events.matches("name", GRADIENT.__eq__))

    def lists(self) -> dict[str, np.ndarray]:
        """Rows of the calls of the entries of each list by its place in the stage, int64[forward passes, entries]: of lists
        that each forward pass calls alike."""
        of_pass = np.array([row for _, task, row in self._passed() if task.kind == StagePass.FORWARD])
        found = {}
        for name, rows in module_lists(self._events, least=1).items():
            first, behind = (np.searchsorted(self._start[rows], side[of_pass]) for side in (self._start, self._end))
            counts = set((behind - first).tolist())
            if len(counts) == 1 and min(counts):
                # The stages of a job may have models of unlike classes, after which their modules are named first.
                found[name.partition(".")[2]] = np.stack([rows[a:b] for a, b in zip(first, behind, strict=True)])
        return found

    def layers(self, calls: np.ndarray) -> StageLayers:
        """The layers that these calls are those of, int64[forward passes, K]. Raises Declined."""
        passes = list(self._passed())
        forward = [one for one in passes if one[1].kind == StagePass.FORWARD]
        called = {(step, task.microbatch): calls[at] for at, (step, task, _) in enumerate(forward)}
        numbers = {key: [self._numbers(row) for row in rows.tolist()] for key, rows in called.items()}
        spans = {}
        for step, task, row in passes:
            key = step, task.microbatch
            if task.kind == StagePass.FORWARD:
                spans[step, task] = np.stack([self._start[called[key]], self._end[called[key]]], axis=1)
            else:
                spans[step, task] = self._backward(row, numbers[key])
        begin, end = np.concatenate(list(spans.values())).T
        times = self._passes.worked_ns(begin, end).reshape(len(spans), -1)
        last = next((step, task, row) for step, task, row in reversed(passes) if task.kind != StagePass.FORWARD)
        return StageLayers(
            kinds=tuple(self._kind(row) for row in calls[0].tolist()),
            spans=spans,
            times_ns=dict(zip(spans, times, strict=True)),
            parameters=np.array([self._parameters(*span) for span in spans[last[:2]].tolist()], np.int64),
            all_parameters=self._parameters(int(self._start[last[2]]), int(self._end[last[2]])),
            optimizer_ns=self._optimizer_ns(),
        )

    def _passed(self) -> Iterator[tuple[int, PipelineTask, int]]:
        """(step, pass, row of its mark) of each pass of the stage."""
        passes = self._passes
        for step, task, row in zip(passes.step.tolist(), passes.tasks, passes.row.tolist(), strict=True):
            if task.stage == self._stage:
                yield step, task, row

    def _within(self, rows: np.ndarray, begin: int, end: int) -> np.ndarray:
        """Those of these rows that start in this range."""
        first, behind = np.searchsorted(self._start[rows], (begin, end))
        return rows[first:behind]

    def _numbers(self, call: int) -> tuple[int, int]:
        """(least, largest) sequence number of the autograd nodes that a call makes. Raises Declined if it makes none."""
        made = self._sequence[self._within(self._forward, self._start[call], self._end[call])]
        if not len(made):
            raise Declined("a layer has no operation with a backward pass")
        return int(made.min()), int(made.max())

    def _backward(self, row: int, numbers: list[tuple[int, int]]) -> np.ndarray:
        """When the backward pass of this row is in each layer, whose nodes have these numbers: (begin, end), int64[K, 2],
        from the first node of a layer to that of the layer before it."""
        nodes = self._within(self._node, self._start[row], self._end[row])
        sequence = self._sequence[nodes]
        own = [np.flatnonzero((sequence >= least) & (sequence <= most)) for least, most in numbers]
        if any(not len(one) for one in own):
            raise Declined("the backward pass of a layer was not recorded")
        first = np.array([self._start[nodes[one[0]]] for one in own])
        # What the stage does before its first layer has lower numbers, and goes back after it.
        before = nodes[(sequence >= 0) & (sequence < numbers[0][0])]
        last = self._start[before[0]] if len(before) else self._end[row]
        return np.stack([first, np.append(last, first[:-1])], axis=1)

    def _kind(self, call: int) -> str:
        ops = self._within(self._op, self._start[call], self._end[call])
        names, shapes = self._texts("name", ops), self._texts("shapes", ops)
        if not any(shapes):
            raise Declined("shapes were not recorded, so that layers cannot be compared (esprof record --shapes)")
        return msgspec.json.encode([names, shapes]).decode()

    def _parameters(self, begin: int, end: int) -> int:
        """How many elements the gradients have that are accumulated in this range."""
        shapes = self._texts("shapes", self._within(self._gradient, begin, end))
        return sum(prod(msgspec.json.decode(text)[0]) for text in shapes if text)

    def _optimizer_ns(self) -> dict[int, Ns]:
        passes, events = self._passes, self._events
        rows = np.flatnonzero(events.matches("name", lambda name: name.startswith(OPTIMIZER)))
        took = passes.worked_ns(self._start[rows], self._end[rows])
        found = dict.fromkeys(passes.after_ns, 0)
        last = dict(zip(passes.step.tolist(), self._end[passes.row].tolist(), strict=True))
        for row, step, ns in zip(rows.tolist(), events.ints("step")[rows].tolist(), took.tolist(), strict=True):
            if step in last and self._start[row] >= last[step]:
                found[step] += ns
        return found

    def _texts(self, column: str, rows: np.ndarray) -> list[str]:
        codes, texts = self._events.codes(column)
        return [texts[code] if code >= 0 else "" for code in codes[rows].tolist()]
