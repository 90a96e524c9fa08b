"""`balance=fix`: the same work takes all ranks as long."""

from dataclasses import replace

import numpy as np

from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, word


def _balanced(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    """`now` with the mean over ranks of its counterparts for each node, on ranks that share their role with another.

    Raises Declined where there are no such ranks.
    """
    dfg = now.dfg
    blame = now.blame_now
    mean = blame.peers.mean
    known = ~np.isnan(mean) & blame.shares_role
    if not known.any():
        raise Declined("no two ranks do the same work")
    dur = blame.work_ns.copy()
    dur[known] = np.rint(mean[known]).astype(np.int64)
    return replace(now, dfg=replace(dfg, dur_ns=dur)).noted("a bound: no rank is ever late for work of its own")


TERM = Kind(
    name="balance",
    examples=("balance=fix",),
    meaning="In each step the same work takes all ranks as long, on average no less and no more than it took: nobody waits "
    "for a rank that has more to do, whoever it is. A bound: ranks never are all alike.",
    needs="Two ranks or more that do the same work.",
    effect=Edit(Phase.MEND, _balanced),
    value=word("fix"),
)
