"""Match collective calls across ranks."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from esprof.core.types import Rank
from esprof.replay.building.lookup import common_numbers, numbered, occurrences, pairs
from esprof.replay.building.rank_events import Collectives, RankEvents, members_of
from esprof.run.collective_names import collective_word
from esprof.run.groups import group_name
from esprof.run.run import Run

_FROM_ROOT, _TO_ROOT = ("broadcast", "scatter"), ("reduce", "gather")


@dataclass(frozen=True)
class CollectiveCalls:
    """Collective calls of all ranks, sorted by rank and start; one entry per call."""

    rank: np.ndarray
    """Position of each call's rank in the run."""
    identity: np.ndarray
    """Key of group and sequence number; without sequence numbers, of group, kind and step; for point-to-point calls, of
    sender, receiver and step. Only calls of one identity can match."""
    members: np.ndarray
    """Number of ranks that take part in each call, including ranks that the run lacks; 0 where unknown."""
    present: np.ndarray
    """Number of these ranks that the run has, without those that recorded nothing of the step that launched the call."""
    is_p2p: np.ndarray
    """bool: the call is a send or receive, or a batch of several."""
    sends: np.ndarray
    """bool: other ranks need data of the call's rank."""
    receives: np.ndarray
    """bool: the call's rank needs data of other ranks."""
    bytes: np.ndarray
    """Bytes of each call, the same on all ranks; -1 where unknown, and for an all-to-all, whose sizes differ."""
    alike: np.ndarray
    """Key of group, kind and size: calls with the same key take about the same time; -1 where the size is unknown."""
    start_ns: np.ndarray
    end_ns: np.ndarray
    silent_ns: np.ndarray
    """For a message on a CPU thread, the silence of its thread before its end, ns; -1 for other calls."""


@dataclass(frozen=True)
class CallsOfRank:
    """Collective calls of one rank, sorted by start, apart from its other events; one entry per call in each column."""

    rank: Rank
    rows: Collectives
    step: np.ndarray
    """Step that launched each call; -1 if it is not one of the chosen steps."""
    kind: np.ndarray
    """Kind of collective that each call is by its name, index into `kinds`."""
    kinds: tuple[str, ...]
    is_p2p: np.ndarray
    """bool: see `CollectiveCalls.is_p2p`."""
    start_ns: np.ndarray
    end_ns: np.ndarray
    silent_ns: np.ndarray
    """See `CollectiveCalls.silent_ns`."""

    @classmethod
    def of(cls, events: RankEvents) -> "CallsOfRank":
        rows = events.collectives
        names, kind = np.unique(events.name[rows.row], return_inverse=True)
        texts = [events.texts[code] for code in names.tolist()]
        is_p2p = _is_word(rows, "send", "recv") | events.is_batched_p2p
        return cls(
            rank=events.rank,
            rows=rows,
            step=events.launched_in(rows.row),
            kind=kind,
            kinds=tuple(collective_word(text) or text for text in texts),
            is_p2p=is_p2p,
            start_ns=events.start[rows.row],
            end_ns=events.end[rows.row],
            silent_ns=_silences(events, np.flatnonzero(is_p2p & (events.ints("stream", rows.row) < 0))),
        )


def calls_of(run: Run, calls: Iterable[CallsOfRank], lost: Mapping[Rank, Collection[int]]) -> CollectiveCalls:
    """The collective calls of all ranks; `lost` are the steps of which a rank recorded nothing.

    Identity is (group, sequence number) if the trace has them, otherwise (group, kind of collective, step that launched it).
    The kind comes from the kernel's name, not the call's, since launches before the window are not recorded. For a send or
    receive it is (sender, receiver, step), because each rank counts its own sequence numbers.
    """
    known: dict[str, int] = {}
    by_rank = [_identified(run, at, mine, known, lost) for at, mine in enumerate(calls)]
    columns = (np.concatenate(column) for column in zip(*by_rank, strict=True))
    rank_at, between, kind, word, position, members, present, is_p2p, sends, receives, size, start, end, silent = (
        columns
    )
    between, _ = numbered(between)
    what, _ = numbered(pairs(between, kind))
    identity, _ = numbered(pairs(what, numbered(position)[0]))
    alike = np.where(size >= 0, pairs(numbered(pairs(between, word))[0], numbered(size)[0]), -1)
    return CollectiveCalls(
        rank_at, identity, members, present, is_p2p, sends, receives, size, alike, start, end, silent
    )


