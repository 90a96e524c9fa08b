"""Reduce the graph of a run to what the peers of one rank do between its collectives.

A rank notices one thing of its peers: when the last of them reaches a collective. The graph is linear in (max, +): that
moment is the latest, over the earlier collectives of the rank, of when all ranks had met there plus the longest path from
there through the nodes of the peers (Baccelli et al., Synchronization and Linearity, 1992, chapter 3: x = Ax ⊕ b has the
solution A*b). So all nodes of the peers are eliminated without loss, and a few numbers for each collective are left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from esprof.analyzers.ghost.schedule import GhostCall, GhostSchedule, GhostStep, Since
from esprof.core import readable
from esprof.core.errors import InputError, UsageError
from esprof.core.types import Bytes, Ns, Rank
from esprof.replay.building.rank_events import members_of
from esprof.replay.dfg import JOIN_LANE, Cls, Dfg, Edge
from esprof.replay.engine.reach import Reach
from esprof.replay.replayed import Replayed
from esprof.run.collective_names import collective_word
from esprof.version import __version__

_UNKNOWN = -1


@dataclass(frozen=True)
class _Met:
    """A collective of the real rank that was matched, by its nodes in the graph."""

    arrival: int
    join: int
    communication: int
    step: int
    kind: str
    group: tuple[Rank, ...]
    bytes: Bytes
    """-1 if unknown."""


@dataclass(frozen=True)
class _Round:
    """The collectives of a step, in the order in which the real rank launched them."""

    steps: tuple[int, ...]
    """The step, and before it those since the round before, which have no collective."""
    calls: tuple[_Met, ...]

    @property
    def what(self) -> tuple[tuple[str, tuple[Rank, ...]], ...]:
        """Kind and group of each collective."""
        return tuple((one.kind, one.group) for one in self.calls)


def ghost_schedule(replayed: Replayed, rank: Rank) -> GhostSchedule:
    """What the peers of `rank` do, over the steady-state steps that follow a recorded one.

    Raises UsageError for a rank that was not recorded, and InputError for a run whose peers cannot be replayed.
    """
    run = replayed.run
    if rank not in run.ranks:
        raise UsageError(f"rank {rank} is not in this run", remedy=f"It has {readable.ranks(run.ranks)}.")

    def declined(reason: str, remedy: str) -> InputError:
        return InputError(f"has no reproducer: {reason}", path=run.path, remedy=remedy)

    if run.world_size == 1:
        raise declined("a single rank has no peers", "Run the script itself.")
    if run.missing_ranks:
        raise declined(f"it lacks {readable.ranks(run.missing_ranks)}", "Give the traces of all ranks.")
    met = _met(replayed, rank)
    if not met:
        raise declined(f"no collective of rank {rank} was matched", "`esprof validate` tells what the run lacks.")
    if all(one.bytes == _UNKNOWN for one in met):
        raise declined(
            "the sizes of its collectives are unknown", "Record them: `esprof record --shapes --stack-steps 0`."
        )
    rounds = _loop(_rounds(met, replayed.steps.all), replayed.steps.steady)
    if rounds is None:
        raise declined("no two steps with the same collectives follow each other", "Record more steps (--steps).")
    return GhostSchedule(
        esprof=__version__,
        rank=rank,
        world_size=run.world_size,
        threads=run.rank(rank).threads,
        steps=_steps(replayed, rank, rounds),
        plain_ns=tuple(replayed.plain_ns.astype(int).tolist()),
    )


def _met(replayed: Replayed, rank: Rank) -> list[_Met]:
    """The matched collectives of `rank`, in the order in which it launched them."""
    dfg, table = replayed.built.dfg, replayed.run.events(rank)
    (kind, kinds), (group, groups) = table.codes("collective"), table.codes("group")
    mine = dfg.nodes_of(rank)
    mine = mine[dfg.collective[mine] >= 0]
    arrivals = {int(dfg.collective[node]): node for node in mine[dfg.cls[mine] == Cls.WAIT].tolist()}
    joins = {int(dfg.collective[node]): node for node in np.flatnonzero(dfg.lane == JOIN_LANE).tolist()}
    sizes = np.full(len(joins), _UNKNOWN)
    known = np.flatnonzero(dfg.collective >= 0)
    np.maximum.at(sizes, dfg.collective[known], dfg.bytes[known])
    found = []
    for node in mine[dfg.cls[mine] != Cls.WAIT].tolist():
        number, row = int(dfg.collective[node]), int(dfg.event[node])
        word = kinds[kind[row]] if kind[row] >= 0 else collective_word(dfg.label(node))
        found.append(
            _Met(
                arrival=arrivals[number],
                join=joins[number],
                communication=node,
                step=int(dfg.step[node]),
                kind=word or dfg.label(node),
                group=members_of(replayed.run, groups[group[row]] if group[row] >= 0 else None),
                # A rank may lack the size where another has it; of an all-to-all each rank has its own.
                bytes=int(dfg.bytes[node] if word == "all_to_all" else sizes[number]),
            )
        )
    return sorted(found, key=lambda one: (one.step, _launched_ns(replayed, one.arrival)))


def _launched_ns(replayed: Replayed, arrival: int) -> Ns:
    """When the work before the launch of a collective ended, ns; its arrival at the node `arrival` where none is known."""
    dfg, end_ns = replayed.built.dfg, replayed.timeline.end_ns
    edges = slice(int(dfg.pred_ptr[arrival]), int(dfg.pred_ptr[arrival + 1]))
    calls = dfg.pred_idx[edges][dfg.pred_kind[edges] == Edge.LAUNCH]
    return int(end_ns[calls].max() if len(calls) else end_ns[arrival])


def _rounds(met: Sequence[_Met], steps: Sequence[int]) -> list[_Round]:
    """The steps with collectives, in order."""
    calls = {step: tuple(ones) for step, ones in groupby(met, key=lambda one: one.step)}
    rounds, since = [], 0
    for at, step in enumerate(steps):
        if step in calls:
            rounds.append(_Round(tuple(steps[since : at + 1]), calls[step]))
            since = at + 1
    return rounds


def _loop(rounds: Sequence[_Round], steady: Sequence[int]) -> list[_Round] | None:
    """The longest row of rounds with the same collectives, of which all but the first are steady-state steps; of equals the
    latest. The peers enter the second as they left the first, and so after the last, too. None where no two are alike."""
    follows = [
        at
        for at in range(1, len(rounds))
        if rounds[at].what == rounds[at - 1].what and set(rounds[at].steps) <= set(steady)
    ]
    longest = max(reversed(readable.stretches(follows)), key=len, default=())
    return [rounds[longest[0] - 1], *(rounds[at] for at in longest)] if longest else None


def _steps(replayed: Replayed, rank: Rank, rounds: Sequence[_Round]) -> tuple[GhostStep, ...]:
    """All rounds but the first, which only leads to the second."""
    calls = [one for each in rounds for one in each.calls]
    after = _after(replayed, rank, rounds)
    length, links = len(rounds[0].calls), _links(replayed.built.dfg, calls)
    sizes = [_size([each.calls[at] for each in rounds]) for at in range(length)]
    ghosts = [
        _ghost_call(replayed, rank, one, since, links, sizes[at % length])
        for at, (one, since) in enumerate(zip(calls, after, strict=True))
    ]
    took = {
        step: (int(recorded), int(again))
        for step, recorded, again in zip(
            replayed.steps.all, replayed.measured_ns, replayed.timeline.step_ns(), strict=True
        )
    }
    return tuple(
        GhostStep(
            step=each.steps[-1],
            recorded_ns=sum(took[step][0] for step in each.steps),
            replayed_ns=sum(took[step][1] for step in each.steps),
            collectives=tuple(ghosts[number * length : (number + 1) * length]),
        )
        for number, each in enumerate(rounds)
        if number
    )


def _after(replayed: Replayed, rank: Rank, rounds: Sequence[_Round]) -> list[tuple[Since, ...]]:
    """What the last of the peers waits for before each collective of `rounds`.

    Paths are followed to the end of the next round. What lies behind has waited for a later collective, too, or is the work
    of a loader that is far ahead.
    """
    dfg = replayed.built.dfg
    joins = [one.join for each in rounds for one in each.calls]
    number = {join: at for at, join in enumerate(joins)}
    is_cut = np.zeros(dfg.nodes, bool)
    is_cut[joins] = True
    reach = Reach(dfg, is_cut, dfg.rank != rank)
    work_ns: list[dict[int, Ns]] = [{} for _ in joins]
    for each, following in pairwise((*rounds, rounds[-1])):
        stop = 1 + int(np.flatnonzero(dfg.step <= following.steps[-1])[-1])
        for one in each.calls:
            for join, length_ns in reach.from_node(one.join, stop).items():
                if number[join] > number[one.join]:
                    work_ns[number[join]][number[one.join]] = length_ns
    return [_binding(at, work_ns) for at in range(len(joins))]


def _binding(at: int, work_ns: Sequence[Mapping[int, Ns]]) -> tuple[Since, ...]:
    """The collectives that can be the last for which collective `at` waits. One cannot if the way through a later one of
    them is as long."""
    found: list[int] = []
    for source, length_ns in sorted(work_ns[at].items(), reverse=True):
        if all(length_ns > work_ns[at][later] + work_ns[later].get(source, length_ns) for later in found):
            found.append(source)
    return tuple(Since(back=at - source, work_ns=work_ns[at][source]) for source in found)


def _links(dfg: Dfg, calls: Sequence[_Met]) -> dict[int, int]:
    """Number of each lane on which the rank communicates."""
    return {lane: number for number, lane in enumerate(sorted({int(dfg.lane[one.communication]) for one in calls}))}


def _size(calls: Sequence[_Met]) -> Bytes:
    """The size of a collective in all rounds; -1 if they differ, or if it has none, as a barrier."""
    known = {one.bytes for one in calls} - {_UNKNOWN}
    return known.pop() if len(known) == 1 and calls[0].kind != "barrier" else _UNKNOWN


def _ghost_call(
    replayed: Replayed, rank: Rank, one: _Met, after: tuple[Since, ...], links: Mapping[int, int], size: Bytes
) -> GhostCall:
    dfg, end_ns = replayed.built.dfg, replayed.timeline.end_ns
    before_join, before = (
        dfg.pred_idx[dfg.pred_ptr[node] : dfg.pred_ptr[node + 1]] for node in (one.join, one.communication)
    )
    peers = before_join[dfg.rank[before_join] != rank]
    last = int(dfg.rank[peers[np.argmax(end_ns[peers])]]) if len(peers) else rank
    return GhostCall(
        kind=one.kind,
        group=one.group,
        bytes=size,
        link=links[int(dfg.lane[one.communication])],
        transfer_ns=int(dfg.dur_ns[one.communication] + dfg.residual_ns[one.communication]),
        waits=bool((before == one.join).any()),
        awaited=bool((before_join == one.arrival).any()),
        after=after,
        last=last,
    )
