"""ESP302: many transfers so small that what each costs beside its bytes dominates."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.transfers import SMALL, SteadyStateCollectives, transfers
from esprof.core import readable
from esprof.core.types import Bytes, Rank
from esprof.replay.whatif.communication.links import line
from esprof.replay.whatif.gradients.buckets import MIB

MIN_TRANSFERS_OF_A_STEP = 8
"""Fewer small transfers a step and rank are what any job has: a norm, a loss, a flag."""

MIN_SHARE_SMALL = 0.5
"""A transfer is small for what it costs where the fixed part of its time is more than this share."""

BUCKET: Bytes = 25 * MIB
"""Bytes that torch gives a bucket (`bucket_cap_mb`) where the job does not say."""

_BUCKETS_MB = (25, 50, 100)
"""Buckets that are tried."""

_SHARDED = ("FullyShardedDataParallel.", "FSDP::")
"""What the names of FSDP's annotations begin with."""


def small_transfers(case: Case) -> Iterator[Cause]:
    """Gradients or shards that travel in many small transfers, where larger ones would cost less."""
    sent = transfers(case.replayed)
    small = sent.is_small & _can_be_put_together(case, sent)
    if small.sum() < MIN_TRANSFERS_OF_A_STEP * sent.shares:
        return
    exposed = sent.exposed_ns(small)
    fixed = _fixed(sent, small)
    if not case.worth_naming(max(exposed.values())) or fixed is None or fixed.share < MIN_SHARE_SMALL:
        return
    scenario = _scenario(case, sent, small, fixed)
    if scenario is None or not case.worth_naming(case.pricer.saving_ns(scenario)):
        return
    count, median = sent.a_step(small), float(np.median(sent.bytes[small]))
    yield Cause(
        id="ESP302",
        title=f"{count:.0f} small transfers a step, of {readable.size(median)} (median): their number costs the time",
        ranks=case.replayed.built.dfg.marks.ranks,
        scenario=scenario,
        confidence="high" if scenario.startswith("bucket_mb") else "medium",
        evidence=_evidence(sent, small, fixed, exposed),
        advice=_advice(case, sent, small, fixed),
    )


def _can_be_put_together(case: Case, sent: SteadyStateCollectives) -> np.ndarray:
    """Mask of the transfers that hold gradients, or a sharded model. Others, as those of activations in tensor parallelism,
    are needed before the next one can begin."""
    run, names = case.run, {}
    for rank in case.run.ranks:
        names[rank] = any(name.startswith(_SHARDED) for name in run.events(rank).codes("name")[1])
    sharded = np.isin(sent.dfg.rank[sent.node], [rank for rank, is_sharded in names.items() if is_sharded])
    gradients = sent.is_kind("all_reduce", "reduce_scatter") & (sent.by_gradient | sent.after_last_gradient)
    mask: np.ndarray = gradients | (sharded & sent.is_kind("all_gather", "reduce_scatter"))
    return mask


@dataclass(frozen=True)
class _Fixed:
    """The fixed part of what small transfers take."""

    communication_ns: float
    """Of one transfer, ns."""
    ns_per_byte: float
    share: float
    """Of the time of all."""


def _fixed(sent: SteadyStateCollectives, small: np.ndarray) -> _Fixed | None:
    """By the line through all transfers of their kinds; None where their sizes tell nothing."""
    alike = np.isin(sent.dfg.name[sent.node], np.unique(sent.dfg.name[sent.node[small]])) & (sent.bytes > 0)
    found = line(sent.bytes[alike], sent.took_ns[alike])
    if found is None:
        return None
    fixed, moving = found.fixed_ns * small.sum(), found.ns_per_byte * sent.bytes[small].sum()
    return _Fixed(found.fixed_ns, found.ns_per_byte, float(fixed / (fixed + moving)) if fixed else 0.0)


