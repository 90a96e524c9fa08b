"""Rows that the job's processes write to `raw`, and their collection for one rank."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from esprof.core.types import Ns, Rank
from esprof.run.groups import MAX_RANKS
from esprof.run.raw.names import RankFiles, files_of
from esprof.run.raw.paced import PacedBy
from esprof.run.raw.reasons import LossReason

# A corrupt line may look like a row: reject values that no table could hold.
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Large = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Time = Annotated[Ns, msgspec.Meta(ge=0, lt=1 << 62)]
_Span = Annotated[Ns, msgspec.Meta(gt=-(1 << 62), lt=1 << 62)]

Phase = Literal["plain", "warmup", "timed", "export", "stack"]


class _NotedRow(msgspec.Struct, frozen=True, tag_field="kind"):
    """A permanent row."""


class RankIdentity(_NotedRow, frozen=True, tag="rank"):
    rank: Annotated[Rank, msgspec.Meta(ge=0, lt=MAX_RANKS)]
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    host: str
    pid: _Large
    device: str
    accelerators: _Number
    versions: dict[str, str]
    cpus: list[_Number] = []
    cpu_quota: Annotated[float, msgspec.Meta(gt=0)] | None = None
    threads: _Number | None = None
    lacks: list[str] = []
    """Limitations of its torch version, one sentence each."""


class Workers(_NotedRow, frozen=True, tag="workers"):
    """The worker processes that a DataLoader iterator started, ordered by worker number."""

    process: str
    iterator: int
    start_ns: _Time
    pids: list[_Large]


class RecordedWindow(_NotedRow, frozen=True, tag="window"):
    phase: Literal["timed", "stack"]
    first: _Number
    last: _Number


class Caller(_NotedRow, frozen=True, tag="frame"):
    """A line on a sampled stack. Its `number` counts from 1; `caller` is the number of the calling line, 0 for none."""

    number: _Number
    caller: _Number
    file: str
    line: _Number
    function: str


class Paced(_NotedRow, frozen=True, tag="paced"):
    """The event that ends steps from `since_ns` on. Earlier notes of steps are void."""

    by: PacedBy
    since_ns: _Time


class Memory(_NotedRow, frozen=True, tag="memory"):
    peak: _Large
    of: str


class MemoryLimit(_NotedRow, frozen=True, tag="memory-limit"):
    limit: _Large
    of: str


class ProfilerTaken(_NotedRow, frozen=True, tag="profiler-taken"):
    step: _Number


class JobsTrace(_NotedRow, frozen=True, tag="jobs-trace"):
    """The job's own profiler wrote its events from `start_ns` to `end_ns` to `path`. `calls` identifies the dump of
    PyTorch's flight recorder, as the first step of a window does."""

    path: str
    start_ns: _Time
    end_ns: _Time
    calls: _Number | None = None


class ClockReading(_NotedRow, frozen=True, tag="clock"):
    """This process's clock against that of rank 0, read by an exchange that took `rtt_ns`."""

    at_ns: _Time
    offset_ns: _Span
    rtt_ns: _Time


class Missed(_NotedRow, frozen=True, tag="missed"):
    """A window requested for step `at`; the rank received the request in `step`, too late."""

    at: _Number
    step: _Number


class Lost(_NotedRow, frozen=True, tag="lost"):
    first: _Number
    phase: str
    reason: LossReason


class KnobRead(_NotedRow, frozen=True, tag="knob"):
    """Value of a knob when the counting of steps starts."""

    name: str
    value: str | None
    reason: str


class Fault(_NotedRow, frozen=True, tag="fault"):
    """A component of the recorder failed; the others continue."""

    message: str


class Stopped(_NotedRow, frozen=True, tag="stopped"):
    """The recorder failed; the process continues."""

    message: str


class End(_NotedRow, frozen=True, tag="end"):
    step: _Number


RankRow = (
    RankIdentity
    | Workers
    | RecordedWindow
    | Caller
    | Paced
    | Memory
    | MemoryLimit
    | ProfilerTaken
    | JobsTrace
    | ClockReading
    | Missed
    | Lost
    | KnobRead
    | Fault
    | Stopped
    | End
)


class NotedStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    step: _Number
    start_ns: _Time
    dur_ns: _Time
    phase: Phase
    cpu_ns: _Time | None = None
    ready_ns: _Time | None = None
    throttled_ns: _Time | None = None


