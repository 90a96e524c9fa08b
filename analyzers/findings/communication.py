"""ESP3xx: communication that nothing hides."""

import numpy as np

from esprof.analyzers.finding import Finding, RankBreakdown
from esprof.analyzers.findings.quality import ENOUGH_EXPLAINED
from esprof.analyzers.pricing import finding, ms, worth_naming
from esprof.replay.answering import Replayed
from esprof.replay.dfg import Cls
from esprof.replay.whatif import edits
from esprof.types import NS_PER_S


def exposed_communication(replayed: Replayed, parts: tuple[RankBreakdown, ...]) -> list[Finding]:
    """ESP301: what a step would gain if transfers took no time, waiting for peers not counted."""
    dfg, oracle = replayed.built.dfg, replayed.oracle
    transfers = dfg.of(Cls.COMMUNICATION)
    if not transfers.any():
        return []
    saving = oracle.saving_ns(edits.shorten(dfg, transfers, 0))
    if not worth_naming(replayed, saving):
        return []
    steps = len(replayed.steady.kept)
    kept = transfers & np.isin(dfg.step, replayed.steady.kept)
    by_name = np.bincount(dfg.name[kept], weights=dfg.dur_ns[kept], minlength=len(dfg.names))
    moved = dfg.bytes[kept & (dfg.bytes > 0)].sum()
    ranks = len(dfg.marks.ranks)
    evidence: dict[str, object] = {
        "exposed_ms": {str(part.rank): round(part.exposed_communication / 1e3, 3) for part in parts},
        "transfer_ms_per_step_and_rank": ms(dfg.dur_ns[kept].sum() / steps / ranks),
        "longest": dfg.names[int(by_name.argmax())],
    }
    if moved:
        evidence["bytes_per_step_and_rank"] = round(float(moved) / steps / ranks)
        evidence["bytes_per_second_of_transfer"] = round(float(moved) / float(dfg.dur_ns[kept].sum()) * NS_PER_S)
    return [
        finding(
            replayed,
            "ESP301",
            f"Transfers that nothing hides cost {saving / 1e6:.1f} ms a step",
            ranks=dfg.marks.ranks,
            saving_ns=saving,
            confidence="high" if replayed.explained_pct >= ENOUGH_EXPLAINED else "medium",
            evidence=evidence,
            advice="Send less (compression, lower precision, fewer synchronisations by accumulation), start earlier "
            "(smaller buckets), or use a faster link. The saving is the bound: no transfer time at all.",
            command="esprof replay RUN --what-if network=2x",
        )
    ]
