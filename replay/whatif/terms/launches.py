"""`launches=graph`: storms of small kernels that are launched together."""

from dataclasses import replace

from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import of_ranks, required
from esprof.replay.whatif.graph.small_kernels import storms
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, word


def _together(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    if not now.dfg.has_gpu():
        raise Declined("no GPU work was recorded: this job computes on CPUs")
    saved = storms(now.dfg).saved
    for term in terms:
        nodes = required(saved & of_ranks(now, term), "no long run of kernels shorter than their launches was recorded")
        now = replace(now, dfg=edits.shorten(now.dfg, nodes, 0))
    return now.noted("an upper bound: a graph with as many kernels takes no longer to launch than one of them")


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
