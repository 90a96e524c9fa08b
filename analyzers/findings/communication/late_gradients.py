"""ESP303: gradients that are sent after the backward pass, so that no compute overlaps them."""

import math
from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.communication.small_collectives import called_at
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.collectives import SMALL, SteadyStateCollectives, steady_collectives
from esprof.core import readable
from esprof.core.types import NS_PER_MS, NS_PER_S, Bytes, Rank
from esprof.replay.whatif.gradients.buckets import MIB

MIN_SHARE_AFTER_BACKWARD = 0.5
"""Least share of gradient bytes sent with or after the last gradient. If buckets overlap compute, only the last one is."""

MIN_SHARE_OF_STEP = 0.05
"""Least share of a step in which only these collectives run. A smaller saving is uncertain: more collectives have more fixed
cost, which no what-if includes on CPUs."""

MIN_SHARE_HIDDEN = 0.8
"""Least share of the saving that fits into the time in which the link idles during the backward pass. Otherwise the link is
too slow for these gradients, whenever they are sent (ESP301)."""

_BUCKET_COUNTS = (2, 4, 8)
"""Numbers of equal buckets that are tried."""

MIN_BUCKET_NS = 2 * NS_PER_MS
"""Duration from which a bucket is large enough even below `SMALL` bytes: its fixed cost is a fraction of that."""

MIN_BUCKET: Bytes = 64 * 1024
"""Smallest bucket that is tried: the time of a smaller one is mostly fixed cost."""

_PERFECT_OVERLAP = "overlap=perfect"


def late_gradients(case: Case) -> Iterator[Cause]:
    """Gradients that are mostly sent only after the last one is ready."""
    sent = steady_collectives(case.replayed)
    gradients = sent.is_kind("all_reduce", "reduce_scatter") & sent.after_first_gradient & (sent.bytes > 0)
    late = gradients & sent.after_last_gradient
    total = sent.a_step(sent.bytes[gradients])
    if not late.any() or sent.a_step(sent.bytes[late]) < MIN_SHARE_AFTER_BACKWARD * total:
        return
    exposed = sent.exposed_ns(late)
    if np.mean([*exposed.values()]) < MIN_SHARE_OF_STEP * case.pricer.step_ns:
        return
    scenario = _scenario(case, total, sent.rate(late))
    if scenario is None:
        return
    share, is_bound = sent.a_step(sent.bytes[late]) / total, scenario == _PERFECT_OVERLAP
    saving, most_ns = case.pricer.saving_ns(scenario) or 0.0, _most_ns(sent) if is_bound else math.inf
    if most_ns < MIN_SHARE_HIDDEN * saving or not case.is_worth_reporting(saving):
        return
    where, called = called_at(case, exposed)
    yield Cause(
        id="ESP303",
        title=f"{100 * share:.0f} % of gradient bytes are sent after the backward pass and overlap no compute",
        ranks=case.replayed.built.dfg.marks.ranks,
        scenario=scenario,
        most_ns=most_ns,
        is_bound=is_bound,
        confidence="medium",
        evidence=_evidence(case, sent, gradients, late, exposed) | where,
        advice=called + _advice(sent, late, scenario, is_bound),
    )


def _scenario(case: Case, total: float, rate: float) -> str | None:
    """The what-if of smaller buckets that saves most, or of perfect overlap if the buckets are unknown.

    None if the gradients (`total`, bytes a step, at `rate`, bytes a second) are too small for several buckets.
    """
    least = max(MIN_BUCKET, min(SMALL, rate * MIN_BUCKET_NS / NS_PER_S))
    sizes = [total / buckets for buckets in _BUCKET_COUNTS if total / buckets >= least]
    savings = {
        scenario: case.pricer.saving_ns(scenario) for scenario in (f"bucket_mb={size / MIB:.4g}" for size in sizes)
    }
    known = {scenario: saving for scenario, saving in savings.items() if saving is not None}
    if known:
        return max(known, key=lambda scenario: known[scenario])
    return _PERFECT_OVERLAP if sizes else None


def _most_ns(sent: SteadyStateCollectives) -> float:
    """Most that earlier sending can save of a step: the time of the backward pass in which the link idles, ns.

    Unknown between GPUs, whose backward pass runs later than its launches.
    """
    return math.inf if sent.dfg.has_gpu() else min(sent.idle_ns().values())


def _evidence(
    case: Case, sent: SteadyStateCollectives, gradients: np.ndarray, late: np.ndarray, exposed: dict[Rank, float]
) -> dict[str, Evidence]:
    sizes, overlap_pct = sent.bytes, {one.rank: one.overlap_pct for one in case.breakdown}
    return {
        "sent_after_last_gradient": Evidence(round(float(sizes[late].sum() / sizes[gradients].sum()), 3), "share"),
        "gradients_per_step_and_rank": Evidence(round(sent.a_step(sizes[gradients])), "bytes"),
        "collectives_per_step_and_rank": Evidence(round(sent.a_step(gradients), 1)),
        "largest_share": Evidence(round(float(sizes[gradients].max() / sent.a_step(sizes[gradients])), 3), "share"),
        "overlapped_communication": by_rank(
            {rank: None if pct is None else round(pct / 100, 3) for rank, pct in overlap_pct.items()}, "share"
        ),
        "exposed": by_rank({rank: round(ns) for rank, ns in exposed.items()}, "ns"),
    }


def _advice(sent: SteadyStateCollectives, late: np.ndarray, scenario: str, is_bound: bool) -> str:
    if not is_bound:
        size = scenario.partition("=")[2]
        return (
            f"Lower bucket_cap_mb of DistributedDataParallel to about {size} (MiB), so that the first buckets are sent "
            "during the backward pass. Measure the result on CPUs: the fixed cost of more collectives is included "
            "on GPUs only."
        )
    if (sent.by_gradient & late).any():
        return (
            "Send gradients during the backward pass, in buckets smaller than the model (bucket_cap_mb). The saving "
            "is an upper bound: perfect overlap."
        )
    return (
        "The job sends its gradients after the backward pass. Let DistributedDataParallel (or FSDP) send them "
        "during it, or launch each bucket from a hook (register_post_accumulate_grad_hook) with async_op=True. The "
        f"largest of these collectives is {readable.size(float(sent.bytes[late].max()))}. The saving is an upper "
        "bound: perfect overlap."
    )


_PAGES = (
    Page(
        "ESP303",
        "Gradients sent after the backward pass",
        "A backward pass can overlap the communication of the gradients that it has already computed. If one bucket "
        "holds most of the model, or the job sends its gradients itself at the end, no compute is left to overlap.",
        "`sent after last gradient` is the share of bytes launched with or after the last gradient, of all bytes in "
        "all-reduce and reduce-scatter from the first gradient on; `largest share` is the share of the largest "
        "collective. `exposed` is the time per step in which only these collectives run; `overlapped communication` "
        "is the share of all communication time in which the device computes. `source line` is as in ESP302.",
        "`bucket_mb=`: replay puts the gradients into 2, 4 or 8 equal buckets and takes the best. If DDP's buckets are "
        "unknown, `overlap=perfect`: an upper bound, with all communication overlapped. Between CPUs it is at most the time "
        "from the first to the last gradient in which no collective runs. If four fifths of the communication do not fit "
        "there, the link is too slow for these gradients whenever they are sent: that is ESP301.",
        "Use smaller buckets (bucket_cap_mb); send gradients with DDP or from hooks, not after the backward pass; "
        "or send fewer bytes.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=late_gradients)