def _scenario(case: Case, sent: SteadyStateCollectives, small: np.ndarray, fixed: _Fixed) -> str | None:
    """The what-if of larger transfers: other buckets where the run can tell them, else so much less time for those of these
    names as the line through their times says.

    Between CPUs a what-if of buckets does not count what a transfer costs beside its bytes, which is all that matters here.
    """
    if sent.dfg.has_gpu():
        savings = {f"bucket_mb={size}": case.pricer.saving_ns(f"bucket_mb={size}") for size in _BUCKETS_MB}
        known = {scenario: saving for scenario, saving in savings.items() if saving is not None}
        if known:
            return max(known, key=lambda scenario: known[scenario])
    names = np.unique(sent.dfg.name[sent.node[small]])
    if not small[np.isin(sent.dfg.name[sent.node], names)].all():
        return None
    count, size = sent.a_step(small), sent.a_step(sent.bytes[small])
    moving = size * fixed.ns_per_byte
    faster = (count * fixed.communication_ns + moving) / (math.ceil(size / BUCKET) * fixed.communication_ns + moving)
    pattern = "|".join(re.escape(sent.dfg.names[name]) for name in names.tolist())
    return f"collective[^({pattern})$]={faster:.3g}x"


def _evidence(
    sent: SteadyStateCollectives, small: np.ndarray, fixed: _Fixed, exposed: dict[Rank, float]
) -> dict[str, Evidence]:
    large = (sent.bytes >= SMALL) & np.isin(sent.dfg.name[sent.node], np.unique(sent.dfg.name[sent.node[small]]))
    evidence = {
        "small_transfers_per_step_and_rank": Evidence(round(sent.a_step(small), 1)),
        "median_size": Evidence(round(float(np.median(sent.bytes[small]))), "bytes"),
        "sent_so_per_step_and_rank": Evidence(round(sent.a_step(sent.bytes[small])), "bytes"),
        "fixed_cost_of_a_transfer": Evidence(round(fixed.communication_ns), "ns"),
        "fixed_share": Evidence(round(fixed.share, 3), "share"),
        "exposed": by_rank({rank: round(ns) for rank, ns in exposed.items()}, "ns"),
        "rate_of_small": Evidence(round(sent.rate(small)), "bytes/s"),
    }
    if large.any():
        evidence["rate_of_large"] = Evidence(round(sent.rate(large)), "bytes/s")
    return evidence


def _advice(case: Case, sent: SteadyStateCollectives, small: np.ndarray, fixed: _Fixed) -> str:
    size = sent.a_step(sent.bytes[small])
    needed = math.ceil(size / BUCKET)
    several = "one transfer" if needed == 1 else f"{needed} transfers"
    return (
        f"Send more at a time: a transfer costs {readable.duration(fixed.communication_ns)} beside its bytes, and all "
        f"{readable.size(size)} would go in {several} of torch's own size (25 MiB). With DDP raise bucket_cap_mb; with FSDP "
        "wrap larger units; where the job sends gradients by itself, flatten them into one tensor first. Compression would "
        "gain little: it is not the bytes that take the time."
    )


_PAGES = (
    Page(
        "ESP302",
        "Many small transfers",
        "Each transfer costs a fixed time beside its bytes: it is issued, met by all ranks, and passes every one of them. "
        "Where gradients or shards of a model go in many transfers of less than 1 MiB, that is most of what they take.",
        "`fixed_cost_of_a_transfer` is where the line through the times of such transfers by size begins, and "
        "`fixed_share` its share of the time of the small ones; `rate_of_small` against `rate_of_large` is what they "
        "carry, where the run has large ones of the same kind. `exposed` is the time per step in which only small "
        "transfers run. Transfers of activations, which cannot be put together, do not count.",
        "`bucket_mb=` between GPUs, where the run tells DDP's buckets, of 25 MiB or the larger size that gains most. Else "
        "`collective[…]=`: as much less time for these transfers as the line says of the same bytes in transfers of 25 MiB.",
        "Larger buckets (bucket_cap_mb), larger units of FSDP, gradients flattened into one tensor. Not compression, and "
        "not smaller buckets.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=small_transfers)