def _identified(
    run: Run, at: int, calls: CallsOfRank, known: dict[str, int], lost: Mapping[Rank, Collection[int]]
) -> tuple[np.ndarray, ...]:
    """Columns for each call of a rank: position of the rank, participants, kind (0 for calls with sequence numbers), word,
    sequence number or step, and the other columns of `CollectiveCalls` except `alike`. `known` maps names to numbers, the
    same on all ranks."""
    rows, is_p2p = calls.rows, calls.is_p2p
    group, members, present = _groups(run, calls, known, lost)
    is_send, is_receive = _is_word(rows, "send"), _is_word(rows, "recv")
    has_peer = (is_send | is_receive) & (rows.peer >= 0)
    sender, receiver = np.where(is_send, calls.rank, rows.peer), np.where(is_send, rows.peer, calls.rank)
    word = common_numbers(calls.kinds, known)[calls.kind]
    by_number = (rows.sequence >= 0) & ~is_p2p
    channel = common_numbers((name or "" for name in rows.channels), known)[rows.channel]
    return (
        np.full(len(rows.row), at),
        # Negative, so that pairs of ranks are distinct from groups.
        np.where(has_peer, -1 - pairs(sender, receiver), group),
        np.select([has_peer, by_number], [group, 0], 1 + word),
        word,
        np.where(by_number, rows.sequence, pairs(channel, calls.step)),
        np.select([has_peer, is_p2p], [2, 0], members),
        np.select([has_peer, is_p2p], [1 + np.isin(rows.peer, run.ranks), 0], present),
        is_p2p,
        *_roles(rows, calls.rank),
        np.where(_is_word(rows, "all_to_all"), -1, rows.bytes),
        calls.start_ns,
        calls.end_ns,
        calls.silent_ns,
    )


def _silences(events: RankEvents, messages: np.ndarray) -> np.ndarray:
    """`CollectiveCalls.silent_ns` of each call of a rank; `messages` are those on CPU threads.

    The profiler ends the event of a message when the job has waited for it, and does not record the wait itself.
    """
    rows, found = events.collectives.row, np.full(len(events.collectives.row), -1)
    row, tid = rows[messages], events.ints("tid", rows[messages])
    beside, beside_tid = events.threads.row, events.ints("tid", events.threads.row)
    for one in np.unique(tid).tolist():
        mine = tid == one
        own = np.append(beside[beside_tid == one], row[mine])
        moments = np.sort(np.append(events.start[own], events.end[own]))
        ends = events.end[row[mine]]
        found[messages[mine]] = ends - moments[np.searchsorted(moments, ends) - 1]
    return found


def _groups(
    run: Run, calls: CallsOfRank, known: dict[str, int], lost: Mapping[Rank, Collection[int]]
) -> tuple[np.ndarray, ...]:
    """(number of the group, number of its members, number of present members) of each call (`CollectiveCalls`).

    If the trace names no group, it is the group of all ranks.
    """
    rows, here = calls.rows, set(run.ranks)
    members = [set(members_of(run, name)) for name in rows.groups]
    members = [some if calls.rank in some else set() for some in members]
    numbers = common_numbers((name or group_name(range(run.world_size)) for name in rows.groups), known)
    sizes, present = np.array([(len(some), len(some & here)) for some in members])[rows.group].T
    for rank, steps in lost.items():
        is_member = np.array([rank in some for some in members])[rows.group]
        present = present - (is_member & np.isin(calls.step, list(steps)))
    return numbers[rows.group], sizes, present


def _roles(rows: Collectives, rank: Rank) -> tuple[np.ndarray, np.ndarray]:
    """(whether others need its data, whether it needs the data of others) for each call; both if the root is unknown."""
    is_root, other = rows.peer == rank, (rows.peer >= 0) & (rows.peer != rank)
    from_root, to_root = _is_word(rows, *_FROM_ROOT), _is_word(rows, *_TO_ROOT)
    only_sends = _is_word(rows, "send") | (from_root & is_root) | (to_root & other)
    only_receives = _is_word(rows, "recv") | (from_root & other) | (to_root & is_root)
    return ~only_receives, ~only_sends


def _is_word(rows: Collectives, *words: str) -> np.ndarray:
    mask: np.ndarray = np.array([word in words for word in rows.words])[rows.word]
    return mask


