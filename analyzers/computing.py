"""What a job on CPUs computes, for runs without a finding: places in its code, and what bounds its operations."""

from esprof.analyzers.ops.cpu_bounds import cpu_bounds
from esprof.analyzers.rule import Case
from esprof.analyzers.samples.computing_places import computing_places
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank
from esprof.replay.whatif.terms.small_operations import MAX_OPERATION_NS


def computes(case: Case) -> str:
    """Sentences on the rank that computes longest, each with a space before it; empty where a GPU computes, or no stack was
    sampled."""
    if case.replayed.built.dfg.has_gpu():
        return ""
    rank = max((one for one in case.breakdown if one.rank in case.ranks), key=lambda one: one.compute).rank
    places = computing_places(case.job.samples, rank)
    if not places:
        return ""
    (first, share), *others = [(printable(place, LONGEST_NAME), share) for place, share in places.items()]
    rest = "".join(f", {100 * share:.0f} % {place}" for place, share in others)
    return f" Rank {rank} spends {100 * share:.0f} % of its CPU time {first}{rest}.{_bounds(case, rank)}"


def _bounds(case: Case, rank: Rank) -> str:
    bounds = cpu_bounds(case.gpu_calls[rank])
    if bounds is None:
        return ""
    products, others, small = (f"{100 * share:.0f} %" for share in bounds)
    return (
        f" Of its operations, {products} of the time are products and convolutions (bound by arithmetic), {others} others "
        f"(by memory), and {small} take less than {readable.duration(MAX_OPERATION_NS)} each (by what a call costs)."
    )
