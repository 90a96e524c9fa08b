"""Which collective calls of different ranks are one: matching, clock offsets from their ends, and transfer times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esprof.replay.lookup import numbered, occurrences, pairs
from esprof.replay.rank_events import Collectives, RankEvents, members_of
from esprof.trace.clocks import Offset, align
from esprof.trace.collectives import collective_word
from esprof.trace.groups import group_name
from esprof.trace.run import Run
from esprof.types import Rank


@dataclass(frozen=True)
class Met:
    """What is known of the collective calls of one rank, an entry for each of `RankEvents.collectives`."""

    number: np.ndarray
    """Number of the collective, the same on all ranks; -1 where it was not matched."""
    transfer_ns: np.ndarray
    """What the call took once all members had come; 0 where it was not matched."""
    shared: np.ndarray
    """bool: there are other members. Without their times, waiting and transfer are one."""


@dataclass(frozen=True)
class Calls:
    """Collective calls of all ranks, rank by rank, an entry for each."""

    rank: np.ndarray
    """Position of the rank in the run."""
    identity: np.ndarray
    """The same for calls that may be one: of the same group, and sequence number or kind and step."""
    members: np.ndarray
    """How many ranks the group has, those that the run lacks among them; 0 where the caller is none of them."""
    is_p2p: np.ndarray
    bytes: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray


def calls_of(run: Run, events: Sequence[RankEvents]) -> Calls:
    """The collective calls of all ranks.

    Identity is (group, sequence number) where the trace has it. Else it is (group, kind of collective, step that launched
    it). The kind is the kernel's own word, not the call's: a launch before the window is not there to tell what it was for.
    """
    groups: dict[str, int] = {}
    kinds: dict[str, int] = {}
    parts = []
    for rank, mine in enumerate(events):
        rows = mine.collectives
        group, members = _groups(run, mine.rank, rows, groups)
        kind, turn = _turns(mine, rows, kinds)
        times = (mine.start[rows.row], mine.end[rows.row])
        parts.append((np.full(len(rows.row), rank), group, kind, turn, members, rows.is_p2p, rows.bytes, *times))
    rank_at, group, kind, turn, *others = (np.concatenate(column) for column in zip(*parts, strict=True))
    within = pairs(numbered(pairs(group, kind))[0], numbered(turn)[0])
    return Calls(rank_at, numbered(within)[0], *others)


def _groups(run: Run, rank: Rank, rows: Collectives, known: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """(number of the group, how many members it has) of each call. Where the trace names none, it is that of all ranks."""
    numbers, sizes = [], []
    for name in rows.groups:
        members = members_of(run, name)
        numbers.append(known.setdefault(name or group_name(range(run.world_size)), len(known)))
        sizes.append(len(members) if rank in members else 0)
    return np.array(numbers)[rows.group], np.array(sizes)[rows.group]


def _turns(events: RankEvents, rows: Collectives, known: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """(number of the kind of collective, or 0; sequence number, or step) of each call."""
    codes = events.name[rows.row]
    kinds = np.zeros(len(events.texts), np.int64)
    for code in np.unique(codes).tolist():
        name = events.texts[code]
        kinds[code] = known.setdefault(collective_word(name) or name, len(known) + 1)
    by_number = rows.sequence >= 0
    return np.where(by_number, 0, kinds[codes]), np.where(by_number, rows.sequence, events.issued_in(rows.row))


def match(calls: Calls) -> np.ndarray:
    """Number of the collective that each call is part of; -1 where it was not matched.

    Calls of one identity are matched by their occurrence, counted from the end: windows open at different places on
    different ranks, but all ranks leave a step together (docs/replay.md §2). Calls of different sizes are not matched, nor
    those with a member that the run lacks: it may be the one that came last. Nor are point-to-point transfers.
    """
    mine = np.flatnonzero(~calls.is_p2p & (calls.members > 1))[::-1]
    on_rank, distinct = numbered(pairs(calls.identity, calls.rank)[mine])
    meeting, found = numbered(pairs(calls.identity[mine], occurrences(on_rank, len(distinct))))
    members = np.zeros(len(found), np.int64)
    members[meeting] = calls.members[mine]
    whole = np.bincount(meeting, minlength=len(found)) == members
    matched = whole & _of_one_size(meeting, calls.bytes[mine], len(found))
    number = np.full(len(calls.rank), -1)
    number[mine] = np.where(matched, np.cumsum(matched) - 1, -1)[meeting]
    return number


def _of_one_size(meeting: np.ndarray, size: np.ndarray, count: int) -> np.ndarray:
    """Whether all calls of each of `count` meetings whose size is known move as many bytes."""
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(least, meeting[size >= 0], size[size >= 0])
    np.maximum.at(most, meeting, size)
    agree: np.ndarray = (least == most) | (most < 0)
    return agree


def align_clocks(run: Run, calls: Calls, number: np.ndarray) -> dict[Rank, Offset]:
    """Bring all ranks onto one clock by the ends of the collectives that all of them met at."""
    everywhere = np.bincount(number[number >= 0]) == len(run.ranks)
    ends = {}
    for at, rank in enumerate(run.ranks):
        mine = np.flatnonzero((calls.rank == at) & (number >= 0))
        mine = mine[everywhere[number[mine]]]
        ends[rank] = calls.end_ns[mine[np.argsort(number[mine])]]
    return align(ends, {rank: run.rank(rank).host for rank in run.ranks})


def meet(calls: Calls, number: np.ndarray, shift_ns: np.ndarray) -> tuple[list[Met], np.ndarray, int]:
    """What each rank must know of its calls, when the last member came to each collective, on the job's clock, and how many
    calls ended before that.

    `shift_ns` is what to add to the clock of each rank.
    """
    matched = number >= 0
    arrival = np.full(number.max(initial=-1) + 1, np.iinfo(np.int64).min)
    start, end = (times + shift_ns[calls.rank] for times in (calls.start_ns, calls.end_ns))
    np.maximum.at(arrival, number[matched], start[matched])
    transfer = np.zeros(len(number), np.int64)
    transfer[matched] = end[matched] - arrival[number[matched]]
    early = int((transfer < 0).sum())
    borders = np.searchsorted(calls.rank, np.arange(1, len(shift_ns)))
    columns = (np.split(column, borders) for column in (number, np.maximum(transfer, 0), calls.members != 1))
    return [Met(*mine) for mine in zip(*columns, strict=True)], arrival, early
