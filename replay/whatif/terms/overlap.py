"""`overlap=perfect`: communication hidden behind work."""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, word


def _overlapped(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    """`now` without waiting for transfers: ranks wait only for those that come late to one.

    No step is shorter than the time in which its busiest rank has transfers under way.
    """
    transfers = now.dfg.of(Cls.COMMUNICATION)
    if not transfers.any():
        raise Declined("no communication was recorded in these steps")
    before = replay(now.dfg)
    # Transfers may reach into the next step, but no step gets longer than it was.
    least_ns = np.minimum(before.communication_ns(), before.step_ns())
    hidden = replace(now, dfg=edits.shorten(now.dfg, transfers, 0), least_ns=least_ns)
    return hidden.noted("a bound: no transfer is waited for")


TERM = Kind(
    name="overlap",
    examples=("overlap=perfect",),
    meaning="Transfers are hidden perfectly: nobody waits for one, only for ranks that come late to it. A bound; no step is "
    "shorter than the time in which its busiest rank transfers.",
    needs="Collectives in the trace.",
    effect=Edit(TermPhase.BOUND, _overlapped),
    value=word("perfect"),
)
