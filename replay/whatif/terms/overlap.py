"""`overlap=perfect`: communication hidden behind work."""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.scenario import Bound, Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, word


def _overlapped(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    """`now` without waiting for communication: ranks wait only for ranks that arrive late."""
    collectives = now.dfg.of(Cls.COMMUNICATION)
    if not collectives.any():
        raise Declined("no communication was recorded in these steps")
    return replace(now, dfg=edits.shorten(now.dfg, collectives, 0))


def _bound(before: Scenario, after: Scenario, terms: tuple[Term, ...]) -> Bound:
    """No step is shorter than the time in which its busiest rank communicates."""
    timeline = replay(before.dfg)
    # Communication may reach into the next step, but no step gets longer than it was.
    least_ns = np.minimum(timeline.communication_ns(), timeline.step_ns())
    return Bound(least_ns, ("an upper bound: no rank waits for communication",))


TERM = Kind(
    name="overlap",
    examples=("overlap=perfect",),
    meaning="Communication overlaps with compute. Ranks wait only for late ranks. No step gets shorter than its "
    "communication.",
    needs="Collectives in the trace.",
    assumes="Overlap is perfect and slows no compute, so the saving is an upper bound.",
    effect=Edit(TermPhase.BOUND, _overlapped, _bound),
    value=word("perfect"),
)