class Next(msgspec.Struct, frozen=True, array_like=True, gc=False):
    iterator: _Number
    epoch: _Number
    batch: _Large | None
    worker: _Number | None
    workers: _Number
    prefetch: _Number | None
    start_ns: _Time
    end_ns: _Time
    samples: _Large | None
    tokens: _Large | None
    training: bool
    cpu_ns: _Time | None = None
    padding: _Large | None = None


class Fetch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pid: _Large
    worker: _Number
    epoch: _Number
    batch: _Large | None
    start_ns: _Time
    end_ns: _Time
    samples: _Large | None
    cpu_ns: _Time | None = None


class MemorySample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    step: _Number
    phase: str | None
    at_ns: _Time
    allocated: _Large | None
    reserved: _Large | None
    peak_allocated: _Large | None
    rss: _Large | None


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stack sample of the training thread, which represents the preceding `dur_ns`. `stack` is the number of the innermost
    line."""

    at_ns: _Time
    dur_ns: _Time
    cpu_ns: _Time
    step: _Number
    stack: _Number


class MarkedStage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stage that the job marked with `esprof.stage`."""

    name: str
    start_ns: _Time
    end_ns: _Time


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


RolledRows = NotedSteps | Nexts | Fetches | Memories | Samples | Stages


@dataclass
class RankNotes:
    """Permanent notes of one rank, or of a process with this rank that ended no step."""

    identity: RankIdentity
    starting: RankFiles | None = None
    """Its files if it ended no step; None otherwise, as the rank then determines the file names."""
    workers: list[Workers] = field(default_factory=list)
    windows: list[RecordedWindow] = field(default_factory=list)
    """Windows with a retained trace, by first step."""
    callers: dict[int, Caller] = field(default_factory=dict)
    """Lines on sampled stacks, by number."""
    paced: Paced | None = None
    counted_anew_ns: Ns | None = None
    """When the counting of steps restarted because a more reliable end of steps was found; None if it never did."""
    memory: Memory | None = None
    memory_limit: MemoryLimit | None = None
    profiler_taken: list[ProfilerTaken] = field(default_factory=list)
    jobs_traces: dict[str, JobsTrace] = field(default_factory=dict)
    """Traces of the job's own profiler, by path; the last one for each path."""
    clock: list[ClockReading] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    knobs: dict[str, KnobRead] = field(default_factory=dict)
    """The latest reading of each knob, by name."""
    faults: list[str] = field(default_factory=list)
    stopped: bool = False
    """Whether the recorder ended before the process, so that the end of the process is unknown."""
    ended: bool = False
    """Whether the process ended normally."""
    unreadable: list[str] = field(default_factory=list)

    @property
    def rank(self) -> Rank:
        return self.identity.rank

    @property
    def files(self) -> RankFiles:
        return self.starting or files_of(self.rank)

    @property
    def job_profiled(self) -> bool:
        """Whether the job ran its own profiler when a window was due."""
        return bool(self.profiler_taken) or any(one.reason is LossReason.JOBS_PROFILER for one in self.lost)

    def taken(self, phase: str) -> list[RecordedWindow]:
        return [window for window in self.windows if window.phase == phase]

    def add(self, row: RankRow) -> None:
        match row:
            case Workers():
                self.workers.append(row)
            case RecordedWindow():
                self.windows.append(row)
            case Caller():
                self.callers[row.number] = row
            case Paced():
                self._pace(row)
            case Memory():
                self.memory = row
            case MemoryLimit():
                self.memory_limit = row
            case ProfilerTaken():
                self.profiler_taken.append(row)
            case JobsTrace():
                self.jobs_traces[row.path] = row
            case ClockReading():
                self.clock.append(row)
            case Missed():
                self.missed.append(row)
            case Lost():
                self.lost.append(row)
            case KnobRead():
                self.knobs[row.name] = row
            case Fault():
                self.faults.append(row.message)
            case Stopped():
                self.faults.append(row.message)
                self.stopped = True
            case End():
                self.ended = True

    def _pace(self, row: Paced) -> None:
        if self.paced is not None:
            self.counted_anew_ns = row.since_ns
            for of_steps in (self.windows, self.profiler_taken, self.missed, self.lost):
                of_steps.clear()
            self.jobs_traces.clear()
        self.paced = row


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
