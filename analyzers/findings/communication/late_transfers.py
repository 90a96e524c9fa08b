"""ESP303: gradients that are sent when the backward pass is over, so that nothing can hide them."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.transfers import SMALL, SteadyStateCollectives, transfers
from esprof.core import readable
from esprof.core.types import NS_PER_MS, NS_PER_S, Bytes, Rank
from esprof.replay.whatif.gradients.buckets import MIB

MIN_SHARE_BEHIND_BACKWARD = 0.5
"""Share of the gradients' bytes sent for or behind the last gradient from which on it counts: of buckets that overlap, only
the last is sent then."""

MIN_SHARE_OF_STEP = 0.05
"""Least share of a step in which nothing but these transfers runs. More and smaller transfers cost more beside their bytes,
which between CPUs no what-if counts: for less it would not be worth it."""

_PARTS = (2, 4, 8)
"""Into so many buckets of equal size gradients are tried to be sent."""

MIN_TRANSFER_NS = 2 * NS_PER_MS
"""A bucket that takes so long is large enough even below `SMALL`: what a transfer costs beside its bytes is a fraction of
that."""

LEAST: Bytes = 64 * 1024
"""A smaller bucket that takes long takes it for being sent, and not for its bytes."""

_HIDDEN = "overlap=perfect"


def late_transfers(case: Case) -> Iterator[Cause]:
    """Gradients of which most are sent only when the last one is there."""
    sent = transfers(case.replayed)
    gradients = sent.is_kind("all_reduce", "reduce_scatter") & sent.after_first_gradient & (sent.bytes > 0)
    late = gradients & sent.after_last_gradient
    total = sent.a_step(sent.bytes[gradients])
    if not late.any() or sent.a_step(sent.bytes[late]) < MIN_SHARE_BEHIND_BACKWARD * total:
        return
    exposed = sent.exposed_ns(late)
    if np.mean([*exposed.values()]) < MIN_SHARE_OF_STEP * case.pricer.step_ns:
        return
    scenario = _scenario(case, total, sent.rate(late))
    if scenario is None or not case.worth_naming(case.pricer.saving_ns(scenario)):
        return
    share, is_bound = sent.a_step(sent.bytes[late]) / total, scenario == _HIDDEN
    yield Cause(
        id="ESP303",
        title=f"{100 * share:.0f} % of the gradients are sent when the backward pass is over: nothing hides them",
        ranks=case.replayed.built.dfg.marks.ranks,
        scenario=scenario,
        confidence="medium",
        evidence=_evidence(case, sent, gradients, late, exposed),
        advice=_advice(sent, late, scenario, is_bound),
    )


def _scenario(case: Case, total: float, rate: float) -> str | None:
    """The what-if of smaller buckets that gains most; where no bucket can be told apart, that of transfers that are hidden.

    None where the gradients (`total`, bytes a step, at `rate`, bytes a second) are too few to be sent in parts.
    """
    least = max(LEAST, min(SMALL, rate * MIN_TRANSFER_NS / NS_PER_S))
    sizes = [total / parts for parts in _PARTS if total / parts >= least]
    savings = {
        scenario: case.pricer.saving_ns(scenario) for scenario in (f"bucket_mb={size / MIB:.4g}" for size in sizes)
    }
    known = {scenario: saving for scenario, saving in savings.items() if saving is not None}
    if known:
        return max(known, key=lambda scenario: known[scenario])
    return _HIDDEN if sizes else None


def _evidence(
    case: Case, sent: SteadyStateCollectives, gradients: np.ndarray, late: np.ndarray, exposed: dict[Rank, float]
) -> dict[str, Evidence]:
    sizes, known = sent.bytes, {part.rank: part.overlap_pct for part in case.parts}
    return {
        "sent_after_last_gradient": Evidence(round(float(sizes[late].sum() / sizes[gradients].sum()), 3), "share"),
        "gradients_per_step_and_rank": Evidence(round(sent.a_step(sizes[gradients])), "bytes"),
        "transfers_per_step_and_rank": Evidence(round(sent.a_step(gradients), 1)),
        "largest_of_all": Evidence(round(float(sizes[gradients].max() / sent.a_step(sizes[gradients])), 3), "share"),
        "hidden_of_all_transfers": by_rank(
            {rank: None if pct is None else round(pct / 100, 3) for rank, pct in known.items()}, "share"
        ),
        "exposed": by_rank({rank: round(ns) for rank, ns in exposed.items()}, "ns"),
    }


def _advice(sent: SteadyStateCollectives, late: np.ndarray, scenario: str, is_bound: bool) -> str:
    if not is_bound:
        size = scenario.partition("=")[2]
        return (
            f"Lower bucket_cap_mb of DistributedDataParallel to about {size} (MiB), so that the first buckets are sent "
            "while the backward pass goes on. What more transfers cost beside their bytes is counted between GPUs alone: "
            "measure it."
        )
    if (sent.by_gradient & late).any():
        return (
            "Send gradients while the backward pass goes on: in buckets smaller than the model (bucket_cap_mb). The "
            "saving is a bound: transfers that are hidden perfectly."
        )
    return (
        "The gradients are sent behind the backward pass, and not by it: let DistributedDataParallel (or FSDP) send them "
        "while it goes on, or issue each bucket from a hook (register_post_accumulate_grad_hook) with async_op=True. The "
        f"largest of these transfers is {readable.size(float(sent.bytes[late].max()))}. The saving is a bound: transfers "
        "that are hidden perfectly."
    )


_PAGES = (
    Page(
        "ESP303",
        "Gradients sent when the backward pass is over",
        "A backward pass can hide the transfer of the gradients that it has made already. Where one bucket holds most of "
        "the model, or where the job sends its gradients by itself at the end, nothing is left to hide them.",
        "`sent_after_last_gradient` is the share of the bytes issued for or behind the last gradient, of all that "
        "all-reduce and reduce-scatter send from the first gradient on; `largest_of_all` that of the largest transfer. "
        "`exposed` is the time per step in which only these transfers run, `hidden_of_all_transfers` the share of all "
        "transfers' time in which the device computes.",
        "`bucket_mb=`: replay puts the gradients into 2, 4 or 8 equal buckets, the best of which counts. Where the run "
        "does not tell DDP's buckets, `overlap=perfect`: a bound, with all transfers hidden.",
        "Smaller buckets (bucket_cap_mb), gradients sent by DDP or from hooks instead of behind the backward pass; else "
        "fewer bytes.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=late_transfers)
