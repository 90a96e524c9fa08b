"""Find the cause of a hang from the snapshots of several ranks.

A rank numbers the collectives of each process group as it enters them. Members must enter the same collective under the
same number, so a rank whose numbers lag behind, or denote other collectives, is at fault.

`wait_for_graph` is the graph of which rank waits for which. Its sinks are at fault: ranks that others wait for and that wait
for none. Without a sink, the ranks wait for each other in a cycle.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from esprof.core import readable
from esprof.core.types import Bytes, Ns, Rank
from esprof.run.flight.log import EnteredCall, FlightLog, Snapshot
from esprof.run.groups import group_name
from esprof.run.raw.reasons import SnapshotReason

if TYPE_CHECKING:
    import networkx as nx

    from esprof.run.run import Run

Group = tuple[tuple[Rank, ...], str, str]
"""Ranks, name and backend of a process group: a name is unique among the members only, and each backend of a group numbers
its own collectives."""
HangKind = Literal["absent", "gone", "mismatch", "deadlock", "unseen", "stuck"]
_Numbers = dict[int, EnteredCall]
_Wait = tuple[HangKind, "WaitingCollective", set[Rank]]
"""Reason, collective, and ranks that the ranks in the collective wait for."""
_SAME_SIZE = ("allreduce", "broadcast")
"""Collectives that take a tensor of the same size from every rank."""


class Entered(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that a rank entered."""

    collective: str
    bytes: Bytes | None

    @classmethod
    def of(cls, call: EnteredCall) -> "Entered":
        return cls(collective=call.collective, bytes=call.bytes)

    def __str__(self) -> str:
        return f"{self.collective} of {readable.size(self.bytes)}" if self.bytes else self.collective


class WaitingCollective(msgspec.Struct, frozen=True, kw_only=True):
    """A collective that some members of a group have entered and that is not over. Times are ns on the ranks' own clocks."""

    group: tuple[Rank, ...]
    name: str
    """Name of the group, which is unique among its members only."""
    number: int
    """Number of the collective among those of the group."""
    what: Entered
    entered: tuple[Rank, ...]
    waiting: tuple[Rank, ...]
    """Ranks that entered the collective and have not completed it."""
    missing: tuple[Rank, ...]
    """Ranks whose snapshot was taken after the wait started and shows that they had not entered the collective."""
    unknown: tuple[Rank, ...]
    """Ranks without a snapshot since the wait started."""
    since_ns: Ns
    """When the first of the waiting ranks entered the collective."""
    seen_ns: Ns
    """Time of the latest snapshot of the group's ranks."""

    @property
    def waited_ns(self) -> Ns:
        return max(0, self.seen_ns - self.since_ns)


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """The first number of a group under which its members entered different collectives."""

    group: tuple[Rank, ...]
    number: int
    odd: tuple[Rank, ...]
    """Ranks that entered another collective than `agreed`."""
    agreed: tuple[Rank, ...]
    """The largest set of ranks with the same collective; of equal sets, the one with more collectives."""
    theirs: Entered
    """The collective of the ranks in `odd`; of most of them if they differ."""
    others: Entered
    """The collective of the ranks in `agreed`."""
    skipped: bool
    """Whether the calls of `odd` match those of `agreed` one number later: `odd` then skipped this collective."""


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """Why ranks wait.

    - `absent`: ranks in `at_fault` did not enter a collective.
    - `gone`: these ranks ended before the collective.
    - `mismatch`: these ranks entered another collective.
    - `unseen`: nothing is known of these ranks since the collective began.
    - `deadlock`: ranks wait for each other in different groups.
    - `stuck`: all ranks entered the collective, and it does not end.
    """

    kind: HangKind
    waiting: tuple[WaitingCollective, ...]
    """The collectives that ranks wait in, most ranks first; empty if a mismatch makes no rank wait."""
    at_fault: tuple[Rank, ...]
    mismatch: Mismatch | None = None

    @property
    def waited_ns(self) -> Ns:
        return max((waiting.waited_ns for waiting in self.waiting), default=0)

    @property
    def waiting_ranks(self) -> tuple[Rank, ...]:
        return tuple(sorted({rank for waiting in self.waiting for rank in waiting.waiting}))

    def __str__(self) -> str:
        """One sentence, without a full stop."""
        if self.mismatch is not None:
            return _mismatch_text(self.mismatch)
        first = self.waiting[0]
        which = f"{first.what.collective} {first.number}"
        who, others = readable.ranks(self.at_fault), readable.ranks(first.waiting)
        wait = readable.verb("wait", first.waiting)
        match self.kind:
            case "absent":
                return f"{who} did not enter {which}, which {others} {wait} in"
            case "gone":
                return f"{who} ended without entering {which}, which {others} {wait} in"
            case "unseen":
                return f"{others} {wait} in {which}, and nothing is seen of {who}"
            case "deadlock":
                return " and ".join(_link_text(waiting) for waiting in self.waiting)
            case _:
                return f"{which} does not end, though all of {readable.ranks(first.group)} entered it"


