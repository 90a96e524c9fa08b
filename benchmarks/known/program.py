"""What the machine runs: for each rank, what its CPU threads do, and what they ask of its GPU streams.

A program holds no durations of its own: each piece of work names a `Cost` by its place in `Program.costs`, so that the same
program runs with other durations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Ns = int
CostId = int

NOBODY = -1
"""The rank of a cost that belongs to a link."""


class Kind(StrEnum):
    """What takes the time, in the words of docs/reference/what-ifs.md."""

    CPU = "cpu"
    """A recorded operation or runtime call, or waking up after a wait."""
    GAP = "gap"
    """A CPU thread runs code of which nothing is recorded, or sleeps."""
    LOAD = "load"
    """A batch is made."""
    ALLOCATOR = "allocator"
    """The caching allocator asks the driver for memory or gives it back."""
    DELAY = "delay"
    """From the end of a launch until the kernel may begin: the driver and the device, no CPU thread."""
    KERNEL = "kernel"
    """Work on a GPU stream but transfers between GPUs and copies between host and device."""
    COPY = "copy"
    """A copy between host and device."""
    LATENCY = "latency"
    """The part of a transfer that does not depend on the bandwidth of the link."""
    BYTES = "bytes"
    """The part of a transfer that does."""
    HANDLING = "handling"
    """What a CPU does for a transfer between CPUs."""


@dataclass(slots=True)
class Cost:
    """`ns` is the duration as drawn, `excess` what of it a planted cause added."""

    kind: Kind
    rank: int
    name: str
    ns: Ns
    excess: Ns = 0


@dataclass(frozen=True, slots=True)
class GroupCollective:
    """What the members of a group do together: nobody's part ends before the last member has come to it."""

    members: tuple[int, ...]
    latency: CostId
    bytes: CostId
    handling: tuple[CostId, ...] = ()
    """Between CPUs: what each member's CPU does for it. The slowest counts."""


# What a call asks of GPU streams.


@dataclass(frozen=True, slots=True)
class Kernel:
    """Work of `cost`, or a part in the transfer of that number, in its turn on a stream."""

    stream: int
    name: str
    cost: CostId = -1
    transfer: int = -1
    category: str = "kernel"
    args: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """The event is done when all that was launched to the stream before is done."""

    event: int
    stream: int


@dataclass(frozen=True, slots=True)
class Wait:
    """What is launched to the stream later does not begin before the event is done."""

    stream: int
    event: int


# What a CPU thread does.


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
    """A runtime call: waits while a stream's queue is full, takes `cost`, then issues all commands; the first kernel may
    begin `delay` later."""

    name: str
    cost: CostId
    commands: tuple[Kernel | Record | Wait, ...]
    delay: CostId = -1
    category: str = "cuda_runtime"


@dataclass(frozen=True, slots=True)
class Sync:
    """A call that ends when an event, a stream or (without either) the whole device is done, and `cost` later."""

    name: str
    cost: CostId
    event: int = -1
    stream: int = -1


@dataclass(frozen=True, slots=True)
class Post:
    """Raise a flag, for a thread of the same rank to go on."""

    flag: int


@dataclass(frozen=True, slots=True)
class Await:
    """Until the flag is up."""

    flag: int


@dataclass(frozen=True, slots=True)
class Acquire:
    """Until nobody holds the lock; who came first gets it first."""

    lock: str


@dataclass(frozen=True, slots=True)
class Release:
    lock: str


@dataclass(frozen=True, slots=True)
class Meet:
    """A part in a transfer, on the CPU thread itself."""

    transfer: int


@dataclass(frozen=True, slots=True)
class Step:
    """The main thread begins this step, and so ends the one before; without a number it only ends that."""

    number: int | None


Instruction = Open | Close | Busy | Call | Sync | Post | Await | Acquire | Release | Meet | Step

MAIN, AUTOGRAD = "main", "autograd"


@dataclass(frozen=True)
class Program:
    """`ranks` holds the code of each thread of each rank by the thread's name; MAIN takes the steps."""

    ranks: tuple[Mapping[str, tuple[Instruction, ...]], ...]
    costs: tuple[Cost, ...]
    transfers: tuple[GroupCollective, ...]
    devices: tuple[str, ...] = ()
    """The name of each rank's GPU; none where the job computes on CPUs."""
    spacing_ns: Ns = 0
    """Least time between two kernels of one stream."""
    queue: int = 1024
    """Kernels that may wait or run on a stream before a launch has to wait."""

    @property
    def drawn(self) -> list[Ns]:
        """The durations with which the job ran."""
        return [cost.ns for cost in self.costs]
