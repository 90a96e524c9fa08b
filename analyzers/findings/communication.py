"""ESP301: communication that nothing hides."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.readable import duration
from esprof.replay.dfg import Cls
from esprof.types import NS_PER_S, ns

_NONE = "communication=0"


def exposed_communication(case: Case) -> Iterator[Cause]:
    """What a step would gain if transfers took no time, waiting for peers not counted."""
    saving = case.pricer.saving_ns(_NONE)
    if saving is None or not case.worth_naming(saving):
        return
    yield Cause(
        id="ESP301",
        title=f"Transfers that nothing hides cost {duration(saving)} a step",
        ranks=case.replayed.built.dfg.marks.ranks,
        scenario=_NONE,
        confidence="high" if case.is_explained else "medium",
        evidence=_evidence(case),
        advice="Send less (compression, lower precision, fewer synchronisations by accumulation), start earlier "
        "(smaller buckets), or use a faster link. The saving is the bound: no transfer time at all.",
    )


def _evidence(case: Case) -> dict[str, Evidence]:
    dfg, steps = case.replayed.built.dfg, case.replayed.steps.steady
    kept = dfg.of(Cls.COMMUNICATION) & np.isin(dfg.step, steps)
    by_name = np.bincount(dfg.name[kept], weights=dfg.dur_ns[kept], minlength=len(dfg.names))
    moved, shares = dfg.bytes[kept & (dfg.bytes > 0)].sum(), len(steps) * len(dfg.marks.ranks)
    transfer_ns = float(dfg.dur_ns[kept].sum())
    evidence = {
        "exposed": by_rank({part.rank: ns(part.exposed_communication) for part in case.parts}, "ns"),
        "transfer_per_step_and_rank": Evidence(round(transfer_ns / shares), "ns"),
        "longest": Evidence(dfg.names[int(by_name.argmax())]),
    }
    if moved:
        evidence["sent_per_step_and_rank"] = Evidence(round(float(moved) / shares), "bytes")
        evidence["rate_while_transferring"] = Evidence(round(float(moved) / transfer_ns * NS_PER_S), "bytes/s")
    return evidence


_PAGES = (
    Page(
        "ESP301",
        "Communication that nothing hides",
        "Transfers run while no rank computes, so the step waits for them.",
        "`exposed` is the time per step in which only a transfer runs, by rank; waiting for peers is not in it.",
        "`communication=0`: replay makes all transfers take no time, the bound of what any faster link or compression "
        "can give.",
        "Compression, lower precision, gradient accumulation, smaller buckets that start earlier, a faster link.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=exposed_communication, scenarios=(_NONE,))
