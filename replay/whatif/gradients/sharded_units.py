"""Steps of FSDP2 in place of DDP, between CPUs: parameters are gathered before use, gradients reduced and scattered.

Over gloo, FSDP2 waits for each exchange where it calls for it: nothing is computed meanwhile. Gloo runs a reduce-scatter as
an all-reduce (`carried_out_as`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from esprof.core.types import Bytes, Ns, Rank
from esprof.replay.dfg import Cls, Dfg, Edge
from esprof.replay.launched import carried_out_as
from esprof.replay.whatif.communication.probed import ProbedCollectives
from esprof.replay.whatif.gradients.gloo_buckets import launched_by_gradients
from esprof.replay.whatif.gradients.shared_update import communication_lane, recorded_link, with_update_of_part
from esprof.replay.whatif.gradients.units import StepUnits, units_of
from esprof.replay.whatif.graph.overlay import Overlay
from esprof.replay.whatif.graph.thread_ranges import thread_nodes
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.run.curve import BeyondCurveError

_GATHER, _SCATTER = "all_gather", "reduce_scatter"
_OF_TWO = 1.5
"""How much longer gloo gathers from two ranks than the bytes need. It sends in halves, and one rank announces that it
waits for the first half on the connection on which it sends its own, behind that."""
_OTHER_SIZE = 0.01
"""Share by which all-reduces may hold more or fewer bytes than the recorded gradients."""


class ShardExchange(NamedTuple):
    """An exchange of a step: what it is, of which unit, and when it is called for."""

    at_ns: Ns
    """On the rank's own clock; of several at one time, the first to be called for is first."""
    order: int
    word: str
    unit: int
    size: Bytes


def exchanges(units: StepUnits, *, regather: bool) -> list[ShardExchange]:
    """The exchanges of a step in order. `regather`: parameters are given up after a unit's forward pass."""
    found = []
    for number, unit in enumerate(units.all):
        found.append(ShardExchange(unit.forward_ns, number, _GATHER, number, unit.size))
        if regather and number:
            # Two are gathered at the begin of the last unit's backward pass, the last one first.
            again = units.gathered_again_ns[number - 1]
            found.append(ShardExchange(again, 2 * len(units.all) - number, _GATHER, number, unit.size))
        found.append(ShardExchange(unit.reduced_ns, 0 if number else 1, _SCATTER, number, unit.size))
    return sorted(one for one in found if one.size)


def with_sharded_units(now: Scenario, *, regather: bool) -> Scenario:
    """The scenario in which FSDP2 shards the model. Raises Declined where modules, gradients or the sizes of all-reduces
    were not recorded, or on GPUs."""
    dfg, ranks = now.dfg, now.dfg.marks.ranks
    updated, _ = with_update_of_part(now)
    found = {rank: units_of(now.run, rank) for rank in ranks}
    (name, *others) = {one for one, _ in found.values()}
    steps = {rank: of_steps for rank, (_, of_steps) in found.items()}
    sharding = Sharding(now, {rank: _of_graph(dfg, rank, one) for rank, one in steps.items()}, regather)
    if others or len({one.sizes for of_rank in sharding.units.values() for one in of_rank.values()}) > 1:
        raise Declined("the layers differ between ranks or steps")
    note = f"each entry of {name} is sharded, and all else of the model together"
    return replace(now, dfg=sharding.graph(updated)).noted(note)


def _of_graph(dfg: Dfg, rank: Rank, steps: Mapping[int, StepUnits]) -> dict[int, StepUnits]:
    missing = [step for step in dfg.marks.steps if step not in steps]
    if missing:
        raise Declined(f"no backward pass of rank {rank} was recorded in step {missing[0]}")
    return {step: steps[step] for step in dfg.marks.steps}


