"""Functions of the job's own code that one rank alone is seen in: what they take, the others wait for."""

from esprof.analyzers.rule import Case, MeasuredPrice
from esprof.analyzers.samples.function_time import FunctionTimes, OwnFunction, leading_functions
from esprof.core.types import Rank


def lone_work(case: Case) -> dict[Rank, OwnFunction]:
    """The function that takes most of each rank that has some of its own.

    Only between CPUs, where nothing hides it, and where all ranks do the same work.
    """
    blame = case.pricer.blame
    if blame.dfg.has_gpu() or len(set(blame.roles.tolist())) > 1:
        return {}
    found: dict[Rank, OwnFunction] = {}
    for one in FunctionTimes(case.run).alone(leading_functions(case.run, case.run.ranks)):
        found.setdefault(max(one.took_ns, key=lambda rank: one.took_ns[rank]), one)
    return found


def price_of(one: OwnFunction) -> MeasuredPrice:
    """What the job's step gains without it: all of what it takes on its rank."""
    ranks, mean = len(one.took_ns), one.measured
    return MeasuredPrice(saving_ns=ranks * mean.saving_ns, margin_ns=ranks * mean.margin_ns, step_ns=mean.step_ns)
