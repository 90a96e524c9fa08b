"""ESP302: many small collectives whose fixed cost dominates."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.samples.sampled_lines import collective_line
from esprof.analyzers.views.collectives import SMALL, SteadyStateCollectives, steady_collectives
from esprof.core import readable
from esprof.core.types import NS_PER_US, Bytes, Ns, Rank
from esprof.replay.whatif.communication.links import line
from esprof.replay.whatif.gradients.buckets import MIB

MIN_PER_STEP = 8
"""Least number of small collectives per step and rank: any job has a few, for a norm, a loss or a flag."""

MIN_SHARE_SMALL = 0.5
"""Least share of fixed cost in the time of small collectives."""

MIN_SIZE_RATIO = 4
"""Least ratio of the largest size to the smallest between CPUs, where times of collectives differ twofold by chance."""

MIN_SHARE_AT_LINE = 0.5
"""Least share of the exposed time of collectives that samples must show at the line that calls collectives, for it to be
reported. DDP calls its own without a line."""

MAX_BETWEEN_NS: Ns = 200 * NS_PER_US
"""Longest time between two all-reduces in a row: too short to compute from the result of one what the other sends, but for a
few small operations."""

BUCKET: Bytes = 25 * MIB
"""DDP's default bucket size (`bucket_cap_mb`)."""

_BUCKETS_MB = (25, 50, 100)
"""Bucket sizes that are tried."""

_FSDP_PREFIXES = ("FullyShardedDataParallel.", "FSDP::")
"""Prefixes of FSDP's annotations."""


def small_collectives(case: Case) -> Iterator[Cause]:
    """Gradients or shards sent in many small collectives, where fewer and larger ones would cost less."""
    sent = steady_collectives(case.replayed)
    small = _of_one_kernel(sent, sent.is_small & _can_be_combined(case, sent))
    if small.sum() < MIN_PER_STEP * sent.shares:
        return
    exposed = sent.exposed_ns(small)
    fixed = _fixed(sent, small)
    if not case.is_worth_reporting(max(exposed.values())) or fixed is None or fixed.share < MIN_SHARE_SMALL:
        return
    scenario = _scenario(case, sent, small, fixed)
    if not case.is_worth_reporting(case.pricer.saving_ns(scenario)):
        return
    where, called = called_at(case, exposed)
    count, median = sent.a_step(small), float(np.median(sent.bytes[small]))
    yield Cause(
        id="ESP302",
        title=f"{count:.0f} small collectives a step, {readable.size(median)} each (median), spend most of their time "
        "on fixed cost, not on bytes",
        ranks=case.replayed.built.dfg.marks.ranks,
        scenario=scenario,
        confidence="high" if scenario.startswith("bucket_mb") else "medium",
        evidence=_evidence(sent, small, fixed, exposed) | where,
        advice=called + _advice(case, sent, small, fixed),
    )


def _of_one_kernel(sent: SteadyStateCollectives, small: np.ndarray) -> np.ndarray:
    """Those of the small collectives whose kernel takes most of their time, bool[collectives]: others have other costs."""
    names = sent.dfg.name[sent.node]
    took_ns = np.bincount(names, np.where(small, sent.took_ns, 0.0), 1)
    mask: np.ndarray = small & (names == took_ns.argmax())
    return mask


def called_at(case: Case, exposed: Mapping[Rank, float]) -> tuple[dict[str, Evidence], str]:
    """(evidence, first sentence of the advice) of the line that calls collectives, which are `exposed` for so long in a step
    of each rank, ns; both empty if samples do not show it."""
    where = collective_line(case.job.samples, case.ranks, MIN_SHARE_AT_LINE * max(exposed.values()))
    return ({"source_line": Evidence(where)}, f"The job calls them at {where}. ") if where else ({}, "")


def _can_be_combined(case: Case, sent: SteadyStateCollectives) -> np.ndarray:
    """Mask of the collectives of gradients, of a sharded model, or in a row, bool[collectives].

    Others cannot be combined: the results of activations in tensor parallelism are needed before the next one can start.
    """
    fsdp_ranks = [
        rank
        for rank in case.ranks
        if any(name.startswith(_FSDP_PREFIXES) for name in case.run.events(rank).codes("name")[1])
    ]
    sharded = np.isin(sent.dfg.rank[sent.node], fsdp_ranks)
    gradients = sent.is_kind("all_reduce", "reduce_scatter") & (sent.by_gradient | sent.after_last_gradient)
    mask: np.ndarray = gradients | (sharded & sent.is_kind("all_gather", "reduce_scatter")) | _in_a_row(sent)
    return mask


def _in_a_row(sent: SteadyStateCollectives) -> np.ndarray:
    """Mask of the all-reduces between CPUs that their rank calls right after another one, or before, bool[collectives].

    Between GPUs the times of launches do not tell what is computed in between.
    """
    found, dfg = np.zeros(len(sent.node), bool), sent.dfg
    chosen = np.flatnonzero(sent.is_kind("all_reduce") & (not dfg.has_gpu()))
    rank, end_ns = dfg.rank[sent.node], (dfg.recorded_ns + dfg.dur_ns)[sent.node]
    order = chosen[np.lexsort((sent.launched_ns[chosen], rank[chosen]))]
    one, other = order[:-1], order[1:]
    between_ns = sent.launched_ns[other] - end_ns[one]
    follows = (rank[one] == rank[other]) & (between_ns >= 0) & (between_ns <= MAX_BETWEEN_NS)
    found[one[follows]] = found[other[follows]] = True
    return found


@dataclass(frozen=True)
class _FixedCost:
    """The fixed cost of small collectives."""

    collective_ns: float
    """Fixed cost of one collective, ns."""
    ns_per_byte: float
    share: float
    """Share of fixed cost in the time of all small collectives."""


