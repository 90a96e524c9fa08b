"""ESP301: exposed communication, which does not overlap compute."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import RankBreakdown
from esprof.analyzers.findings.communication.small_collectives import MIN_PER_STEP
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.samples.sampled_lines import collective_line
from esprof.analyzers.views.collectives import SMALL, steady_collectives
from esprof.analyzers.views.links import link_use
from esprof.core import readable
from esprof.core.readable import duration
from esprof.core.types import NS_PER_S, ns
from esprof.replay.dfg import Cls

_SCENARIO = "communication=0"

MIN_SHARE_OF_SAVING = 0.1
"""Least share of the saving that samples must show in calls of collectives, for their line to be reported."""

MIN_SHARE_OF_LINK = 0.2
"""Share of the data sheet's peak below which a link is suspected: on boards without a switch, a pair of devices has a third
of the links."""

_SLOW_LINK = (
    "Large collectives reach little of the devices' direct links. Check that they use them (NCCL_DEBUG=INFO, "
    "nvidia-smi topo -m, NCCL_P2P_DISABLE, shared memory of the container). "
)
_SEND_LESS = "send fewer bytes (compression, lower precision, gradient accumulation), or use a faster link"


def exposed_communication(case: Case) -> Iterator[Cause]:
    """Steps that would be shorter if communication took no time; waiting for peers is not counted."""
    saving = case.pricer.saving_ns(_SCENARIO)
    if saving is None or not case.is_worth_reporting(saving):
        return
    line = collective_line(case.job.samples, case.ranks, MIN_SHARE_OF_SAVING * saving)
    link, is_slow = _link(case)
    yield Cause(
        id="ESP301",
        title=f"Communication that does not overlap compute costs at most {duration(saving)} a step",
        ranks=case.replayed.built.dfg.marks.ranks,
        scenario=_SCENARIO,
        is_bound=True,
        confidence="high" if case.is_explained else "medium",
        evidence=_evidence(case) | link | ({"source_line": Evidence(line)} if line else {}),
        advice=(f"The job waits at {line}. " if line else "")
        + (_SLOW_LINK if is_slow else "")
        + f"{_advice(case)} The saving is an upper bound: it assumes that communication takes no time.",
    )


def _advice(case: Case) -> str:
    """Advice by size and overlap of the collectives."""
    sent = steady_collectives(case.replayed)
    if sent.a_step(sent.is_small) >= MIN_PER_STEP and np.median(sent.bytes) < SMALL:
        return (
            f"Half of the {sent.a_step(sent.bytes >= 0):.0f} collectives a step are smaller than "
            f"{readable.size(SMALL)}: combine them if possible (larger buckets, flattened tensors). Otherwise {_SEND_LESS}."
        )
    less = f"{_SEND_LESS[0].upper()}{_SEND_LESS[1:]}"
    if all(_could_hide(one) for one in case.breakdown):
        return f"{less}. Or start collectives earlier: the step has enough compute to hide them."
    return f"{less}."


def _link(case: Case) -> tuple[dict[str, Evidence], bool]:
    """(share of the link's peak that the largest collectives of the kind with most time reach, whether it is very low).

    Small collectives are bound by latency.
    """
    sent = steady_collectives(case.replayed)
    known = sent.bytes >= SMALL
    if not known.any():
        return {}, False
    took = np.bincount(sent.dfg.name[sent.node[known]], sent.took_ns[known])
    mine = known & (sent.dfg.name[sent.node] == took.argmax())
    mine &= sent.bytes >= sent.bytes[mine].max() / 2
    use = link_use(sent, mine)
    if use is None:
        return {}, False
    is_slow = use.peak.source == "data sheet" and use.share(sent.rate(mine)) < MIN_SHARE_OF_LINK
    return use.evidence({"largest collectives": sent.rate(mine)}), is_slow


def _could_hide(rank: RankBreakdown) -> bool:
    """Whether a rank's compute without concurrent communication is at least as long as its exposed communication."""
    if not rank.overlap_pct:
        return rank.compute >= rank.exposed_communication
    overlap = rank.overlap_pct / 100
    hiding = rank.exposed_communication * overlap / (1 - overlap) if overlap < 1 else rank.compute
    return rank.compute - hiding >= rank.exposed_communication


def _evidence(case: Case) -> dict[str, Evidence]:
    dfg, steps = case.replayed.built.dfg, case.replayed.steps.steady
    sent = dfg.of(Cls.COMMUNICATION) & np.isin(dfg.step, steps)
    by_name = np.bincount(dfg.name[sent], weights=dfg.dur_ns[sent], minlength=len(dfg.names))
    sent_bytes, rank_steps = dfg.bytes[sent & (dfg.bytes > 0)].sum(), len(steps) * len(dfg.marks.ranks)
    communication_ns = float(dfg.dur_ns[sent].sum())
    evidence = {
        "exposed": by_rank({one.rank: ns(one.exposed_communication) for one in case.breakdown}, "ns"),
        "communication_per_step_and_rank": Evidence(round(communication_ns / rank_steps), "ns"),
        "longest": Evidence(dfg.names[int(by_name.argmax())]),
    }
    if sent_bytes:
        evidence["sent_per_step_and_rank"] = Evidence(round(float(sent_bytes) / rank_steps), "bytes")
        evidence["bandwidth"] = Evidence(round(float(sent_bytes) / communication_ns * NS_PER_S), "bytes/s")
    return evidence


_PAGES = (
    Page(
        "ESP301",
        "Exposed communication",
        "Collectives run while their rank computes nothing, so the step waits for them.",
        "`exposed` is the time per step in which only communication runs, by rank, without waiting for peers. "
        "`source line` is the line of the job's own code that calls the collectives, if samples show it there for "
        "long. `share of link` is the bus bandwidth of the largest collectives as a share of the link's peak, if that is "
        "known (`esprof ops` says how).",
        "`communication=0`: in replay all communication takes no time: the upper bound for any faster link or "
        "compression. What ESP302 to ESP305 save of it is counted for them.",
        "Use compression, lower precision, gradient accumulation, or a faster link. Combine many small collectives "
        "(ESP302); start collectives earlier that run after the backward pass (ESP303).",
    ),
)

RULE = Rule(pages=_PAGES, of_case=exposed_communication, scenarios=(_SCENARIO,))
