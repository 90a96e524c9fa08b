"""`launches=graph`: storms of small kernels that are launched together."""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import Dfg, Edge
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import of_ranks, on_ranks_with_gpu, required
from esprof.replay.whatif.host.small_kernels import storms
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, word


def _together(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    required(on_ranks_with_gpu(now.dfg), "no GPU work was recorded: this job computes on CPUs")
    found = storms(now.dfg)
    kernels = np.zeros(now.dfg.nodes, bool)
    kernels[found.kernel[found.inside]] = True
    for term in terms:
        mine = of_ranks(now, term)
        nodes = required(found.saved & mine, "no long run of kernels shorter than their launches was recorded")
        now = replace(now, dfg=_without_pauses(edits.shorten(now.dfg, nodes, 0), kernels & mine))
    return now.noted("an upper bound: a graph with as many kernels takes no longer to launch than one of them")


def _without_pauses(dfg: Dfg, kernels: np.ndarray) -> Dfg:
    """The graph in which these kernels start as soon as the one before on their stream ends. In a CUDA graph the device
    launches them, without a pause for each."""
    edges = (dfg.pred_kind == Edge.LANE) & kernels[dfg.pred_target] & kernels[dfg.pred_idx]
    return replace(dfg, pred_lag=np.where(edges, np.minimum(dfg.pred_lag, 0), dfg.pred_lag))


TERM = Kind(
    name="launches",
    examples=("launches=graph", "rank3.launches=graph"),
    meaning="CPU threads take no time between the first and the last launch of long runs of small kernels (ESP408), as if "
    "CUDA graphs launched them. Kernels keep their time.",
    needs="Runs of at least ten launches, most of whose kernels are shorter than their launches.",
    effect=Edit(TermPhase.REMOVE, _together),
    value=word("graph"),
    scoped=True,
)