def _fixed(sent: SteadyStateCollectives, small: np.ndarray) -> _FixedCost | None:
    """Linear fit of time over size of all collectives with the same kernel; None if their sizes do not differ enough."""
    alike = _like(sent, small) & (sent.bytes > 0)
    sizes = sent.bytes[alike]
    fit = line(sizes, sent.took_ns[alike])
    if fit is None or (not sent.dfg.has_gpu() and sizes.max() < MIN_SIZE_RATIO * sizes.min()):
        return None
    fixed, moving = fit.fixed_ns * small.sum(), fit.ns_per_byte * sent.bytes[small].sum()
    return _FixedCost(fit.fixed_ns, fit.ns_per_byte, float(fixed / (fixed + moving)) if fixed else 0.0)


def _scenario(case: Case, sent: SteadyStateCollectives, small: np.ndarray, fixed: _FixedCost) -> str:
    """The what-if of larger collectives: other buckets if the run's buckets are known, else a speed-up by the linear fit.

    A what-if of buckets does not include the fixed cost of a collective on CPUs, so the linear fit is used there. What-ifs
    name collectives by their kernel. The speed-up is that of all with the kernel of the small ones if only these are
    combined.
    """
    if sent.dfg.has_gpu():
        savings = {f"bucket_mb={size}": case.pricer.saving_ns(f"bucket_mb={size}") for size in _BUCKETS_MB}
        known = {scenario: saving for scenario, saving in savings.items() if saving is not None}
        if known:
            return max(known, key=lambda scenario: known[scenario])
    alike = _like(sent, small)
    count, moving = sent.a_step(alike), sent.a_step(sent.bytes[alike]) * fixed.ns_per_byte
    fewer = count - sent.a_step(small) + math.ceil(sent.a_step(sent.bytes[small]) / BUCKET)
    speedup = (count * fixed.collective_ns + moving) / (fewer * fixed.collective_ns + moving)
    return f"collective[^{re.escape(sent.dfg.names[sent.dfg.name[sent.node[small][0]]])}$]={speedup:.3g}x"


def _like(sent: SteadyStateCollectives, small: np.ndarray) -> np.ndarray:
    """Mask of all collectives with the kernel of the small ones, bool[collectives]."""
    names = sent.dfg.name[sent.node]
    mask: np.ndarray = names == names[small][0]
    return mask


def _evidence(
    sent: SteadyStateCollectives, small: np.ndarray, fixed: _FixedCost, exposed: dict[Rank, float]
) -> dict[str, Evidence]:
    large = (sent.bytes >= SMALL) & _like(sent, small)
    evidence = {
        "small_collectives_per_step_and_rank": Evidence(round(sent.a_step(small), 1)),
        "median_size": Evidence(round(float(np.median(sent.bytes[small]))), "bytes"),
        "small_bytes_per_step_and_rank": Evidence(round(sent.a_step(sent.bytes[small])), "bytes"),
        "fixed_cost_per_collective": Evidence(round(fixed.collective_ns), "ns"),
        "fixed_share": Evidence(round(fixed.share, 3), "share"),
        "exposed": by_rank({rank: round(ns) for rank, ns in exposed.items()}, "ns"),
        "bandwidth_of_small": Evidence(round(sent.rate(small)), "bytes/s"),
    }
    if large.any():
        evidence["bandwidth_of_large"] = Evidence(round(sent.rate(large)), "bytes/s")
    return evidence


def _advice(case: Case, sent: SteadyStateCollectives, small: np.ndarray, fixed: _FixedCost) -> str:
    size = sent.a_step(sent.bytes[small])
    needed = math.ceil(size / BUCKET)
    several = "one collective" if needed == 1 else f"{needed} collectives"
    return (
        f"Combine collectives: each has a fixed cost of {readable.duration(fixed.collective_ns)}, and all "
        f"{readable.size(size)} would fit into {several} of PyTorch's default bucket size (25 MiB). With DDP raise "
        "bucket_cap_mb; with FSDP wrap larger units; if the job sends gradients or metrics itself, flatten them "
        "into one tensor first. Compression would save little, because the fixed cost does not depend on the bytes."
    )


_PAGES = (
    Page(
        "ESP302",
        "Many small collectives",
        "Each collective has a fixed cost: it is launched, all ranks synchronise, and data passes through every "
        "rank. If gradients or shards of a model are sent in many collectives of less than 1 MiB, the fixed cost "
        "dominates. So it does in loops over collectives, for example of one metric after the other.",
        "`fixed cost per collective` is the intercept of a linear fit of time over size, and `fixed share` its "
        "share of the time of small collectives. All figures are of the kernel that takes most of it. Between CPUs the "
        f"sizes must differ at least by a factor of {MIN_SIZE_RATIO}. `source line` is the line that calls them, if samples "
        "show it for at least half of the exposed time. `bandwidth of small` can be compared with `bandwidth of large`, if "
        "the run has large collectives of the same kind. `exposed` is the time per step in which only small "
        "collectives run. All-reduces that a rank computing on a CPU calls within 0.2 ms of each other count, too, whatever "
        "they send. Others, such as those of activations, cannot be combined and are not counted.",
        "`bucket_mb=` on GPUs with known DDP buckets: 25 MiB or the larger size that saves most. Otherwise "
        "`collective[…]=`: the speed-up of all collectives with that kernel that the linear fit predicts if the small ones "
        "are sent in collectives of 25 MiB.",
        "Use larger buckets (bucket_cap_mb), larger FSDP units, or one tensor for all gradients or metrics. Compression or "
        "smaller buckets do not help.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=small_collectives)
