"""`data=0`: loaders that never make a rank wait; `data[ready]=0`: batches that nobody has to make."""

import numpy as np

from esprof.core.errors import UsageError
from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif.graph.selections import taking_no_time
from esprof.replay.whatif.host.host_cpus import least_ns
from esprof.replay.whatif.loading.loader_evidence import IN_THE_RANK
from esprof.replay.whatif.scenario import Bound, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero

READY = "ready"


def _argument(text: str) -> str:
    if text != READY:
        raise UsageError(f"{text!r} is not a kind of input data", remedy=f"Write data=0 or data[{READY}]=0.")
    return text


def _without_input_stall(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return taking_no_time(now, terms, Cls.DATA, "no data loader was recorded in these steps")


def _bound(before: Scenario, after: Scenario, terms: tuple[Term, ...]) -> Bound:
    """Unless batches are ready, CPUs must make them nonetheless: no step is shorter than they need for it."""
    if all(term.argument == READY for term in terms):
        return Bound(notes=("an upper bound: all batches are ready before training starts",))
    # What the CPUs took was recorded as fast as they were.
    least = least_ns(before.run, before.dfg.marks.steps) if before.has_recorded_cpu_work else None
    if least is not None:
        # No step gets longer than it was.
        bound = np.minimum(least, replay(before.dfg).step_ns())
        is_limited = (bound > replay(after.dfg).step_ns()).any()
        return Bound(bound, ("limited by the host's CPUs, which still make the batches",) if is_limited else ())
    dfg = after.dfg
    if any(IN_THE_RANK in dfg.names[name] for name in np.unique(dfg.name[dfg.of(Cls.DATA)]).tolist()):
        return Bound(notes=("an upper bound: loader workers would compete with the ranks for the host's CPUs",))
    return Bound()


TERM = Kind(
    name="data",
    examples=("data=0", "rank3.data=0", "data[ready]=0"),
    meaning="Batches take no time, so no rank waits for input data. No step gets shorter than the host's CPUs need to "
    "compute the step and make its batches, where their CPU time was recorded. `[ready]` drops that limit: nobody "
    "makes the batches, as if all samples were decoded before training.",
    needs="A DataLoader in the trace.",
    assumes="Loader workers can use every CPU of the host. `[ready]` is an upper bound.",
    effect=Edit(TermPhase.REMOVE, _without_input_stall, _bound),
    value=zero,
    argument=_argument,
    argument_is_optional=True,
    scoped=True,
)