def find_hang(snapshots: Mapping[Rank, Snapshot], ended: Collection[Rank] = ()) -> Hang | None:
    """Find the cause of a hang from one snapshot per rank; None if no rank waits for another.

    `ended` has the ranks whose process ended normally.
    """
    calls = calls_by_group(snapshots)
    fronts = _fronts(calls, snapshots)
    mismatch = next((found for group in calls if (found := _mismatch(group, calls[group]))), None)
    if mismatch is not None:
        return Hang(kind="mismatch", waiting=tuple(fronts), at_fault=mismatch.odd, mismatch=mismatch)
    return _of_fronts(fronts, frozenset(ended)) if fronts else None


def wait_for_graph(run: "Run") -> "nx.DiGraph":
    """Return the waits of a hung job as a `networkx.DiGraph`: an edge leads from a rank that waits in a collective to a rank
    that has not entered it. Empty if no rank is missing from a collective, such as when ranks entered different ones.

    Edges have the attributes `kind` (`absent`, `gone` or `unseen`, as in `Hang`), `collective`, its `number` among
    those of its process group, `group` (the ranks of that group, such as `0-3`), and `waited_ns`. Ranks whose `out_degree`
    is 0 wait for no other; `networkx.find_cycle` finds those that wait for each other. `find_hang` finds the ranks at
    fault, which also depend on mismatches of collectives.
    """
    logs = {meta.rank: run.flight(meta.rank) for meta in run.meta.ranks}
    last = {rank: int(run.steps(rank).ints("step").max(initial=0)) for rank in logs}
    snapshots = open_snapshots(logs, last)
    ended = frozenset(rank for rank, log in logs.items() if log.ended and rank not in snapshots)
    return _graph(_waits(_fronts(calls_by_group(snapshots), snapshots), ended))


def open_snapshots(logs: Mapping[Rank, FlightLog], last: Mapping[Rank, int]) -> dict[Rank, Snapshot]:
    """Return the latest snapshot of each rank in a step that never ended, without ranks that ended normally.

    `last` is the last completed step of each rank; 0 if none is known.
    """
    found = {}
    for rank, log in logs.items():
        since_last = [one for one in log.snapshots if one.step > last[rank] or log.starting or not log.counts_steps]
        of_step = [one for one in since_last if one.reason != SnapshotReason.SLOW]
        errors = [one for one in of_step if one.reason == SnapshotReason.ERROR]
        if of_step and (errors or not log.ended):
            found[rank] = next((one for one in reversed(of_step) if one.reason != SnapshotReason.ERROR), of_step[-1])
    return found


def calls_by_group(snapshots: Mapping[Rank, Snapshot]) -> dict[Group, dict[Rank, _Numbers]]:
    """Return the collectives of each group's members, by number; {} for a member that entered none."""
    found: dict[Group, dict[Rank, _Numbers]] = defaultdict(dict)
    members: dict[tuple[tuple[Rank, ...], str], list[Rank]] = defaultdict(list)
    for rank, snapshot in snapshots.items():
        groups = {group.name: group.ranks for group in snapshot.groups}
        for name, ranks in groups.items():
            members[ranks, name].append(rank)
        for call in (call for log in snapshot.calls for call in log.entries):
            name = call.process_group[0]
            if name in groups and not call.is_p2p:
                numbers = found[groups[name], name, call.backend].setdefault(rank, {})
                numbers.setdefault(call.collective_seq_id, call)
    for ranks, name, backend in found:
        for rank in members[ranks, name]:
            found[ranks, name, backend].setdefault(rank, {})
    return dict(found)


def _fronts(
    calls: Mapping[Group, Mapping[Rank, _Numbers]], snapshots: Mapping[Rank, Snapshot]
) -> list[WaitingCollective]:
    """Return the collective that each group waits in, if any, most waiting ranks first."""
    found = [front for group in calls if (front := _front(group, calls[group], snapshots))]
    return sorted(found, key=lambda front: -len(front.waiting))


def _front(
    group: Group, calls: Mapping[Rank, _Numbers], snapshots: Mapping[Rank, Snapshot]
) -> WaitingCollective | None:
    """Return the first collective of the group that a rank has entered and not completed."""
    unfinished = [number for numbers in calls.values() for number, call in numbers.items() if not call.is_over]
    if not unfinished:
        return None
    number = min(unfinished)
    entered = [rank for rank, numbers in calls.items() if max(numbers, default=0) >= number]
    waiting = [rank for rank in entered if number in calls[rank] and not calls[rank][number].is_over]
    since_ns = min(calls[rank][number].time_created_ns for rank in waiting)
    missing = [rank for rank in calls if rank not in entered and snapshots[rank].at_ns > since_ns]
    return WaitingCollective(
        group=group[0],
        name=group[1],
        number=number,
        what=Entered.of(calls[waiting[0]][number]),
        entered=tuple(sorted(entered)),
        waiting=tuple(sorted(waiting)),
        missing=tuple(sorted(missing)),
        unknown=tuple(sorted(set(group[0]) - set(entered) - set(missing))),
        since_ns=since_ns,
        seen_ns=max(snapshots[rank].at_ns for rank in calls),
    )


