"""Programs of the machine: for each rank, the instructions of its CPU threads and the work that they launch to GPU streams.

A program holds no durations: each piece of work refers to a `Cost` by its index in `Program.costs`, so the same program can
run with other durations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Ns = int
CostId = int

NOBODY = -1
"""Rank of a cost that belongs to a link."""


class Kind(StrEnum):
    """Kind of work, in the words of docs/reference/what-ifs.md."""

    CPU = "cpu"
    """A recorded operation or runtime call, or waking up after a wait."""
    GAP = "gap"
    """A CPU thread runs unrecorded code, or sleeps."""
    LOAD = "load"
    """A batch is made."""
    ALLOCATOR = "allocator"
    """The caching allocator asks the driver for memory or gives it back."""
    DELAY = "delay"
    """Latency from the end of a launch until the kernel may begin: driver and device, no CPU thread."""
    KERNEL = "kernel"
    """Work on a GPU stream except communication and copies between host and device."""
    COPY = "copy"
    """A copy between host and device."""
    LATENCY = "latency"
    """Time of a collective that does not depend on the bandwidth of the link."""
    BYTES = "bytes"
    """Time of a collective that depends on the bandwidth of the link."""
    HANDLING = "handling"
    """CPU time of a collective between CPUs."""


@dataclass(slots=True)
class Cost:
    """`ns` is the drawn duration, `excess` the time of it that a planted cause added."""

    kind: Kind
    rank: int
    name: str
    ns: Ns
    excess: Ns = 0


@dataclass(frozen=True, slots=True)
class GroupCollective:
    """A collective: it ends on no member before the last member has arrived."""

    members: tuple[int, ...]
    latency: CostId
    bytes: CostId
    handling: tuple[CostId, ...] = ()
    """CPU time of each member if between CPUs; the maximum counts."""


# Commands of a call to GPU streams.


@dataclass(frozen=True, slots=True)
class Kernel:
    """Work of `cost` on a stream, or the rank's kernel of the collective of that number."""

    stream: int
    name: str
    cost: CostId = -1
    collective: int = -1
    category: str = "kernel"
    args: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """The event completes when all earlier work of the stream has completed."""

    event: int
    stream: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Later work of the stream does not begin before the event has completed."""

    stream: int
    event: int


# Instructions of a CPU thread.


@dataclass(frozen=True, slots=True)
class Open:
    """A recorded operation or annotation begins; it ends at its `Close`."""

    name: str
    category: str = "cpu_op"
    args: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Close:
    pass


@dataclass(frozen=True, slots=True)
class Busy:
    cost: CostId


@dataclass(frozen=True, slots=True)
class Call:
    """A runtime call: waits while a stream's queue is full, takes `cost`, then submits all commands; the first kernel may
    begin `delay` later."""

    name: str
    cost: CostId
    commands: tuple[Kernel | Record | Wait, ...]
    delay: CostId = -1
    category: str = "cuda_runtime"


@dataclass(frozen=True, slots=True)
class Sync:
    """A call that waits until an event, a stream or (without either) the device has completed, then takes `cost`."""

    name: str
    cost: CostId
    event: int = -1
    stream: int = -1


@dataclass(frozen=True, slots=True)
class Post:
    """Raise a flag, so that a waiting thread of the same rank continues."""

    flag: int


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until the flag is raised."""

    flag: int


@dataclass(frozen=True, slots=True)
class Acquire:
    """Wait for the lock, first come, first served."""

    lock: str


@dataclass(frozen=True, slots=True)
class Release:
    lock: str


@dataclass(frozen=True, slots=True)
class JoinCollective:
    """Take part in a collective on the CPU thread itself."""

    collective: int


@dataclass(frozen=True, slots=True)
class Step:
    """The main thread begins this step and so ends the previous one; without a number it only ends the previous one."""

    number: int | None


Instruction = Open | Close | Busy | Call | Sync | Post | Await | Acquire | Release | JoinCollective | Step

MAIN, AUTOGRAD = "main", "autograd"


@dataclass(frozen=True)
class Program:
    """`ranks` maps the name of each thread of each rank to its instructions; MAIN runs the steps."""

    ranks: tuple[Mapping[str, tuple[Instruction, ...]], ...]
    costs: tuple[Cost, ...]
    collectives: tuple[GroupCollective, ...]
    devices: tuple[str, ...] = ()
    """Name of each rank's GPU; empty if the job computes on CPUs."""
    spacing_ns: Ns = 0
    """Least time between two kernels of one stream."""
    queue: int = 1024
    """Number of outstanding kernels on a stream from which on a launch waits."""

    @property
    def drawn(self) -> list[Ns]:
        """Durations with which the job ran, ns."""
        return [cost.ns for cost in self.costs]
