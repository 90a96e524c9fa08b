"""A pipeline: its schedule, its numbers of ranks, stages and microbatches, and the tasks that its ranks do."""

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from esprof.core.types import Rank


class StagePass(StrEnum):
    """What a rank does with a microbatch on one of its stages."""

    FORWARD = "F"
    BACKWARD = "B"
    """The whole backward."""
    INPUTS = "I"
    """The part of the backward that computes the gradient of the stage's input."""
    WEIGHTS = "W"
    """The part of the backward that computes the gradients of the stage's weights."""


class PipelineTask(NamedTuple):
    """One pass of one microbatch through one stage."""

    kind: StagePass
    stage: int
    microbatch: int


class PipelineSchedule(StrEnum):
    """A pipeline schedule."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    LOOPED_BFS = "looped-bfs"
    ZB1P = "zb1p"
    ZBV = "zbv"
    DUALPIPEV = "dualpipev"

    @property
    def is_v(self) -> bool:
        """Whether each rank has two stages, one on the way down and one on the way back."""
        return self in (PipelineSchedule.ZBV, PipelineSchedule.DUALPIPEV)

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of weights are computed apart from those of inputs."""
        return self in (PipelineSchedule.ZB1P, PipelineSchedule.ZBV, PipelineSchedule.DUALPIPEV)


class PipelineShape(NamedTuple):
    """A schedule of `microbatches` on `ranks`, each of which has `chunks` stages."""

    schedule: PipelineSchedule
    ranks: int
    microbatches: int
    chunks: int = 1

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> Rank:
        """The rank that has this stage."""
        if self.schedule.is_v:
            return min(stage, self.stages - 1 - stage)
        return stage % self.ranks

    def fault(self) -> str | None:
        """What is wrong with the numbers; None if nothing is."""
        ranks, microbatches, chunks = self.ranks, self.microbatches, self.chunks
        if min(ranks, microbatches, chunks) < 1:
            return "ranks, microbatches and stages of a rank must be at least 1"
        if self.schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B) and chunks != 1:
            return f"a rank has one stage, not {chunks}"
        if self.schedule.is_v and chunks != 2:
            return f"a rank has two stages, not {chunks}"
        if self.schedule.is_v and microbatches < 2 * ranks:
            return f"at least {2 * ranks} microbatches are needed, two for each rank: there are {microbatches}"
        in_rounds = self.schedule in (PipelineSchedule.INTERLEAVED, PipelineSchedule.ZB1P)
        if in_rounds and chunks > 1 and microbatches % ranks:
            return f"the microbatches ({microbatches}) must be a multiple of the ranks ({ranks})"
        return None


class TaskCounter:
    """Tasks of one rank, whose microbatches are counted per stage and kind of pass."""

    def __init__(self) -> None:
        self._done: Counter[tuple[StagePass, int]] = Counter()

    def next(self, kind: StagePass, stage: int) -> PipelineTask:
        """The next microbatch of this kind on this stage. A whole backward counts as both of its parts."""
        both = (StagePass.INPUTS, StagePass.WEIGHTS)
        counted = both if kind == StagePass.BACKWARD else (kind,)
        task = PipelineTask(kind, stage, self._done[counted[0], stage])
        self._done.update((one, stage) for one in counted)
        return task

    def left(self, kind: StagePass, stage: int, microbatches: int) -> int:
        """How many of the microbatches are still to come."""
        return microbatches - self._done[kind, stage]


def repeated(counted: TaskCounter, times: int, passes: Sequence[tuple[StagePass, int]]) -> Iterator[PipelineTask]:
    """These passes, one after the other, `times` times."""
    for _ in range(times):
        yield from (counted.next(kind, stage) for kind, stage in passes)