def _of_fronts(fronts: Sequence[WaitingCollective], ended: frozenset[Rank]) -> Hang:
    """Return the hang of waiting ranks. At fault are the sinks of the graph in the most reliable wait."""
    waits = list(_waits(fronts, ended))
    graph = _graph(waits)
    sinks = {rank for rank, awaited in graph.out_degree if not awaited}
    for kind, front, awaited in waits:
        if at_fault := awaited & sinks:
            return Hang(kind=kind, waiting=(front,), at_fault=tuple(sorted(at_fault)))
    if graph:
        links = tuple(front for front in fronts if front.missing or front.unknown)
        return Hang(kind="deadlock", waiting=links, at_fault=tuple(sorted(graph)))
    return Hang(kind="stuck", waiting=(fronts[0],), at_fault=fronts[0].waiting)


def _waits(fronts: Sequence[WaitingCollective], ended: frozenset[Rank]) -> Iterator[_Wait]:
    """Yield the waits of ranks for others, most reliable first: for ranks that were seen elsewhere, that ended, or without a
    snapshot."""
    for front in fronts:
        yield "absent", front, set(front.missing)
    for front in fronts:
        yield "gone", front, set(front.unknown) & ended
    for front in fronts:
        yield "unseen", front, set(front.unknown)


def _graph(waits: Iterable[_Wait]) -> "nx.DiGraph":
    """Return the graph of `waits`; of several between two ranks, the first counts."""
    import networkx as nx  # The import takes a second, and only a hung job needs it.

    graph = nx.DiGraph()
    for kind, front, awaited in waits:
        attributes = {
            "kind": kind,
            "collective": front.what.collective,
            "number": front.number,
            "group": group_name(front.group),
            "waited_ns": front.waited_ns,
        }
        edges = ((waiting, rank) for waiting in front.waiting for rank in awaited)
        graph.add_edges_from((edge for edge in edges if not graph.has_edge(*edge)), **attributes)
    return graph


def _mismatch(group: Group, calls: Mapping[Rank, _Numbers]) -> Mismatch | None:
    """Return the first number under which the group's members entered different collectives."""
    for number in sorted({number for numbers in calls.values() for number in numbers}):
        camps: dict[tuple[str, int | None], list[Rank]] = defaultdict(list)
        for rank, numbers in calls.items():
            if number in numbers:
                camps[_nature(numbers[number])].append(rank)
        if len(camps) > 1:
            return _between(group[0], number, list(camps.values()), calls)
    return None


def _between(group: tuple[Rank, ...], number: int, camps: list[list[Rank]], calls: Mapping[Rank, _Numbers]) -> Mismatch:
    camps.sort(key=lambda camp: (-len(camp), -max(calls[camp[0]])))
    most, odd = camps[0], camps[1]
    usual, strange = calls[most[0]], calls[odd[0]]
    return Mismatch(
        group=group,
        number=number,
        odd=tuple(sorted(rank for camp in camps[1:] for rank in camp)),
        agreed=tuple(sorted(most)),
        theirs=Entered.of(strange[number]),
        others=Entered.of(usual[number]),
        skipped=_is_ahead(strange, usual, number),
    )


def _is_ahead(strange: _Numbers, usual: _Numbers, number: int) -> bool:
    """Whether the calls of `strange` from `number` on are those of `usual` one number later."""
    pairs = [(call, usual[at + 1]) for at, call in strange.items() if at >= number and at + 1 in usual]
    return bool(pairs) and all(_nature(call) == _nature(later) for call, later in pairs)


def _nature(call: EnteredCall) -> tuple[str, int | None]:
    """Return the properties that must agree among members: the collective and, if all pass the same size, the elements."""
    plain = call.collective.replace("_", "")
    return call.collective, call.elements if any(name in plain for name in _SAME_SIZE) else None


def _mismatch_text(mismatch: Mismatch) -> str:
    who = readable.ranks(mismatch.odd)
    group = f"group {group_name(mismatch.group)}"
    text = f"{who} entered {mismatch.theirs} as number {mismatch.number} of {group}, where {readable.ranks(mismatch.agreed)}"
    left_out = ", and left that one out" if mismatch.skipped else ""
    return f"{text} entered {mismatch.others}{left_out}"


def _link_text(waiting: WaitingCollective) -> str:
    who, wait = readable.ranks(waiting.waiting), readable.verb("wait", waiting.waiting)
    awaited = readable.ranks(waiting.missing or waiting.unknown)
    which = f"{waiting.what.collective} {waiting.number} of group {group_name(waiting.group)} ({waiting.name!r})"
    return f"{who} {wait} in {which} for {awaited}"
