"""Diagnosis: run every rule on a replayed run, order what they find by price, and say the verdict in one sentence."""

from esprof.analyzers.breakdown import breakdown
from esprof.analyzers.communication import exposed_communication
from esprof.analyzers.data import input_stalls
from esprof.analyzers.finding import Diagnosis, Finding, RankBreakdown
from esprof.analyzers.host import allocator, host_bound
from esprof.analyzers.pricing import listed
from esprof.analyzers.quality import evidence_quality
from esprof.analyzers.stragglers import stragglers
from esprof.analyzers.throughput import throughput
from esprof.replay.answering import Replayed
from esprof.types import us


def diagnose(replayed: Replayed) -> Diagnosis:
    """Findings of a replayed run, most time first."""
    parts = breakdown(replayed)
    findings = [
        *input_stalls(replayed, parts),
        *stragglers(replayed),
        *exposed_communication(replayed, parts),
        *host_bound(replayed, parts),
        *allocator(replayed),
        *evidence_quality(replayed),
    ]
    findings.sort(key=lambda found: -found.saving_us)
    return Diagnosis(
        verdict=_verdict(replayed, findings, parts),
        findings=tuple(findings),
        step_us=us(replayed.oracle.step_ns),
        steps=replayed.steady.kept,
        world_size=replayed.run.world_size,
        breakdown=parts,
        throughput=throughput(replayed),
        explained_pct=round(replayed.explained_pct, 3),
        replay_error_pct=round(float(abs(replayed.error_pct).max()), 4),
        warnings=replayed.warnings,
    )


def _verdict(replayed: Replayed, findings: list[Finding], parts: tuple[RankBreakdown, ...]) -> str:
    step_ms = replayed.oracle.step_ns / 1e6
    missing = tuple(sorted(set(range(replayed.run.world_size)) - set(replayed.run.ranks)))
    caveat = f" What {listed(missing)} did is not in this run, and may be the cause." if missing else ""
    if not findings or findings[0].saving_us <= 0:
        computing = sum(part.compute / part.step_us for part in parts) / len(parts)
        return (
            f"A step takes {step_ms:.1f} ms, {100 * computing:.0f} % of it compute; "
            f"no cause that esprof knows costs it noticeably more.{caveat}"
        )
    first = findings[0]
    without = step_ms - first.saving_us / 1e3
    if without <= 0:
        return f"{first.title}. It is all of the step of {step_ms:.1f} ms.{caveat}"
    return (
        f"{first.title}. Mending it would take a step from {step_ms:.1f} to {without:.1f} ms "
        f"({step_ms / without:.2f}×).{caveat}"
    )
