"""The time of batches of another size, of jobs that compute on CPUs.

What grows with the samples takes proportionally longer (`sized_work`), and so do batches to be loaded. Updates and the
exchange of gradients stay as recorded.
"""

from dataclasses import replace

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.loaders import has_unseen_workers
from esprof.replay.whatif.graph.thread_ranges import thread_nodes
from esprof.replay.whatif.samples.sized_work import SizedWork
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.run.run import Run

_OF_ACTIVATIONS = ("send", "recv", "send_recv", "all_to_all")
"""Collectives (`collective_word`) that carry activations, in pipelines and mixtures of experts."""


def with_batch_time(now: Scenario, factor: float) -> Scenario:
    """The scenario in which each batch has `factor` times as many samples. Raises Declined where operations have no recorded
    shapes, on GPUs, and where ranks exchange activations.

    How much of a product's time is for its parameters, one size of a batch does not tell: the prediction is the middle of
    what is possible, and its margin half of that.
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
    changed_ns, margin_ns = (factor - 1) * (most + least) / 2, abs(factor - 1) * (most - least) / 2
    longer = np.maximum(dfg.dur_ns + np.rint(changed_ns).astype(np.int64), 0)
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
    loads = (dfg.on(LaneKind.CPU) | dfg.on(LaneKind.LOADER)) & dfg.of(Cls.DATA)
    most[loads] = least[loads] = dfg.dur_ns[loads]
    return most, least


def _of_slowest(dfg: Dfg, taken_ns: np.ndarray) -> float:
    """The most of `taken_ns` that a rank's main thread takes in a step on average, ns."""
    of_ranks = [float(taken_ns[dfg.lane == dfg.main_lane(rank)].sum()) for rank in dfg.marks.ranks]
    return max(of_ranks) / len(dfg.marks.steps)


def _refuse_activations(run: Run, rank: Rank) -> None:
    events = run.events(rank)
    codes, words = events.codes("collective")
    used = {words[code] for code in np.unique(codes[codes >= 0]).tolist()}
    if (events.ints("is_p2p", 0) == 1).any() or used.intersection(_OF_ACTIVATIONS):
        raise Declined(
            "ranks send each other activations, which grow with the samples: use microbatches= for a pipeline"
        )
    _, names = events.codes("name")
    if any(name.startswith("_c10d_functional::") for name in names):
        raise Declined("ranks share layers (tensor parallelism): what they exchange grows with the samples")
