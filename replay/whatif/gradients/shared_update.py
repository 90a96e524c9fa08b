"""Updates that the ranks share: each updates its part of the parameters, and then sends it to all others (ZeRO, stage 1)."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from esprof.core.types import Bytes, Ns, Rank
from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind, StepMarks
from esprof.replay.engine.timeline import replay as replayed
from esprof.replay.whatif.communication.links import Stretches, stretches
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.overlay import Overlay
from esprof.replay.whatif.graph.thread_ranges import ThreadRanges, ranges_of_rows, share_within
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.run.kineto.steps.trace_steps import OPTIMIZER
from esprof.run.run import Run
from esprof.run.schema import Table

_EXCHANGE = "all_gather"
"""The updated parts together travel as in an all-gather: each rank sends and receives all but one part of its size. Each
part is a broadcast of its own."""


def reducing_ranks(run: Run, rank: Rank) -> tuple[Rank, ...]:
    """The ranks with which `rank` reduces its gradients. Raises Declined if that is not known, or if they share gradients
    already."""
    events = run.events(rank)
    kinds, names = events.texts("collective"), events.texts("group")
    calls = np.flatnonzero(events.is_kind("collective")).tolist()
    if any(kinds[row] == "reduce_scatter" for row in calls):
        raise Declined("the ranks share gradients already: they reduce and scatter them")
    groups = {names[row] for row in calls if kinds[row] == "all_reduce"}
    found = [group for group in run.meta.groups if group.name in groups]
    if len(found) != 1:
        raise Declined(f"all-reduces of {len(found)} groups were recorded: it needs those of gradients alone")
    return found[0].ranks


def with_shared_update(now: Scenario) -> Scenario:
    """The scenario in which each rank updates an equal part of the parameters, and the next work of all ranks waits until
    all have all parts. Raises Declined where updates or the sizes of all-reduces were not recorded, or on GPUs."""
    updated, updating = with_update_of_part(now)
    last = last_updates(updated, updating)
    size = _reduced(now.recorded)
    at_once_ns = recorded_link(now).collective_ns(_EXCHANGE, size, len(now.dfg.marks.ranks))
    took_ns, margin_ns = _exchange_ns(replayed(updated).end_ns[last], at_once_ns)
    took_of = dict(zip(updated.marks.steps, took_ns.tolist(), strict=True))
    exchanged = with_exchanges(updated, last, _EXCHANGE, size, took_of)
    return replace(now, dfg=exchanged, margin_ns=float(np.hypot(now.margin_ns, margin_ns)))


def recorded_link(now: Scenario) -> Stretches:
    """What the link did in the recorded steps. Raises Declined if the sizes of collectives are unknown."""
    link = stretches(now.recorded)
    if link is None:
        raise Declined("the sizes of the all-reduces were not recorded")
    return link


def with_update_of_part(now: Scenario) -> tuple[Dfg, np.ndarray]:
    """(the graph in which each rank updates an equal part of the parameters; mask of the nodes that update). Raises Declined
    on GPUs, or if not all ranks reduce their gradients together."""
    dfg = now.dfg
    if dfg.has_gpu():
        raise Declined("the time of a shared update is predicted on CPUs only")
    share = update_share(now)
    shorter = np.rint(dfg.dur_ns * (1 - share * (1 - 1 / len(dfg.marks.ranks)))).astype(np.int64)
    return edits.replace(dfg, np.arange(dfg.nodes), shorter), share > 0


def update_share(now: Scenario) -> np.ndarray:
    """Share of the time of each node that updates parameters, float64[N]. Raises Declined if not all ranks reduce their
    gradients together."""
    ranks = now.dfg.marks.ranks
    if any(set(reducing_ranks(now.run, rank)) != set(ranks) for rank in ranks):
        raise Declined("not all ranks reduce their gradients together")
    # Another term may have made nodes longer, so that they seem to reach into the update.
    as_recorded = now.recorded if now.has_recorded_nodes else now.dfg
    return share_within(now.run, as_recorded, {rank: update_ranges(now.run.events(rank)) for rank in ranks})


def _reduced(dfg: Dfg) -> Bytes:
    """Bytes that each rank reduces in a step: those of the gradients, and of the parameters in the same precision."""
    nodes = dfg.on(LaneKind.COMM) & dfg.of(Cls.COMMUNICATION) & (dfg.step >= dfg.marks.steps[0])
    return round(float(dfg.bytes[nodes].clip(0).sum()) / (len(dfg.marks.steps) * len(dfg.marks.ranks)))


def update_ranges(events: Table) -> ThreadRanges:
    """When and where optimizers updated parameters."""
    return ranges_of_rows(events, np.flatnonzero(events.matches("name", lambda name: name.startswith(OPTIMIZER))))


def last_updates(dfg: Dfg, updating: np.ndarray) -> np.ndarray:
    """The last of the `updating` nodes (mask) of each rank in each step, int64[steps, ranks]. Raises Declined."""
    last = np.empty((len(dfg.marks.steps), len(dfg.marks.ranks)), np.int64)
    for number, rank in enumerate(dfg.marks.ranks):
        main = np.flatnonzero(updating & (dfg.lane == dfg.main_lane(rank)))
        for at, step in enumerate(dfg.marks.steps):
            mine = main[dfg.step[main] == step]
            if not len(mine):
                raise Declined(f"no update of rank {rank} was recorded in step {step}")
            last[at, number] = mine.max()
    return last


def _exchange_ns(updated_ns: np.ndarray, at_once_ns: Ns) -> tuple[np.ndarray, float]:
    """(time of the exchange of each step, int64[steps]; by how much it may be off), ns. `updated_ns` is when each rank has
    updated its part, [steps, ranks]; `at_once_ns` is the time if all parts travel at once.

    Gloo sends a part once the receiver has announced that it waits, on the connection on which that one sends its own part.
    So if the first rank is the last of two, its announcement travels behind its part, and the other part only then. Of more
    ranks it is not known which parts travel at once; each broadcast alone takes as many rounds as a binomial tree has.
    """
    ranks = updated_ns.shape[1]
    in_turn_ns = at_once_ns * ranks / (ranks - 1) * (ranks - 1).bit_length() if ranks > 1 else at_once_ns
    if ranks > 2:
        middle = np.full(len(updated_ns), round((at_once_ns + in_turn_ns) / 2))
        return middle, (in_turn_ns - at_once_ns) / 2
    first_is_last = updated_ns[:, 0] > updated_ns[:, -1]
    return np.where(first_is_last, round(in_turn_ns), at_once_ns), 0.0


def with_exchanges(dfg: Dfg, last: np.ndarray, word: str, size: Bytes, took_ns: Mapping[int, Ns]) -> Dfg:
    """The graph with collectives of this kind and `size` bytes after the `last` update of each rank, int64[steps, ranks].
    `took_ns` maps the steps that have one to its time."""
    marks = StepMarks(dfg.marks.steps, dfg.marks.ranks, dfg.marks.first.copy(), dfg.marks.last.copy())
    overlay = Overlay(replace(dfg, marks=marks))
    for step, of_step in zip(marks.steps, last.tolist(), strict=True):
        if step not in took_ns:
            continue
        collective = overlay.add_collective(word, step, size)
        for rank, update in zip(marks.ranks, of_step, strict=True):
            lane = communication_lane(dfg, rank)
            ended = int(dfg.recorded_ns[update] + dfg.dur_ns[update])
            arrive, exchange = overlay.add_member(collective, (lane, lane), took_ns[step], ended)
            overlay.link(update, arrive, Edge.LAUNCH)
            on_lane = np.flatnonzero(dfg.lane == dfg.lane[update])
            for follower in on_lane[on_lane > update][:1].tolist():
                overlay.link(exchange, follower, Edge.SYNC)
            # A step that ended with the update now ends with the exchange.
            for ends in (marks.first, marks.last):
                ends[ends == update] = exchange
    return overlay.compile()


def communication_lane(dfg: Dfg, rank: Rank) -> int:
    """The lane on which the rank communicates. Raises Declined without one."""
    nodes = dfg.nodes_of(rank)
    nodes = nodes[(dfg.on(LaneKind.COMM) & dfg.of(Cls.COMMUNICATION))[nodes]]
    if not len(nodes):
        raise Declined(f"no communication of rank {rank} was recorded")
    return int(dfg.lane[nodes[0]])
