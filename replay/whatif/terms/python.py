"""`python[REGEX]=0`: lines of Python code that take no time."""

import re
from dataclasses import replace

import numpy as np

from esprof.replay.cpu.python_time import PythonTime, matches
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, regex, zero


def _without(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    dfg = now.dfg
    left = np.ones(dfg.nodes)
    for term in terms:
        assert isinstance(term.argument, re.Pattern)
        # No node belongs to two ranks.
        ranks = [rank for rank in term.ranks(now) if rank in dfg.marks.ranks]
        share = sum(
            (PythonTime(now.run, dfg, rank).share(matches(term.argument)) for rank in ranks), np.zeros(dfg.nodes)
        )
        required(
            share > 0,
            "no Python code of that name is known to run between operations in these steps (record with --stack-steps, or "
            "torch.profiler with with_stack=True)",
        )
        left *= 1 - share
    nodes = np.flatnonzero(left < 1)
    return replace(now, dfg=edits.replace(dfg, nodes, np.rint(dfg.dur_ns[nodes] * left[nodes]).astype(np.int64)))


TERM = Kind(
    name="python",
    examples=("python[REGEX]=0", "rank3.python[REGEX]=0"),
    meaning="Python code whose line matches the regular expression (`train.py(57): log_hook`) takes no time between "
    "operations. So does code that the line called, including hooks of the backward pass. `python[unrecorded code]=0` "
    "removes gaps of 1 ms or more where stacks are missing.",
    needs="A window with stacks (`--stack-steps`) that shows such code, or a trace with `with_stack=True`.",
    assumes="Sampled stacks are representative of all steps.",
    effect=Edit(TermPhase.REMOVE, _without),
    value=zero,
    argument=regex,
    scoped=True,
)
