"""The flight log of a rank: its snapshots in slow or hung steps, and how it ended.

This module imports neither numpy nor Arrow, as the launcher uses it during the job.
"""

import fcntl
import os
import re
from collections.abc import Iterable
from functools import cached_property
from math import prod
from pathlib import Path

import msgspec

from esprof.core.disk import open_regular, read_regular
from esprof.core.types import Bytes, Ns, Rank
from esprof.run.collective_names import ITEM_BYTES
from esprof.run.raw import names
from esprof.run.raw.reasons import SnapshotReason
from esprof.run.reading import memory_limit

_LIBRARY = re.compile(
    r"^<frozen |(^|/)(site-packages|dist-packages|lib/python\d[.\d]*|esprof/recorder/(injected|shared|hook))/"
    r"|(^|/)torch/(nn|distributed|autograd|optim|utils|_\w+)/"
)
"""Files that are not the job's own."""
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FATAL = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)
_FATAL_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


_STATES = {"T": "was stopped by a signal", "Z": "has ended", "D": "waits for a device and shows no stack"}
"""Description of a process without a stack, by the letter of its state."""


class StackFrame(msgspec.Struct, frozen=True, array_like=True):
    """A function on a stack, with its current line."""

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
    """A DataLoader worker that has, or may have, the batch that a rank waits for."""

    worker: int
    """Number in the loader."""
    pid: int
    state: str | None = None
    """State of its process, as in Linux: `T` was stopped, `Z` has ended."""
    dump: str | None = None
    """All its stacks, as Python's faulthandler writes them; None if unavailable."""

    @property
    def location(self) -> StackFrame | None:
        """Source location in the job's own code; None without a stack."""
        return own_frame(main_stack(self.dump)) if self.dump else None

    def __str__(self) -> str:
        where = f"is at {self.location}" if self.location else _STATES.get(self.state or "", "shows no stack")
        return f"worker {self.worker} of its data loader (process {self.pid}), which {where}"


class GroupMembers(msgspec.Struct, frozen=True, kw_only=True):
    """A process group on one rank. Its name is unique among its members only."""

    name: str
    description: str | None = None
    ranks: tuple[Rank, ...]


