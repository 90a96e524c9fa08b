"""ESP301: communication that nothing hides."""

import re
from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import RankBreakdown
from esprof.analyzers.findings.communication.late_transfers import late_transfers
from esprof.analyzers.findings.communication.small_transfers import MIN_TRANSFERS_OF_A_STEP, small_transfers
from esprof.analyzers.rule import Case, Cause, Page, Rule, explains
from esprof.analyzers.samples.sampled_places import seen_calling
from esprof.analyzers.views.transfers import SMALL, transfers
from esprof.core import readable
from esprof.core.readable import duration
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import NS_PER_S, ns
from esprof.replay.dfg import Cls

_NONE = "communication=0"

MIN_SHARE_OF_SAVING = 0.1
"""Least share of the price that the job must be seen to spend in calls of collectives, for its line to be named."""

_CALLED = re.compile(r"torch/distributed/distributed_c10d\.py\(\d+\): \w+(\n|$)")
"""Finds calls of collectives on stacks, such as `all_reduce` and `all_gather_object`. Those of DDP are made by C++ code."""

_LESS = "send less (compression, lower precision, fewer synchronisations by accumulation), or use a faster link"


def exposed_communication(case: Case) -> Iterator[Cause]:
    """What a step would gain if transfers took no time, waiting for peers not counted.

    Where a rule that tells more of the same time gains most of it, that says all.
    """
    saving = case.pricer.saving_ns(_NONE)
    if saving is None or not case.worth_naming(saving):
        return
    told = [*small_transfers(case), *late_transfers(case)]
    if any(explains(case, cause, saving) for cause in told):
        return
    line = _waited_for_at(case, saving)
    yield Cause(
        id="ESP301",
        title=f"Transfers that nothing hides cost {duration(saving)} a step",
        ranks=case.replayed.built.dfg.marks.ranks,
        scenario=_NONE,
        confidence="high" if case.is_explained else "medium",
        evidence=_evidence(case) | ({"place": Evidence(line)} if line else {}),
        advice=(f"The job waits at {line}. " if line else "")
        + f"{_advice(case, told)} The saving is the bound: no transfer time at all.",
    )


def _waited_for_at(case: Case, saving: float) -> str | None:
    """The line of the job's own code that calls collectives itself, where it spends much of `saving`, ns, in them."""
    found = [one for rank in case.run.ranks if (one := seen_calling(case.job.samples, rank, _CALLED)) is not None]
    seen, took_ns = max(found, key=lambda one: one[1], default=(None, 0.0))
    return printable(seen.text, LONGEST_NAME) if seen and took_ns >= MIN_SHARE_OF_SAVING * saving else None


def _advice(case: Case, told: list[Cause]) -> str:
    """What to do about these transfers, by what is known of them; `told` are causes of part of their time."""
    if told:
        ids = " and ".join(cause.id for cause in told)
        return f"See {ids} first. What is then left: {_LESS}."
    sent = transfers(case.replayed)
    if sent.a_step(sent.is_small) >= MIN_TRANSFERS_OF_A_STEP and np.median(sent.bytes) < SMALL:
        return (
            f"Half of the {sent.a_step(sent.bytes >= 0):.0f} transfers a step are below {readable.size(SMALL)}: send more "
            f"at a time where that can be done (larger buckets, flattened tensors). Else {_LESS}."
        )
    less = f"{_LESS[0].upper()}{_LESS[1:]}"
    if all(_could_hide(part) for part in case.parts):
        return f"{less}; or let them begin earlier: there is as much computing that no transfer runs beside."
    return f"{less}."


def _could_hide(part: RankBreakdown) -> bool:
    """Whether a rank computes as long without any transfer beside it as it transfers without computing."""
    if not part.overlap_pct:
        return part.compute >= part.exposed_communication
    overlap = part.overlap_pct / 100
    hiding = part.exposed_communication * overlap / (1 - overlap) if overlap < 1 else part.compute
    return part.compute - hiding >= part.exposed_communication


def _evidence(case: Case) -> dict[str, Evidence]:
    dfg, steps = case.replayed.built.dfg, case.replayed.steps.steady
    kept = dfg.of(Cls.COMMUNICATION) & np.isin(dfg.step, steps)
    by_name = np.bincount(dfg.name[kept], weights=dfg.dur_ns[kept], minlength=len(dfg.names))
    moved, shares = dfg.bytes[kept & (dfg.bytes > 0)].sum(), len(steps) * len(dfg.marks.ranks)
    communication_ns = float(dfg.dur_ns[kept].sum())
    evidence = {
        "exposed": by_rank({part.rank: ns(part.exposed_communication) for part in case.parts}, "ns"),
        "transfer_per_step_and_rank": Evidence(round(communication_ns / shares), "ns"),
        "longest": Evidence(dfg.names[int(by_name.argmax())]),
    }
    if moved:
        evidence["sent_per_step_and_rank"] = Evidence(round(float(moved) / shares), "bytes")
        evidence["rate_while_transferring"] = Evidence(round(float(moved) / communication_ns * NS_PER_S), "bytes/s")
    return evidence


_PAGES = (
    Page(
        "ESP301",
        "Communication that nothing hides",
        "Transfers run while no rank computes, so the step waits for them.",
        "`exposed` is the time per step in which only a transfer runs, by rank; waiting for peers is not in it. `place` is "
        "the line of the job's own code that calls the collectives, where samples show it in such calls for long.",
        "`communication=0`: replay makes all transfers take no time, the bound of what any faster link or compression "
        "can give. Where ESP302 or ESP303 gain most of that, they are named instead.",
        "Compression, lower precision, gradient accumulation, a faster link. Larger transfers where they are many and small "
        "(ESP302), earlier ones where they begin behind the backward pass (ESP303).",
    ),
)

RULE = Rule(pages=_PAGES, of_case=exposed_communication, scenarios=(_NONE,))
