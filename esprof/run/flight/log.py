"""What a rank's flight recorder left: where the rank was when a step was slow or stood still, and what ended it.

Light on purpose, without numpy or Arrow: the launcher reads this beside the running job.
"""

import fcntl
import os
import re
from collections.abc import Iterable
from functools import cached_property
from math import prod
from pathlib import Path

import msgspec

from esprof.core.types import Bytes, Ns, Rank
from esprof.run.collective_names import ITEM_BYTES
from esprof.run.raw import names
from esprof.run.raw.reasons import SnapshotReason

_LIBRARY = re.compile(
    r"^<frozen |(^|/)(site-packages|dist-packages|lib/python\d[.\d]*|esprof/recorder/(injected|shared|hook))/"
    r"|(^|/)torch/(nn|distributed|autograd|optim|utils|_\w+)/"
)
"""Files that are not the job's own."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FATAL = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)
_FATAL_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


_STATES = {"T": "was stopped by a signal", "Z": "has ended", "D": "waits for a device and shows no stack"}
"""What is said of a process that shows no stack, by the letter of its state."""


class StackFrame(msgspec.Struct, frozen=True, array_like=True):
    """A function of a stack, and the line that it is at."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}({self.line}): {self.function}"


class StackThread(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    training: bool
    frames: tuple[StackFrame, ...]
    """The frames of the stack, innermost first."""


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A loader's worker that has the batch which a rank waits for, or may have it."""

    worker: int
    """Its number in the loader."""
    pid: int
    state: str | None = None
    """The letter that Linux gives the state of its process: `T` was stopped, `Z` has ended."""
    dump: str | None = None
    """All its stacks, as Python's faulthandler writes them; None where it did not show them."""

    @property
    def location(self) -> StackFrame | None:
        """Where it is in the job's own code; None where it shows no stack."""
        return own_frame(main_stack(self.dump)) if self.dump else None

    def __str__(self) -> str:
        where = f"is at {self.location}" if self.location else _STATES.get(self.state or "", "shows no stack")
        return f"worker {self.worker} of its data loader (process {self.pid}), which {where}"


class GroupMembers(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as one rank knows it. Its name is unique among its members, not beyond them."""

    name: str
    description: str | None = None
    ranks: tuple[Rank, ...]


class EnteredCall(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that the rank entered, as PyTorch's Flight Recorder has it."""

    process_group: tuple[str, str]
    """Name and description of the process group."""
    collective_seq_id: int
    profiling_name: str
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    is_p2p: bool = False
    state: str
    """`scheduled`, `started` or `completed`; a call of gloo stays at `scheduled`."""
    retired: bool
    """Whether the call is over or was given up; gloo tells this, too."""
    time_created_ns: Ns
    entered_at: StackFrame | None = None
    """The line of the job's own code that entered it; None where its stack was not taken."""

    @property
    def backend(self) -> str:
        return self.profiling_name.partition(":")[0]

    @property
    def collective(self) -> str:
        return self.profiling_name.partition(":")[2] or self.profiling_name

    @property
    def is_over(self) -> bool:
        return self.retired or self.state == "completed"

    @property
    def elements(self) -> int:
        return sum(prod(sizes) for sizes in self.input_sizes)

    @property
    def bytes(self) -> Bytes | None:
        """Bytes of the call's inputs; None for an element type of unknown size."""
        items = [ITEM_BYTES.get(dtype.lower()) for dtype in self.input_dtypes]
        if None in items or len(items) != len(self.input_sizes):
            return None
        return sum(prod(sizes) * item for sizes, item in zip(self.input_sizes, items, strict=True) if item)


class CallLog(msgspec.Struct, frozen=True):
    """One of PyTorch's Flight Recorders: the latest calls, oldest first."""

    entries: tuple[EnteredCall, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One look at a rank."""

    reason: SnapshotReason
    rank: Rank
    at_ns: Ns
    step: int
    """The running step; 0 before the first step's end."""
    since_ns: Ns
    """When the step began; of step 0, when the process was first seen to be going to train."""
    usual_ns: Ns | None = None
    """Median duration (ns) of the recent plain steps."""
    p99_ns: Ns | None = None
    """99th percentile (ns) of the durations of recent plain steps; None where they are too few."""
    error: str | None = None
    """The exception that ends the process, as Python prints it; None where none does."""
    error_type: str | None = None
    """The name of that exception's type."""
    threads: tuple[StackThread, ...] = ()
    workers: tuple[Worker, ...] = ()
    """The workers of the data loader that the training thread waits for, as far as it does."""
    world_size: int | None = None
    """How many ranks the job is to have, before the first step's end; None later."""
    same_place_ns: Ns | None = None
    """For how long the training thread had come to no new place in the code; None where nobody had looked."""
    lingers: bool = False
    """Whether that was long."""
    stands_still: bool = False
    """Whether it waited all the while: for a collective, or without doing anything."""
    joins: bool = False
    """Whether the training thread was in `init_process_group`, before the first step's end."""
    steps: tuple[tuple[int, Ns, Ns, str], ...] = ()
    """The latest steps: number, start, duration, phase."""
    groups: tuple[GroupMembers, ...] = ()
    calls: tuple[CallLog, ...] = ()

    @property
    def age_ns(self) -> Ns:
        """How long the step had lasted."""
        return self.at_ns - self.since_ns

    @cached_property
    def location(self) -> StackFrame | None:
        """Where the training thread is in the job's own code; None where it has no stack."""
        frames = next((thread.frames for thread in self.threads if thread.training), ())
        return own_frame(frames)

    @property
    def whereabouts(self) -> str | None:
        """Where the rank is, and the loader's worker that it waits for; None where it has no stack."""
        if not self.workers or self.location is None:
            return str(self.location) if self.location else None
        others = f", or for another of {len(self.workers)}" if len(self.workers) > 1 else ""
        return f"{self.location}, waiting for {self.workers[0]}{others}"


class FlightLog(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All that the flight recorder left of one rank."""

    snapshots: tuple[Snapshot, ...] = ()
    """The snapshots, oldest first."""
    fatal: str | None = None
    """All stacks at the signal that ended the process, as Python's faulthandler writes them."""
    starting: bool = False
    """Whether the process ended no step."""
    ended: bool = True
    """Whether the process noted that it ended; True where the recording cannot tell, so that no rank passes for dead."""
    alive: bool = False
    """Whether the process was still there when the log was read."""
    counts_steps: bool = True
    """Whether steps were counted: a dump of PyTorch's Flight Recorder knows of none."""

    @property
    def died(self) -> bool:
        """Whether the process is gone without having noted its end."""
        return not (self.ended or self.alive)

    @property
    def fault(self) -> str | None:
        """The fault that ended the process, as far as it could note it: `Segmentation fault`, …"""
        found = _FATAL.search(self.fatal) if self.died and self.fatal else None
        return found.group(1) if found else None

    @property
    def was_terminated(self) -> bool:
        """Whether SIGTERM ended the process: it noted its stacks then, but no fault."""
        return self.died and bool(self.fatal) and self.fault is None

    @property
    def location(self) -> StackFrame | None:
        """Where a signal ended the process, in the job's own code if possible; None where no stack is known."""
        return own_frame(main_stack(self.fatal)) if self.died and self.fatal else None


_SNAPSHOT = msgspec.json.Decoder(Snapshot)  # Made here, once: docs/decisions/0002-libraries.md.


def own_frame(frames: Iterable[StackFrame]) -> StackFrame | None:
    """The innermost frame of the job's own code, or else the innermost of all; None where there is no frame.

    `frames` come innermost first.
    """
    listed = list(frames)
    return next((frame for frame in listed if not _LIBRARY.search(frame.file)), listed[0] if listed else None)


def main_stack(fatal: str) -> tuple[StackFrame, ...]:
    """The frames of the main thread, innermost first, in what faulthandler wrote: it lists the oldest thread last."""
    stack: list[StackFrame] = []
    for line in fatal.splitlines():
        if _THREAD.match(line):
            stack = []
        elif match := _FATAL_FRAME.match(line):
            stack.append(StackFrame(match.group(1), int(match.group(2)), match.group(3)))
    return tuple(stack)


def read_flight(raw: Path, files: names.RankFiles, *, ended: bool) -> FlightLog:
    """What a rank has left in its `files` in `raw` up to now. A snapshot that cannot be read is left out."""
    snapshots = [snapshot for file in raw.glob(files.snapshots) if (snapshot := read_snapshot(file))]
    return FlightLog(
        snapshots=tuple(sorted(snapshots, key=lambda snapshot: snapshot.at_ns)),
        fatal=_text(raw / files.fatal) or None,
        ended=ended,
        alive=may_be_alive(raw / files.notes),
    )


def read_snapshot(file: Path) -> Snapshot | None:
    """One snapshot; None where the file is broken, or was replaced by a newer one."""
    try:
        return _SNAPSHOT.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def may_be_alive(notes: Path) -> bool:
    """Whether the process that writes the file `notes` is there. True also where that is unknown."""
    return is_locked(notes) is not False


def is_locked(notes: Path) -> bool | None:
    """Whether a process holds the lock of the file `notes`, which its writer keeps for life; None where that is unknown,
    as on a file system without locks."""
    try:
        with notes.open("rb") as file:
            # An empty file may not be locked yet, and to try would keep its owner from doing so.
            if not os.fstat(file.fileno()).st_size:
                return None
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
