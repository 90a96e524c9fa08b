"""Rows that the job's processes write to `raw`, and their collection for one rank."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from esprof.core.types import Large, Ns, Number, Rank, Span, Time
from esprof.run.groups import MAX_RANKS
from esprof.run.raw.names import RankFiles, files_of
from esprof.run.raw.paced import PacedBy
from esprof.run.raw.reasons import LossReason


class _NotedRow(msgspec.Struct, frozen=True, tag_field="kind"):
    """A permanent row."""


class RankIdentity(_NotedRow, frozen=True, tag="rank"):
    rank: Annotated[Rank, msgspec.Meta(ge=0, lt=MAX_RANKS)]
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
    host: str
    pid: Large
    device: str
    accelerators: Number
    versions: dict[str, str]
    cpus: list[Number] = []
    gpu_cpus: list[Number] = []
    cpu_quota: Annotated[float, msgspec.Meta(gt=0)] | None = None
    threads: Number | None = None
    lacks: list[str] = []
    """Limitations of its torch version, one sentence each."""


class Workers(_NotedRow, frozen=True, tag="workers"):
    """The worker processes that a DataLoader iterator started, ordered by worker number."""

    process: str
    iterator: int
    start_ns: Time
    pids: list[Large]


class RecordedWindow(_NotedRow, frozen=True, tag="window"):
    phase: Literal["timed", "stack"]
    first: Number
    last: Number


class Caller(_NotedRow, frozen=True, tag="frame"):
    """A line on a sampled stack. Its `number` counts from 1; `caller` is the number of the calling line, 0 for none."""

    number: Number
    caller: Number
    file: str
    line: Number
    function: str


class Paced(_NotedRow, frozen=True, tag="paced"):
    """The event that ends steps from `since_ns` on. Earlier notes of steps are void."""

    by: PacedBy
    since_ns: Time


class Memory(_NotedRow, frozen=True, tag="memory"):
    peak: Large
    of: str


class MemoryLimit(_NotedRow, frozen=True, tag="memory-limit"):
    limit: Large
    of: str


class ModelSize(_NotedRow, frozen=True, tag="model-size"):
    """Bytes that the process held at the end of a step, as `esprof.run.run.ModelBytes`."""

    parameters: Large
    gradients: Large
    buffers: Large
    optimizer: Large
    buckets: Large
    parameter_sizes: list[Large]


class ProfilerTaken(_NotedRow, frozen=True, tag="profiler-taken"):
    step: Number


class JobsTrace(_NotedRow, frozen=True, tag="jobs-trace"):
    """The job's own profiler wrote its events from `start_ns` to `end_ns` to `path`. `calls` identifies the dump of
    PyTorch's flight recorder, as the first step of a window does."""

    path: str
    start_ns: Time
    end_ns: Time
    calls: Number | None = None


class ClockReading(_NotedRow, frozen=True, tag="clock"):
    """This process's clock against that of rank 0, read by an exchange that took `rtt_ns`."""

    at_ns: Time
    offset_ns: Span
    rtt_ns: Time


class Missed(_NotedRow, frozen=True, tag="missed"):
    """A window requested for step `at`; the rank received the request in `step`, too late."""

    at: Number
    step: Number


class Lost(_NotedRow, frozen=True, tag="lost"):
    first: Number
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
    step: Number


RankRow = (
    RankIdentity
    | Workers
    | RecordedWindow
    | Caller
    | Paced
    | Memory
    | MemoryLimit
    | ModelSize
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
    model: ModelSize | None = None
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
            case ModelSize():
                self.model = row
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
