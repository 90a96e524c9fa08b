"""Rows that a rank and its loader workers write for each step, batch or sample; of a long job only the latest remain."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from esprof.core.types import Large, Ns, Number, Time

Phase = Literal["plain", "warmup", "timed", "export", "stack"]


class NotedStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    step: Number
    start_ns: Time
    dur_ns: Time
    phase: Phase
    cpu_ns: Time | None = None
    ready_ns: Time | None = None
    throttled_ns: Time | None = None


_Parts = dict[str, tuple[Time, Time]]
"""Name of a part of a batch -> (time, CPU time), ns."""


class NotedPadding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Padding of the sequences of a batch: numbers of tokens, and of pairs of tokens of one sequence, which attention
    computes; pairs are None if rows hold several sequences."""

    tokens: Large
    padding: Large
    pairs: Large | None
    padding_pairs: Large | None


class Next(msgspec.Struct, frozen=True, array_like=True, gc=False):
    iterator: Number
    epoch: Number
    batch: Large | None
    worker: Number | None
    workers: Number
    prefetch: Number | None
    start_ns: Time
    end_ns: Time
    samples: Large | None
    tokens: Large | None
    training: bool
    cpu_ns: Time | None = None
    padding: NotedPadding | None = None
    in_order: bool | None = None
    batches: Large | None = None
    ready_ns: Time | None = None
    read_bytes: Large | None = None
    read_chars: Large | None = None
    parts: _Parts = {}
    keys: bytes | None = None
    """Keys of its samples, int64; None if they were not noted (`esprof.run.raw.sample_keys`)."""
    items: Large | None = None
    """Number of samples of the dataset."""


class Fetch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pid: Large
    worker: Number
    epoch: Number
    batch: Large | None
    start_ns: Time
    end_ns: Time
    samples: Large | None
    cpu_ns: Time | None = None
    padding: NotedPadding | None = None
    ready_ns: Time | None = None
    read_bytes: Large | None = None
    read_chars: Large | None = None
    parts: _Parts = {}
    keys: bytes | None = None
    """Keys of its samples, int64; None if they were not noted (`esprof.run.raw.sample_keys`)."""
    items: Large | None = None
    """Number of samples of the dataset."""


class MemorySample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    step: Number
    phase: str | None
    at_ns: Time
    allocated: Large | None
    reserved: Large | None
    peak_allocated: Large | None
    rss: Large | None


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stack sample of the training thread, which represents the preceding `dur_ns`. `stack` is the number of the innermost
    line."""

    at_ns: Time
    dur_ns: Time
    cpu_ns: Time
    step: Number
    stack: Number


class MarkedStage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stage that the job marked with `esprof.stage`, or a save."""

    name: str
    start_ns: Time
    end_ns: Time
    is_background: bool = False
    """Whether training went on meanwhile."""


class NotedModule(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sizes of a module, and the names of those whose outputs it takes and returns; None if unknown."""

    name: str
    own_bytes: Large
    parameter_bytes: Large
    output_bytes: Large
    inputs: list[str] | None
    outputs: list[str] | None


class NotedLabels(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Number of samples of each label since the row before."""

    at_ns: Time
    counts: dict[Large, Large]


_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class NotedTravel(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Scores on this rank's fixed batch after `every` steps without an average: of its own model, and the mean of the other
    ranks' (`esprof.ModelTravel`)."""

    at_ns: Time
    step: Number
    every: Number
    own: _Share
    foreign: _Share


class _Rolled(msgspec.Struct, frozen=True, tag_field="kind"):
    """A line with several rows of one kind. Old lines are dropped."""


class NotedSteps(_Rolled, frozen=True, tag="steps"):
    rows: list[NotedStep]


class Nexts(_Rolled, frozen=True, tag="nexts"):
    rows: list[Next]


class Fetches(_Rolled, frozen=True, tag="fetches"):
    rows: list[Fetch]


class Memories(_Rolled, frozen=True, tag="memories"):
    rows: list[MemorySample]


class Samples(_Rolled, frozen=True, tag="samples"):
    rows: list[Sample]


class Stages(_Rolled, frozen=True, tag="stages"):
    rows: list[MarkedStage]


class Modules(_Rolled, frozen=True, tag="modules"):
    rows: list[NotedModule]


class Labels(_Rolled, frozen=True, tag="labels"):
    rows: list[NotedLabels]


class Travels(_Rolled, frozen=True, tag="travels"):
    rows: list[NotedTravel]


RolledRows = NotedSteps | Nexts | Fetches | Memories | Samples | Stages | Modules | Labels | Travels


@dataclass
class RankRows:
    """Rows of each step of one rank and its loader workers, by time. Of a long job only the latest rows remain."""

    steps: list[NotedStep] = field(default_factory=list)
    nexts: list[Next] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    memories: list[MemorySample] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    stages: list[MarkedStage] = field(default_factory=list)
    worker_stages: dict[int, list[MarkedStage]] = field(default_factory=dict)
    """Stages of loader workers, by the worker's process id."""
    modules: dict[str, NotedModule] = field(default_factory=dict)
    """The latest sizes of each module, by its name."""
    labels: list[NotedLabels] = field(default_factory=list)
    travels: list[NotedTravel] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @property
    def dropped_steps(self) -> int:
        """Number of steps, from 1 to the last one, whose rows were dropped."""
        return self.steps[-1].step - len(self.steps) if self.steps else 0

    def drop_before(self, at_ns: Ns) -> None:
        """Drop the rows that began before `at_ns`."""
        self.steps = [row for row in self.steps if row.start_ns >= at_ns]
        self.nexts = [row for row in self.nexts if row.start_ns >= at_ns]
        self.fetches = [row for row in self.fetches if row.start_ns >= at_ns]
        self.memories = [row for row in self.memories if row.at_ns >= at_ns]
        self.samples = [row for row in self.samples if row.at_ns >= at_ns]
        self.stages = [row for row in self.stages if row.start_ns >= at_ns]
        self.labels = [row for row in self.labels if row.at_ns >= at_ns]
        self.travels = [row for row in self.travels if row.at_ns >= at_ns]
        for pid, stages in self.worker_stages.items():
            self.worker_stages[pid] = [row for row in stages if row.start_ns >= at_ns]

    def add(self, line: RolledRows, stages: list[MarkedStage]) -> None:
        """Add the rows of a line. Stages are added to the list `stages` of the process that wrote the line."""
        match line:
            case NotedSteps():
                self.steps += line.rows
            case Nexts():
                self.nexts += line.rows
            case Fetches():
                self.fetches += line.rows
            case Memories():
                self.memories += line.rows
            case Samples():
                self.samples += line.rows
            case Stages():
                stages += line.rows
            case Modules():
                self.modules |= {row.name: row for row in line.rows}
            case Labels():
                self.labels += line.rows
            case Travels():
                self.travels += line.rows