class EnteredCall(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that the rank entered, from PyTorch's Flight Recorder."""

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
    """Whether the call completed or was abandoned; also valid for gloo."""
    time_created_ns: Ns
    entered_at: StackFrame | None = None
    """The line of the job's own code that entered it; None without a stack."""

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
    """State of a rank at one time."""

    reason: SnapshotReason
    rank: Rank
    at_ns: Ns
    step: int
    """The running step; 0 before the end of the first step."""
    since_ns: Ns
    """Start of the step; for step 0, the first sign that the process will train."""
    usual_ns: Ns | None = None
    """Median duration (ns) of the recent plain steps."""
    p99_ns: Ns | None = None
    """99th percentile of the durations of recent plain steps, ns; None if there are too few."""
    error: str | None = None
    """The exception that ends the process, as Python prints it; None without one."""
    error_type: str | None = None
    """The name of that exception's type."""
    threads: tuple[StackThread, ...] = ()
    workers: tuple[Worker, ...] = ()
    """Workers of the data loader that the training thread waits for."""
    world_size: int | None = None
    """World size of the job, before the end of the first step; None later."""
    same_place_ns: Ns | None = None
    """How long the training thread was at the same source location, ns; None if not observed."""
    lingers: bool = False
    """Whether `same_place_ns` exceeded the limit."""
    stands_still: bool = False
    """Whether it waited all this time, for a collective or idle."""
    joins: bool = False
    """Whether the training thread was in `init_process_group`, before the end of the first step."""
    steps: tuple[tuple[int, Ns, Ns, str], ...] = ()
    """The latest steps: number, start, duration, phase."""
    groups: tuple[GroupMembers, ...] = ()
    calls: tuple[CallLog, ...] = ()

    @property
    def age_ns(self) -> Ns:
        """Duration of the step so far, ns."""
        return self.at_ns - self.since_ns

    @cached_property
    def location(self) -> StackFrame | None:
        """Source location of the training thread in the job's own code; None without a stack."""
        frames = next((thread.frames for thread in self.threads if thread.training), ())
        return own_frame(frames)

    @property
    def whereabouts(self) -> str | None:
        """Source location, and the DataLoader worker that the rank waits for; None without a stack."""
        if not self.workers or self.location is None:
            return str(self.location) if self.location else None
        others = f", or for another of {len(self.workers)}" if len(self.workers) > 1 else ""
        return f"{self.location}, waiting for {self.workers[0]}{others}"


class FlightLog(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The flight recording of one rank."""

    snapshots: tuple[Snapshot, ...] = ()
    """The snapshots, oldest first."""
    fatal: str | None = None
    """All stacks at the signal that ended the process, as Python's faulthandler writes them."""
    starting: bool = False
    """Whether the process has ended no step."""
    ended: bool = True
    """Whether the process recorded its end; True if unknown, so that no rank counts as dead without evidence."""
    alive: bool = False
    """Whether the process was alive when the log was read."""
    counts_steps: bool = True
    """Whether steps were counted; False for dumps of PyTorch's Flight Recorder."""

    @property
    def died(self) -> bool:
        """Whether the process is gone and did not record its end."""
        return not (self.ended or self.alive)

    @property
    def fault(self) -> str | None:
        """The fault that ended the process, if recorded: `Segmentation fault`, …"""
        found = _FATAL.search(self.fatal) if self.died and self.fatal else None
        return found.group(1) if found else None

    @property
    def was_terminated(self) -> bool:
        """Whether SIGTERM ended the process: it then recorded its stacks, but no fault."""
        return self.died and bool(self.fatal) and self.fault is None

    @property
    def location(self) -> StackFrame | None:
        """Source location at which a signal ended the process, in the job's own code if possible; None without a stack."""
        return own_frame(main_stack(self.fatal)) if self.died and self.fatal else None


_SNAPSHOT = msgspec.json.Decoder(Snapshot)  # Created once, as several threads use it: docs/decisions/0002-libraries.md.


def is_own(file: str) -> bool:
    """Whether a source file is the job's own, not one of Python or of an installed package."""
    return not _LIBRARY.search(file)


def own_frame(frames: Iterable[StackFrame]) -> StackFrame | None:
    """Return the innermost frame of the job's own code, or else the innermost of all; None without frames.

    `frames` must be ordered innermost first.
    """
    listed = list(frames)
    return next((frame for frame in listed if is_own(frame.file)), listed[0] if listed else None)


def main_stack(fatal: str) -> tuple[StackFrame, ...]:
    """Return the main thread's frames, innermost first, from output of faulthandler, which lists the oldest thread last."""
    stack: list[StackFrame] = []
    for line in fatal.splitlines():
        if _THREAD.match(line):
            stack = []
        elif match := _FATAL_FRAME.match(line):
            stack.append(StackFrame(match.group(1), int(match.group(2)), match.group(3)))
    return tuple(stack)


def read_flight(raw: Path, files: names.RankFiles, *, ended: bool) -> FlightLog:
    """Read the flight log of a rank from its `files` in `raw`. Unreadable snapshots are skipped."""
    snapshots = [snapshot for file in raw.glob(files.snapshots) if (snapshot := read_snapshot(file))]
    return FlightLog(
        snapshots=tuple(sorted(snapshots, key=lambda snapshot: snapshot.at_ns)),
        fatal=_text(raw / files.fatal) or None,
        ended=ended,
        alive=may_be_alive(raw / files.notes),
    )


def read_snapshot(file: Path) -> Snapshot | None:
    """Read one snapshot; None if the file is corrupt or was replaced by a newer one."""
    try:
        return _SNAPSHOT.decode(read_regular(file, memory_limit()))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def may_be_alive(notes: Path) -> bool:
    """Whether the process that writes the file `notes` is alive; True if unknown."""
    return is_locked(notes) is not False


def is_locked(notes: Path) -> bool | None:
    """Whether a process holds the lock of the file `notes`, as its writer does while alive; None if unknown, such as on a
    file system without locks."""
    try:
        with open(open_regular(notes), "rb") as file:
            # An empty file may not be locked yet, and this attempt could prevent its owner from locking it.
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
        return read_regular(file, memory_limit()).decode(errors="replace")
    except OSError:
        return ""
