"""Layers that are computed again before their backward pass: their time is added to its begin."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.engine.timeline import worked_ns
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.recomputation import recompute_ranges
from esprof.replay.whatif.graph.thread_ranges import launches_of
from esprof.replay.whatif.memory.layers import LayerCalls, layers_of
from esprof.replay.whatif.memory.passes import backward_passes
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.run.schema import Table


def computed_again(now: Scenario, ranks: Iterable[Rank]) -> Scenario:
    """The scenario in which each layer of these ranks is computed again when its backward pass begins, on the thread and on
    the GPU. Raises Declined where layers or their backward passes were not recorded, or layers communicate."""
    dfg = now.dfg
    longer = dfg.dur_ns.copy()
    parts = 1 if now.batch is None else now.batch.parts
    for rank in ranks:
        events = now.run.events(rank)
        if len(recompute_ranges(events).tid):
            raise Declined(f"rank {rank} computes some activations again already")
        layers = layers_of(events, backward_passes(events))
        now = now.noted(f"each entry of {layers.name} is computed again")
        nodes = dfg.nodes_of(rank)
        known = nodes[dfg.event[nodes] >= 0]
        cpu_ns = _on_cpu_ns(events, dfg, nodes[dfg.lane[nodes] == dfg.main_lane(rank)], layers)
        # The nodes are those of one part of the batch.
        _add(longer, known[dfg.on(LaneKind.CPU)[known]], events, dfg, layers, parts * cpu_ns)
        gpu = known[dfg.on(LaneKind.STREAM)[known] & ~dfg.of(Cls.WAIT)[known]]
        launch = launches_of(events, dfg.event[gpu])
        gpu, launch = gpu[launch >= 0], launch[launch >= 0]
        gpu_ns = _launched_ns(events.ints("start_ns")[launch], dfg, gpu, layers)
        _add(longer, gpu, events, dfg, layers, gpu_ns, launch)
    return replace(now, dfg=edits.replace(dfg, np.arange(dfg.nodes), longer))


def _on_cpu_ns(events: Table, dfg: Dfg, nodes: np.ndarray, layers: LayerCalls) -> np.ndarray:
    """Time of these nodes, all of one thread, within each layer, ns, int64[calls]. Raises Declined if one communicates."""
    known = nodes[dfg.event[nodes] >= 0]
    if not len(known):
        return np.zeros(len(layers.tid), np.int64)
    offset_ns = dfg.clock_offset_ns(events.ints("start_ns"), known)
    nodes = nodes[np.argsort(dfg.recorded_ns[nodes], kind="stable")]
    start, took = dfg.recorded_ns[nodes] + offset_ns, dfg.dur_ns[nodes]
    _refuse_communication(dfg, nodes[layers.of(start) >= 0])
    return worked_ns(start, took, layers.begin_ns, layers.end_ns)


def _launched_ns(launch_ns: np.ndarray, dfg: Dfg, nodes: np.ndarray, layers: LayerCalls) -> np.ndarray:
    """Time of the nodes that were launched in each layer, ns, int64[calls]. Raises Declined if one communicates."""
    layer = layers.of(launch_ns)
    nodes, layer = nodes[layer >= 0], layer[layer >= 0]
    _refuse_communication(dfg, nodes)
    took = np.zeros(len(layers.tid), np.int64)
    np.add.at(took, layer, dfg.dur_ns[nodes])
    return took


def _refuse_communication(dfg: Dfg, nodes: np.ndarray) -> None:
    if dfg.of(Cls.COMMUNICATION)[nodes].any() or (dfg.collective[nodes] >= 0).any():
        raise Declined("the modules communicate in their forward pass")


def _add(
    longer: np.ndarray,
    nodes: np.ndarray,
    events: Table,
    dfg: Dfg,
    layers: LayerCalls,
    took_ns: np.ndarray,
    row: np.ndarray | None = None,
) -> None:
    """Make the first of `nodes` in the backward pass of each layer longer by `took_ns`.

    `row` are the rows that tell when and on which thread they were called, their own by default.
    """
    row = dfg.event[nodes] if row is None else row
    start, tid = events.ints("start_ns")[row], events.ints("tid")[row]
    thread = events.ints("tid")[layers.backward_row]
    for number in np.flatnonzero(took_ns).tolist():
        own = np.flatnonzero((tid == thread[number]) & (start >= layers.backward_ns[number]))
        if len(own):
            longer[nodes[own[np.argmin(start[own])]]] += took_ns[number]
