"""The time of batches of another size, or in several parts, of jobs that compute on CPUs.

What grows with the samples takes proportionally longer (`sized_work`), and so do batches to be loaded. Updates and the
exchange of gradients stay as recorded.
"""

from dataclasses import replace

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.thread_ranges import thread_nodes
from esprof.replay.whatif.loading.loader_evidence import has_unseen_workers
from esprof.replay.whatif.memory.passes import backward_passes
from esprof.replay.whatif.samples.sized_work import SizedWork
from esprof.replay.whatif.scenario import BatchChange, Declined, Scenario
from esprof.run.run import Run

_OF_ACTIVATIONS = ("send", "recv", "send_recv", "all_to_all")
"""Collectives (`collective_word`) that carry activations, in pipelines and mixtures of experts."""


def with_batch_time(now: Scenario, change: BatchChange) -> Scenario:
    """The scenario with changed batches. Raises Declined where operations have no recorded shapes, on GPUs, where ranks
    exchange activations, and for parts of batches that have several backward passes.

    A run with one size of a batch does not tell how much of a product's time is for its parameters: the prediction is
    the middle of what is possible, and its margin half of that. All parts but the last are added where a pass begins.
    """
    dfg, run = now.dfg, now.run
    if dfg.has_gpu():
        raise Declined(
            "how long kernels take for another number of samples is not known from one run on GPUs: record a run with such "
            "batches and use esprof compare"
        )
    for rank in dfg.marks.ranks:
        _refuse_activations(run, rank)
    most, least = grown_ns(run, dfg)
    of_part = change.factor / change.parts
    factor = np.where(_loads(dfg), change.factor, of_part)
    changed_ns, margin_ns = (factor - 1) * (most + least) / 2, change.parts * abs(of_part - 1) * (most - least) / 2
    longer = np.maximum(dfg.dur_ns + np.rint(changed_ns).astype(np.int64), 0)
    if change.parts > 1:
        longer += (change.parts - 1) * _passes_ns(now, longer)
    if has_unseen_workers(run, dfg):
        now = now.noted("loader workers were not recorded: assumes that they keep up")
    return replace(
        now,
        dfg=edits.replace(dfg, np.arange(dfg.nodes), longer),
        margin_ns=float(np.hypot(now.margin_ns, _of_slowest(dfg, margin_ns))),
    )


def grown_ns(run: Run, dfg: Dfg) -> tuple[np.ndarray, np.ndarray]:
    """(most, least) time of each node that grows with the samples, float64[N], ns. Raises Declined."""
    most, least = np.zeros(dfg.nodes), np.zeros(dfg.nodes)
    for rank in dfg.marks.ranks:
        events = run.events(rank)
        for thread in thread_nodes(run, dfg, rank):
            begin = thread.begin_ns
            found = SizedWork.of(events, thread.tid).within(begin, begin + dfg.dur_ns[thread.nodes])
            most[thread.nodes], least[thread.nodes] = (np.minimum(one, dfg.dur_ns[thread.nodes]) for one in found)
    loads = _loads(dfg)
    most[loads] = least[loads] = dfg.dur_ns[loads]
    return most, least


def _loads(dfg: Dfg) -> np.ndarray:
    """Mask of the nodes that load batches, bool[N]."""
    mask: np.ndarray = (dfg.on(LaneKind.CPU) | dfg.on(LaneKind.LOADER)) & dfg.of(Cls.DATA)
    return mask


def _passes_ns(now: Scenario, took_ns: np.ndarray) -> np.ndarray:
    """What the forward and backward pass of each step takes of each rank's main thread, at the first of its nodes, ns,
    int64[N], if nodes take `took_ns`. Raises Declined if a step has another number of backward passes than one."""
    dfg, loads = now.dfg, _loads(now.dfg)
    found = np.zeros(dfg.nodes, np.int64)
    for rank in dfg.marks.ranks:
        passes, main = backward_passes(now.run.events(rank)), dfg.main_lane(rank)
        (thread,) = (one for one in thread_nodes(now.run, dfg, rank) if dfg.lane[one.nodes[0]] == main)
        for step in dfg.marks.steps:
            mine = (dfg.step[thread.nodes] == step) & ~loads[thread.nodes]
            nodes, begin = thread.nodes[mine], thread.begin_ns[mine]
            inside = passes.of(begin)
            if len(np.unique(inside[inside >= 0])) != 1:
                raise Declined(f"step {step} of rank {rank} has several backward passes, or none")
            nodes = nodes[begin < passes.end_ns[inside.max()]]
            # A step lasts from the end of its first node.
            found[np.setdiff1d(nodes, dfg.marks.first).min()] = took_ns[nodes].sum()
    return found


def _of_slowest(dfg: Dfg, taken_ns: np.ndarray) -> float:
    """The most of `taken_ns` that a rank's main thread takes in a step on average, ns."""
    of_ranks = [float(taken_ns[dfg.lane == dfg.main_lane(rank)].sum()) for rank in dfg.marks.ranks]
    return max(of_ranks) / len(dfg.marks.steps)


def _refuse_activations(run: Run, rank: Rank) -> None:
    events = run.events(rank)
    if (events.ints("is_p2p", 0) == 1).any() or events.matches("collective", _OF_ACTIVATIONS.__contains__).any():
        raise Declined(
            "ranks send each other activations, which grow with the samples: use microbatches= for a pipeline"
        )
    _, names = events.codes("name")
    if any(name.startswith("_c10d_functional::") for name in names):
        raise Declined("ranks share layers (tensor parallelism): what they exchange grows with the samples")
