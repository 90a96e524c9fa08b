"""What the job's processes note in `raw`, row by row, and what that comes to for one rank."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from esprof.core.types import Ns, Rank
from esprof.run.groups import MAX_RANKS
from esprof.run.raw.names import RankFiles, files_of
from esprof.run.raw.paced import PacedBy
from esprof.run.raw.reasons import LossReason

# Garbage may look like a row: what no table could hold is no row.
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Large = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Time = Annotated[Ns, msgspec.Meta(ge=0, lt=1 << 62)]
_Span = Annotated[Ns, msgspec.Meta(gt=-(1 << 62), lt=1 << 62)]

Phase = Literal["plain", "warmup", "timed", "export", "stack"]


class _NotedRow(msgspec.Struct, frozen=True, tag_field="kind"):
    """A row that is kept for good."""


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
    """What its torch cannot tell, in a sentence each."""


class Workers(_NotedRow, frozen=True, tag="workers"):
    """The worker processes that a DataLoader iterator started, in the order of their numbers."""

    process: str
    iterator: int
    start_ns: _Time
    pids: list[_Large]


class RecordedWindow(_NotedRow, frozen=True, tag="window"):
    phase: Literal["timed", "stack"]
    first: _Number
    last: _Number


class Caller(_NotedRow, frozen=True, tag="frame"):
    """A line that was seen on a stack, as number `number`, from 1 on, called by the line of number `caller`; 0 is none."""

    number: _Number
    caller: _Number
    file: str
    line: _Number
    function: str


class Paced(_NotedRow, frozen=True, tag="paced"):
    """What ends the steps from `since_ns` on. What was noted of steps before counts no longer."""

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
    """The job's own profiler has written what it collected from `start_ns` to `end_ns` to `path`. `calls` names, as
    the first step of a window does, what PyTorch knew of the collectives then."""

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
    """A window that was ordered for step `at`, of which the rank heard in `step`."""

    at: _Number
    step: _Number


class Lost(_NotedRow, frozen=True, tag="lost"):
    first: _Number
    phase: str
    reason: LossReason


class KnobRead(_NotedRow, frozen=True, tag="knob"):
    """How a knob stands, when steps begin to count."""

    name: str
    value: str | None
    reason: str


class Fault(_NotedRow, frozen=True, tag="fault"):
    """Something of the recorder ended or does not work, the rest goes on."""

    message: str


class Stopped(_NotedRow, frozen=True, tag="stopped"):
    """The recorder itself ended by a fault, the process goes on."""

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
    """A look at the training thread: it stands for the `dur_ns` before. `stack` is the number of its innermost line."""

    at_ns: _Time
    dur_ns: _Time
    cpu_ns: _Time
    step: _Number
    stack: _Number


class MarkedStage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the job itself marked as a stage of its work."""

    name: str
    start_ns: _Time
    end_ns: _Time


class _Rolled(msgspec.Struct, frozen=True, tag_field="kind"):
    """A line of rows of one kind, of which the oldest are dropped."""


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
    """The few rows that one rank noted for good, or one that was to be it and ended no step."""

    identity: RankIdentity
    starting: RankFiles | None = None
    """Its files, where it ended no step; None for a rank, whose files are named for it."""
    workers: list[Workers] = field(default_factory=list)
    windows: list[RecordedWindow] = field(default_factory=list)
    """Windows whose traces were kept, by first step."""
    callers: dict[int, Caller] = field(default_factory=dict)
    """The lines that were seen on stacks, by number."""
    paced: Paced | None = None
    counted_anew_ns: Ns | None = None
    """When steps were counted anew, as something better than before told them; None where they never were."""
    memory: Memory | None = None
    memory_limit: MemoryLimit | None = None
    profiler_taken: list[ProfilerTaken] = field(default_factory=list)
    jobs_traces: dict[str, JobsTrace] = field(default_factory=dict)
    """What the job's own profiler left, by path: of what it wrote over, the last."""
    clock: list[ClockReading] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    knobs: dict[str, KnobRead] = field(default_factory=dict)
    """By name; of what was read again, the last."""
    faults: list[str] = field(default_factory=list)
    stopped: bool = False
    """Whether the recorder ended before the process did: how that ended is not known."""
    ended: bool = False
    """Whether the process ended in good order."""
    unreadable: list[str] = field(default_factory=list)

    @property
    def rank(self) -> Rank:
        return self.identity.rank

    @property
    def files(self) -> RankFiles:
        return self.starting or files_of(self.rank)

    @property
    def job_profiled(self) -> bool:
        """Whether the job ran a profiler of its own when a window was to be taken."""
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
    """The rows that one rank and its loader workers noted at every step, by time. Of a long job only the newest are left."""

    steps: list[NotedStep] = field(default_factory=list)
    nexts: list[Next] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    memories: list[MemorySample] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    stages: list[MarkedStage] = field(default_factory=list)
    worker_stages: dict[int, list[MarkedStage]] = field(default_factory=dict)
    """Stages that loader workers noted, by the worker's process id."""
    unreadable: list[str] = field(default_factory=list)

    @property
    def dropped_steps(self) -> int:
        """Steps from 1 to the last one that have no row any more."""
        return self.steps[-1].step - len(self.steps) if self.steps else 0

    def drop_before(self, at_ns: Ns) -> None:
        """Drop what began before that."""
        self.steps = [row for row in self.steps if row.start_ns >= at_ns]
        self.nexts = [row for row in self.nexts if row.start_ns >= at_ns]
        self.fetches = [row for row in self.fetches if row.start_ns >= at_ns]
        self.memories = [row for row in self.memories if row.at_ns >= at_ns]
        self.samples = [row for row in self.samples if row.at_ns >= at_ns]
        self.stages = [row for row in self.stages if row.start_ns >= at_ns]
        for pid, stages in self.worker_stages.items():
            self.worker_stages[pid] = [row for row in stages if row.start_ns >= at_ns]

    def add(self, line: RolledRows, stages: list[MarkedStage]) -> None:
        """Add the rows of a line; its stages go into the list `stages` of the process that wrote it."""
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