def match(calls: CollectiveCalls) -> np.ndarray:
    """Number of the collective of each call; -1 for unmatched calls.

    Calls of one identity are matched by their occurrence, counted from the end: windows begin at different times on
    different ranks, but all ranks leave a step together (docs/explanation/replay.md §2). If their sizes differ, calls are
    aligned by size; calls that still differ in size are not matched. Members that the run lacks are ignored.
    """
    # In reverse order, the occurrence of a call is the number of later calls of its identity on its rank.
    mine = np.flatnonzero(calls.members > 1)[::-1]
    on_rank, distinct = numbered(pairs(calls.identity, calls.rank)[mine])
    occurrence, _ = occurrences(on_rank, np.zeros(len(mine), np.int64), len(distinct))
    for together in _out_of_step(calls, mine, occurrence):
        occurrence[together] = _aligned(calls.rank[mine[together]], calls.bytes[mine[together]])
    # Calls with the same identity and occurrence match if every present member has made its call.
    rendezvous, found = numbered(pairs(calls.identity[mine], occurrence))
    present = np.zeros(len(found), np.int64)
    present[rendezvous] = calls.present[mine]
    complete = np.bincount(rendezvous, minlength=len(found)) == present
    matched = (
        complete
        & _has_sender_and_receiver(calls, mine, rendezvous)
        & _of_one_size(rendezvous, calls.bytes[mine], len(found))
    )
    number = np.full(len(calls.rank), -1)
    # Matched collectives are numbered without gaps.
    number[mine] = np.where(matched, np.cumsum(matched) - 1, -1)[rendezvous]
    return number


def _has_sender_and_receiver(calls: CollectiveCalls, mine: np.ndarray, rendezvous: np.ndarray) -> np.ndarray:
    """Whether each rendezvous has a sender and a receiver, that is, a call with data that another call needs.

    `rendezvous` is the rendezvous of each of the calls `mine`. Without the root, receivers wait for no recorded rank.
    """
    count = rendezvous.max(initial=-1) + 1
    given, taken = (np.bincount(rendezvous[role[mine]], minlength=count) for role in (calls.sends, calls.receives))
    has_both: np.ndarray = (np.bincount(rendezvous, minlength=count) > 1) & (given > 0) & (taken > 0)
    return has_both


def _of_one_size(rendezvous: np.ndarray, size: np.ndarray, count: int) -> np.ndarray:
    """Whether all calls of known size of each of `count` rendezvous send the same number of bytes; -1 is unknown."""
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(least, rendezvous[size >= 0], size[size >= 0])
    np.maximum.at(most, rendezvous, size)
    agree: np.ndarray = (least == most) | (most < 0)
    return agree


def is_partial(calls: CollectiveCalls, number: np.ndarray) -> np.ndarray:
    """Mask of the matched calls with a member that is not present; `number` is the result of `match`."""
    mask: np.ndarray = (number >= 0) & (calls.present < calls.members)
    return mask


def _out_of_step(calls: CollectiveCalls, mine: np.ndarray, occurrence: np.ndarray) -> Iterator[np.ndarray]:
    """Positions in `mine` of the calls of each identity with a rendezvous whose sizes differ."""
    identity = calls.identity[mine]
    rendezvous, found = numbered(pairs(identity, occurrence))
    differ = ~_of_one_size(rendezvous, calls.bytes[mine], len(found))
    for one in np.unique(identity[differ[rendezvous]]).tolist():
        yield np.flatnonzero(identity == one)


def _aligned(rank: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Occurrence of each call, by the longest runs of sizes that each rank shares with the rank with the fewest calls.

    A call outside these runs gets an occurrence of its own. If all ranks have the same sizes, no call is missing: threads
    only started them in another order. Then calls of one size keep their order.
    """
    rows = {one: np.flatnonzero(rank == one) for one in np.unique(rank).tolist()}
    by_size = [own[np.argsort(size[own], kind="stable")] for own in rows.values()]
    if all(np.array_equal(size[own], size[by_size[0]]) for own in by_size):
        occurrence = np.empty(len(rank), np.int64)
        # A row for each rank, its calls by size: calls in one column match.
        occurrence[np.stack(by_size)] = np.arange(len(by_size[0]))
        return occurrence
    occurrence = len(rank) + np.arange(len(rank))  # Distinct, beyond all common occurrences.
    reference = min(rows.values(), key=len)
    for own in rows.values():
        matcher = SequenceMatcher(None, size[reference].tolist(), size[own].tolist(), autojunk=False)
        for there, here, length in matcher.get_matching_blocks():
            occurrence[own[here : here + length]] = np.arange(there, there + length)
    return occurrence