@dataclass(frozen=True)
class Sharding:
    """A change of a graph: FSDP2's exchanges in place of all-reduces."""

    now: Scenario
    units: Mapping[Rank, Mapping[int, StepUnits]]
    """The units of each rank and step."""
    regather: bool

    def graph(self, dfg: Dfg) -> Dfg:
        """`dfg`, which has the nodes of the scenario's graph, so changed."""
        overlay = Overlay(dfg)
        reduced = np.unique(dfg.collective[launched_by_gradients(dfg)])
        self._check_size(dfg, reduced)
        overlay.dropped |= np.isin(dfg.collective, reduced[reduced >= 0])
        for step in dfg.marks.steps:
            self._add(overlay, step)
        return overlay.compile()

    def _check_size(self, dfg: Dfg, reduced: np.ndarray) -> None:
        """Raise Declined if the all-reduces (numbers) do not hold the gradients."""
        nodes = np.isin(dfg.collective, reduced) & dfg.of(Cls.COMMUNICATION)
        sent = float(dfg.bytes[nodes].sum()) / max(len(dfg.marks.ranks), 1)
        held = sum(sum(one.sizes) for one in next(iter(self.units.values())).values())
        if not held or abs(sent / held - 1) > _OTHER_SIZE:
            raise Declined("its all-reduces do not hold the gradients in single precision")

    def _add(self, overlay: Overlay, step: int) -> None:
        """Add the exchanges of a step."""
        of_rank = {rank: exchanges(of[step], regather=self.regather) for rank, of in self.units.items()}
        first, *others = of_rank.values()
        if any([one[2:] for one in first] != [one[2:] for one in other] for other in others):
            raise Declined(f"ranks do not use their layers in the same order in step {step}")
        added = [overlay.add_collective(one.word, step, one.size) for one in first]
        for rank, mine in of_rank.items():
            places = _ThreadPlaces.of(self.now, rank)
            lane, before = communication_lane(overlay.dfg, rank), dict[int, int]()
            for number, (collective, one) in enumerate(zip(added, mine, strict=True)):
                source, follower, ended_ns = places.around(one.at_ns)
                took_ns = self._took_ns(one)
                arrive, exchange = overlay.add_member(collective, (lane, lane), took_ns, ended_ns + number)
                # Exchanges at one place follow each other.
                overlay.link(before.get(source, source), arrive, Edge.LAUNCH)
                overlay.link(exchange, follower, Edge.SYNC)
                before[source] = exchange

    def _took_ns(self, one: ShardExchange) -> Ns:
        ranks = self.now.dfg.marks.ranks
        probed = ProbedCollectives.of(self.now.run)
        curve = None if probed is None else probed.curve(one.word, ranks)
        if curve is not None:
            try:
                return round(curve.at(one.size))
            except BeyondCurveError:
                pass
        took_ns = recorded_link(self.now).collective_ns(carried_out_as(one.word) or one.word, one.size, len(ranks))
        return round(_OF_TWO * took_ns) if one.word == _GATHER and len(ranks) == 2 else took_ns


@dataclass(frozen=True)
class _ThreadPlaces:
    """The nodes of a rank's main thread in order."""

    nodes: np.ndarray
    begin_ns: np.ndarray
    """Begin of each node on the rank's own clock, int64[nodes]."""
    ended_ns: np.ndarray
    """End of each node on the clock of the graph, int64[nodes]."""

    @classmethod
    def of(cls, now: Scenario, rank: Rank) -> "_ThreadPlaces":
        dfg = now.dfg
        main = dfg.main_lane(rank)
        (thread,) = (one for one in thread_nodes(now.run, dfg, rank) if dfg.lane[one.nodes[0]] == main)
        order = np.argsort(thread.begin_ns, kind="stable")
        nodes = thread.nodes[order]
        return cls(nodes, thread.begin_ns[order], dfg.recorded_ns[nodes] + dfg.dur_ns[nodes])

    def around(self, at_ns: Ns) -> tuple[int, int, Ns]:
        """(the last node that begins before this time, the first one after it, when the former ended). Raises Declined if no
        work follows."""
        at = max(int(np.searchsorted(self.begin_ns, at_ns)), 1)
        if at >= len(self.nodes):
            raise Declined("no work follows the last backward pass")
        return int(self.nodes[at - 1]), int(self.nodes[at]), int(self.ended_ns[at - 1])
