"""`compile=0`: steps in which torch.compile compiles nothing."""

from dataclasses import replace

import numpy as np

from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.compiling import compile_share
from esprof.replay.whatif.graph.selections import of_ranks, required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    share = compile_share(now.run, now.dfg)
    for term in terms:
        nodes = (share > 0) & of_ranks(now, term)
        required(nodes, "torch.compile compiles nothing in these steps, or left no marks of it")
        left = np.rint(now.dfg.dur_ns[nodes] * (1 - share[nodes])).astype(np.int64)
        now = replace(now, dfg=edits.replace(now.dfg, nodes, left))
    return now


TERM = Kind(
    name="compile",
    examples=("compile=0", "rank3.compile=0"),
    meaning="Time of CPU threads in which torch.compile compiles vanishes. Compiled code keeps its time.",
    needs="Marks of Dynamo in the trace (`… (dynamo_timed)`).",
    effect=Edit(TermPhase.REMOVE, _without),
    value=zero,
    scoped=True,
)
