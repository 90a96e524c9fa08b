"""Read dumps of PyTorch's Flight Recorder, one file per rank: a pickle from torch, or JSON from its debug server.

A dump has the collectives that the rank entered; a pickle also has their stacks. It contains neither its time nor steps.
Depending on backend and version of torch, it has all members of a process group or none.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from esprof.core.errors import InputError
from esprof.core.types import Ns, Rank
from esprof.run.flight.log import CallLog, EnteredCall, GroupMembers, Snapshot, StackFrame, StackThread, own_frame
from esprof.run.flight.plain_pickle import NotPlain, read_plain_pickle
from esprof.run.groups import parse_ranks
from esprof.run.raw.reasons import SnapshotReason

_HEAD = re.compile(
    rb"\x80\x02\}\(X\x07\0\0\0version|"
    rb'\s*\{\s*"(version|comm_lib_version|nccl_version|nccl_comm_state|entries|pg_config)"'
)
HEAD_BYTES = 64
"""Number of first bytes of a file that identify a dump."""
_AGAIN = "Copy it again, or have torch write it again (docs/how-to/inputs.md)."
_WORLD = "default_pg"
"""Description of the process group of all ranks."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Sizes = tuple[tuple[_Count, ...], ...]


class _Frame(msgspec.Struct, frozen=True):
    name: str
    filename: str
    line: int


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    process_group: tuple[str, str]
    collective_seq_id: _Count
    profiling_name: str
    state: str
    retired: bool
    time_created_ns: _Count
    input_sizes: _Sizes = ()
    input_dtypes: tuple[str, ...] = ()
    is_p2p: bool = False
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    frames: tuple[_Frame, ...] = ()

    @property
    def stack(self) -> tuple[StackFrame, ...]:
        return tuple(StackFrame(frame.filename, frame.line, frame.name) for frame in self.frames)

    def call(self) -> EnteredCall:
        return EnteredCall(
            process_group=self.process_group,
            collective_seq_id=self.collective_seq_id,
            profiling_name=self.profiling_name,
            input_sizes=self.input_sizes,
            input_dtypes=self.input_dtypes,
            is_p2p=self.is_p2p,
            state=self.state,
            retired=self.retired,
            time_created_ns=self.time_created_ns,
            entered_at=own_frame(self.stack),
        )


class _Members(msgspec.Struct, frozen=True):
    name: str
    desc: str = ""
    ranks: str | list[int] = ""


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """One recorder's dump of one rank."""

    version: str
    pg_config: dict[str, _Members] = {}
    pg_status: dict[str, Any] = {}
    entries: tuple[_Entry, ...] = ()

    @property
    def backends(self) -> set[str]:
        return {entry.call().backend for entry in self.entries}

    @property
    def latest_ns(self) -> Ns:
        """The latest time in the dump; 0 without any."""
        times = (
            (one.time_created_ns, one.time_discovered_started_ns or 0, one.time_discovered_completed_ns or 0)
            for one in self.entries
        )
        return max((max(each) for each in times), default=0)

    @property
    def members(self) -> dict[str, GroupMembers]:
        """The groups with known ranks, by name. A group without a name, as gloo writes it, is ignored."""
        named = ((one.name, one.desc, parse_ranks(one.ranks)) for one in self.pg_config.values())
        return {
            name: GroupMembers(name=name, description=description or None, ranks=ranks)
            for name, description, ranks in named
            if name and ranks
        }

    @property
    def listed_ranks(self) -> set[Rank]:
        """All ranks in the groups of the dump."""
        return {rank for one in self.pg_config.values() for rank in parse_ranks(one.ranks) or ()}

    @property
    def groups_used(self) -> dict[str, str]:
        """Map the name of each group that the rank used, or is a member of, to its description."""
        return dict.fromkeys(self.pg_status, "") | dict(entry.process_group for entry in self.entries)


def is_dump(head: bytes) -> bool:
    """Whether a file that begins with `head` (HEAD_BYTES of it) is a dump."""
    return _HEAD.match(head) is not None


def read_dump(path: Path, data: bytes) -> Dump:
    """Parse the content `data` of the file `path`. Raises InputError if it is not a valid dump."""
    try:
        if data[:1] == b"\x80":
            return msgspec.convert(read_plain_pickle(data), Dump)
        return msgspec.json.decode(data, type=Dump)
    except NotPlain as error:
        raise InputError(str(error), path=path, remedy=_AGAIN) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"is not a dump of the Flight Recorder: {error}", path=path, remedy=_AGAIN) from error


def snapshots_of(
    dumps: Mapping[Rank, Sequence[Dump]], seen_ns: Mapping[Rank, Ns], stacks: Mapping[Rank, Sequence[StackFrame]]
) -> tuple[dict[Rank, Snapshot], list[str]]:
    """Return a snapshot per rank, and the names of groups with unknown members.

    `seen_ns` is the time of each rank's dumps, `stacks` the stack of its main thread at that time, innermost frame first.
    Members of an unknown group are the ranks that used it; of the default group, all ranks.
    """
    named: dict[str, dict[str, GroupMembers]] = {}
    for of_rank in dumps.values():
        for dump in of_rank:
            for name, group in dump.members.items():
                named.setdefault(name, {})[",".join(map(str, group.ranks))] = group
    world = _world(dumps)
    guessed = {}
    for name, description, users in _uses(dumps):
        if name not in named:
            ranks = world if description == _WORLD or name == "0" else tuple(sorted(users))
            guessed[name] = GroupMembers(name=name, description=description or None, ranks=ranks)
    known = [group for groups in named.values() for group in groups.values()] + list(guessed.values())
    snapshots = {
        rank: _snapshot(
            rank, of_rank, [group for group in known if rank in group.ranks], seen_ns[rank], stacks.get(rank)
        )
        for rank, of_rank in dumps.items()
    }
    return snapshots, sorted(name for name, group in guessed.items() if group.ranks != world)


def _world(dumps: Mapping[Rank, Sequence[Dump]]) -> tuple[Rank, ...]:
    listed = {rank for of_rank in dumps.values() for dump in of_rank for rank in dump.listed_ranks}
    return tuple(range(max(listed | set(dumps)) + 1))


def _uses(dumps: Mapping[Rank, Sequence[Dump]]) -> Iterable[tuple[str, str, set[Rank]]]:
    """Return name, description and users of each group."""
    descriptions: dict[str, str] = {}
    users: dict[str, set[Rank]] = {}
    for rank, of_rank in dumps.items():
        for dump in of_rank:
            for name, description in dump.groups_used.items():
                descriptions[name] = description or descriptions.get(name, "")
                users.setdefault(name, set()).add(rank)
    return ((name, descriptions[name], users[name]) for name in users)


def _snapshot(
    rank: Rank, dumps: Sequence[Dump], groups: list[GroupMembers], at_ns: Ns, stack: Sequence[StackFrame] | None
) -> Snapshot:
    """Return the snapshot of one rank. Without a stack, that of its last call is used if this has not completed."""
    last = max((one for dump in dumps for one in dump.entries), key=lambda one: one.time_created_ns, default=None)
    if not stack and last is not None and not last.call().is_over:
        stack = last.stack
    return Snapshot(
        reason=SnapshotReason.HANG,
        rank=rank,
        at_ns=at_ns,
        step=0,
        since_ns=min((one.time_created_ns for dump in dumps for one in dump.entries), default=at_ns),
        threads=(StackThread(name="MainThread", training=True, frames=tuple(stack)),) if stack else (),
        groups=tuple(groups),
        calls=tuple(CallLog(tuple(entry.call() for entry in dump.entries)) for dump in dumps),
    )
