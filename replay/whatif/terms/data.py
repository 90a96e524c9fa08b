"""`data=0`: loaders that never make a rank wait; `data[ready]=0`: batches that nobody has to make."""

from dataclasses import replace

import numpy as np

from esprof.core.errors import UsageError
from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif.graph.host_cpus import least_ns
from esprof.replay.whatif.graph.loaders import IN_THE_RANK
from esprof.replay.whatif.graph.selections import taking_no_time
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero

READY = "ready"


def _argument(text: str) -> str:
    if text != READY:
        raise UsageError(f"{text!r} is not a kind of input data", remedy=f"Write data=0 or data[{READY}]=0.")
    return text


def _without_input_stall(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    """`now` with batches that take no time. Unless they are ready, CPUs must make them nonetheless: no step is shorter than
    they need for it."""
    mended = taking_no_time(now, terms, Cls.DATA, "no data loader was recorded in these steps")
    if all(term.argument == READY for term in terms):
        return mended.noted("an upper bound: all batches are ready before training starts")
    # What the CPUs took was recorded as fast as they were.
    least = least_ns(now.run, now.dfg.marks.steps) if _are_cpus_as_recorded(now) else None
    if least is not None:
        before = replay(now.dfg).step_ns()
        # No step gets longer than it was.
        bound = np.minimum(least, before)
        if (bound > replay(mended.dfg).step_ns()).any():
            mended = mended.noted("limited by the host's CPUs, which still make the batches")
        mended = replace(mended, least_ns=bound if mended.least_ns is None else np.maximum(bound, mended.least_ns))
    elif any(IN_THE_RANK in now.dfg.names[name] for name in np.unique(now.dfg.name[now.dfg.of(Cls.DATA)]).tolist()):
        mended = mended.noted("an upper bound: loader workers would compete with the ranks for the host's CPUs")
    return mended


def _are_cpus_as_recorded(now: Scenario) -> bool:
    """Whether no other term of the scenario changed what CPUs do."""
    if not now.has_recorded_nodes:
        return False
    changed = now.dfg.dur_ns != now.recorded.dur_ns
    return not (changed & ~now.dfg.on(LaneKind.STREAM) & ~now.dfg.of(Cls.COMMUNICATION)).any()


TERM = Kind(
    name="data",
    examples=("data=0", "rank3.data=0", "data[ready]=0"),
    meaning="Batches take no time, so no rank waits for input data. No step gets shorter than the host's CPUs need to "
    "compute the step and make its batches, where their CPU time was recorded. `[ready]` drops that limit: nobody "
    "makes the batches, as if all samples were decoded before training.",
    needs="A DataLoader in the trace.",
    assumes="Loader workers can use every CPU of the host. `[ready]` is an upper bound.",
    effect=Edit(TermPhase.REMOVE, _without_input_stall),
    value=zero,
    argument=_argument,
    argument_is_optional=True,
    scoped=True,
)
