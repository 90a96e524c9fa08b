"""ESP9xx: what weakens the answer itself."""

from esprof.analyzers.finding import Finding
from esprof.analyzers.pricing import finding
from esprof.replay.answering import Replayed
from esprof.types import us

ENOUGH_EXPLAINED = 75.0
ENOUGH_MATCHED = 0.9


def evidence_quality(replayed: Replayed) -> list[Finding]:
    """ESP901–903: unexplained time, unmatched collectives, missing ranks."""
    return [found for rule in (_unexplained, _unmatched, _missing) for found in rule(replayed)]


def _unexplained(replayed: Replayed) -> list[Finding]:
    if replayed.explained_pct >= ENOUGH_EXPLAINED:
        return []
    return [
        finding(
            replayed,
            "ESP901",
            f"Only {replayed.explained_pct:.0f} % of the critical path is explained",
            ranks=(),
            saving_ns=0,
            confidence="high",
            evidence={"explained_pct": round(replayed.explained_pct, 2)},
            advice="Record with CUDA synchronisation events (esprof record does), and a few more steps; treat the "
            "predictions above as bounds.",
        )
    ]


def _unmatched(replayed: Replayed) -> list[Finding]:
    counts = replayed.built.counts
    seen, matched = counts["collectives"], counts["collectives_matched"]
    if not seen or matched >= ENOUGH_MATCHED * seen:
        return []
    return [
        finding(
            replayed,
            "ESP902",
            f"{seen - matched} of {seen} collective calls could not be matched across ranks",
            ranks=(),
            saving_ns=0,
            confidence="high",
            evidence={"collectives": seen, "matched": matched},
            advice="Waiting and transfer cannot be told apart in these: give the traces of all ranks of the same steps.",
        )
    ]


def _missing(replayed: Replayed) -> list[Finding]:
    run = replayed.run
    missing = tuple(sorted(set(range(run.world_size)) - set(run.ranks)))
    if not missing:
        return []
    return [
        finding(
            replayed,
            "ESP903",
            f"{len(missing)} of {run.world_size} ranks are missing",
            ranks=missing,
            saving_ns=0,
            confidence="high",
            evidence={"missing": list(missing), "step_us": us(replayed.oracle.step_ns)},
            advice="A straggler among them cannot be seen: record all ranks.",
        )
    ]
