"""What PyTorch's own Flight Recorder dumps of a rank, as a file a rank: the pickle that torch writes, or the JSON that its
debug server gives.

A dump has the collectives that the rank entered, and of a pickle the stacks that entered them. It tells neither when it was
taken nor of steps; of process groups it tells, by backend and version of torch, all members or none.
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
"""Bytes at the beginning of a file that tell a dump."""
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
        """The latest time in the dump; 0 where there is none."""
        times = (
            (one.time_created_ns, one.time_discovered_started_ns or 0, one.time_discovered_completed_ns or 0)
            for one in self.entries
        )
        return max((max(each) for each in times), default=0)

    @property
    def members(self) -> dict[str, GroupMembers]:
        """The groups whose ranks the dump tells, by name. gloo tells those of one group without its name: left out."""
        named = ((one.name, one.desc, parse_ranks(one.ranks)) for one in self.pg_config.values())
        return {
            name: GroupMembers(name=name, description=description or None, ranks=ranks)
            for name, description, ranks in named
            if name and ranks
        }

    @property
    def ranks_told(self) -> set[Rank]:
        """All ranks that the dump tells of, in whatever group."""
        return {rank for one in self.pg_config.values() for rank in parse_ranks(one.ranks) or ()}

    @property
    def groups_used(self) -> dict[str, str]:
        """Name -> description of the groups in which the rank entered something, or which it is known to be in."""
        return dict.fromkeys(self.pg_status, "") | dict(entry.process_group for entry in self.entries)


def looks_like_a_dump(head: bytes) -> bool:
    """Whether a file that begins with `head` (HEAD_BYTES of it) is a dump."""
    return _HEAD.match(head) is not None


def read_dump(path: Path, data: bytes) -> Dump:
    """The dump that the file at `path` holds as `data`. Raises InputError where it is broken, or is no dump."""
    try:
        if data[:1] == b"\x80":
            return msgspec.convert(read_plain_pickle(data), Dump)
        return msgspec.json.decode(data, type=Dump)
    except NotPlain as error:
        raise InputError(str(error), path=path, remedy=_AGAIN) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"is no dump of the Flight Recorder: {error}", path=path, remedy=_AGAIN) from error


def snapshots_of(
    dumps: Mapping[Rank, Sequence[Dump]], seen_ns: Mapping[Rank, Ns], stacks: Mapping[Rank, Sequence[StackFrame]]
) -> tuple[dict[Rank, Snapshot], list[str]]:
    """A snapshot a rank, and the names of the groups whose members no dump tells.

    `seen_ns` is when each rank's dumps were taken, `stacks` where its main thread was then, innermost frame first. Members
    of a group that no dump tells are those that entered something in it; those of the default group are all ranks.
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
    listed = {rank for of_rank in dumps.values() for dump in of_rank for rank in dump.ranks_told}
    return tuple(range(max(listed | set(dumps)) + 1))


def _uses(dumps: Mapping[Rank, Sequence[Dump]]) -> Iterable[tuple[str, str, set[Rank]]]:
    """Name, description and users of each group."""
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
    """Where no stack was taken, a rank whose last call is not over is taken to be where it entered it."""
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
