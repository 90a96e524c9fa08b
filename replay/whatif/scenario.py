"""A scenario under construction: the graph as the terms of a what-if change it, one after the other."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.ranks.blame import Blame
from esprof.replay.schedules.pipeline import PipelineSchedule
from esprof.replay.whatif.communication.links import RecordedLinks
from esprof.run.run import Run


@dataclass(frozen=True)
class PipelineChange:
    """What terms change about the pipeline of a job; None stays as recorded."""

    schedule: PipelineSchedule | None = None
    stages: tuple[int, ...] | None = None
    """Numbers of layers of all stages in order."""
    microbatches: int | None = None
    """Number of microbatches of a step."""


@dataclass(frozen=True)
class BatchChange:
    """What terms change about the batches of a job."""

    factor: float = 1.0
    """Samples of a step, relative to those recorded."""
    parts: int = 1
    """Equal parts into which each batch is divided, each with a forward and backward pass of its own."""


class Declined(Exception):
    """A scenario that the run holds no evidence for; the text is the reason."""


class NothingFound(Declined):
    """A term that finds nothing to change in the graph. Other ranks may have what it changes."""


class GraphPart(Enum):
    """What of a job the graph of a scenario holds."""

    ALL = "all"
    ONE_RANK = "one rank"
    """How long its communication takes depends on other ranks: it stays as it was."""
    COMMUNICATION = "communication"
    """Communication and input data of all ranks, of other work only the longest paths."""


class Bound(NamedTuple):
    """What bounds the steps of a scenario in addition to its graph."""

    least_ns: np.ndarray | None = None
    """See `Scenario.least_ns`."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """A graph, what it was made of, and what should be said of it."""

    run: Run
    blame: Blame
    """Who delays the steady-state steps of the graph before any change."""
    dfg: Dfg
    """The graph with the changes made so far."""
    notes: tuple[str, ...] = ()
    """Notes to print with its saving."""
    least_ns: np.ndarray | None = None
    """Least duration of each step of `dfg.marks`, ns, shape (steps,); None where only the graph bounds the steps."""
    taken_ns: np.ndarray | None = None
    """What each collective takes from concurrent work, ns, float64[N]; NaN where derived from its bytes, None if all are."""
    margin_ns: float = 0.0
    """Half the width of the 95 % interval of what the terms add to a step from samples, such as batches, ns."""
    batch: BatchChange | None = None
    """What terms change about the batches, before all others change the graph; None if they change nothing."""
    pipeline: PipelineChange | None = None
    """What the terms so far change about the pipeline, before it is drawn anew; None if they change nothing."""
    only_mends: bool = False
    """Whether ranks are only made to work like their peers, which nobody would do at a loss."""
    part: GraphPart = GraphPart.ALL

    @property
    def recorded(self) -> Dfg:
        """The graph before any change."""
        return self.blame.dfg

    @property
    def blame_now(self) -> Blame:
        """Who delays the steady-state steps of the graph with the changes made so far: another term may have rebuilt it."""
        return self.blame if self.dfg is self.recorded else replace(self.blame, dfg=self.dfg)

    def mended(self, blame: Blame) -> "Scenario":
        """The scenario in which the ranks work as in `blame`: `blame_now` with other durations."""
        return replace(self, dfg=blame.dfg)

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the steady-state steps."""
        return self.blame.steps

    def bounded(self, bound: Bound) -> "Scenario":
        """The scenario with one more bound of its steps: the longest holds."""
        least_ns = [one for one in (self.least_ns, bound.least_ns) if one is not None]
        return replace(self, least_ns=np.max(least_ns, axis=0) if least_ns else None).noted(*bound.notes)

    def noted(self, *notes: str) -> "Scenario":
        """The scenario with these notes added, none of them twice."""
        return replace(self, notes=tuple(dict.fromkeys([*self.notes, *notes])))

    @property
    def only_changes_times(self) -> bool:
        """Whether nodes and edges are those that were recorded and no bound was added, so that only times differ."""
        return self.least_ns is None and self.dfg.pred_idx is self.recorded.pred_idx

    @property
    def has_recorded_nodes(self) -> bool:
        """Whether the nodes are those that were recorded, so that at most times differ and edges were cut."""
        return self.dfg.key is self.recorded.key

    @property
    def never_longer(self) -> bool:
        """Whether the nodes are those recorded, and none of them takes longer, its residual included."""
        return self.has_recorded_nodes and bool((longer_ns(self.recorded, self.dfg) <= 0).all())

    @property
    def never_shorter(self) -> bool:
        """Whether the nodes are those recorded, and none of them takes less, its residual included."""
        return self.has_recorded_nodes and bool((longer_ns(self.recorded, self.dfg) >= 0).all())

    @property
    def has_recorded_cpu_work(self) -> bool:
        """Whether all that CPUs do takes as long as recorded."""
        if not self.has_recorded_nodes:
            return False
        changed = self.dfg.dur_ns != self.recorded.dur_ns
        return not (changed & ~self.dfg.on(LaneKind.STREAM) & ~self.dfg.of(Cls.COMMUNICATION)).any()

    @property
    def links(self) -> RecordedLinks:
        """The recorded communication of the job."""
        return RecordedLinks.of(self.recorded)


def longer_ns(recorded: Dfg, changed: Dfg) -> np.ndarray:
    """By how much each node takes longer in `changed` than in `recorded`, its residual included, ns, int64[N]."""
    longer: np.ndarray = changed.dur_ns + changed.residual_ns - recorded.dur_ns - recorded.residual_ns
    return longer


def changing_batch(now: Scenario, **changes: Any) -> Scenario:
    """`now` with these fields of `BatchChange` noted."""
    return replace(now, batch=replace(now.batch or BatchChange(), **changes))


def changing_pipeline(now: Scenario, **changes: Any) -> Scenario:
    """`now` with these fields of `PipelineChange` noted."""
    return replace(now, pipeline=replace(now.pipeline or PipelineChange(), **changes))


def ranks_with(run: Run, device: str) -> list[Rank]:
    """The ranks whose device has `device` in its name. Raises Declined where none has."""
    found = [meta.rank for meta in run.meta.ranks if device in (meta.device or "")]
    if not found:
        raise Declined(f"no rank of this run has a device named {device!r}")
    return found


def known_ranks(run: Run, ranks: Iterable[Rank]) -> list[Rank]:
    """`ranks`, all of which are in the run. Raises Declined for one that is not."""
    wanted = list(ranks)
    for rank in wanted:
        if rank not in run.ranks:
            raise Declined(f"rank {rank} is not in this run")
    return wanted
