"""Diagnosis: run every rule on a replayed run, order what they find by price, and say the verdict in one sentence."""

from esprof.analyzers.finding import Diagnosis, Finding, RankBreakdown
from esprof.analyzers.findings.communication import exposed_communication
from esprof.analyzers.findings.hangs import HANGS, hang_verdict, hangs
from esprof.analyzers.findings.host import allocator, host_bound
from esprof.analyzers.findings.input_data import input_stalls
from esprof.analyzers.findings.memory import near_limit
from esprof.analyzers.findings.quality import evidence_quality
from esprof.analyzers.findings.slow_steps import stalls
from esprof.analyzers.findings.stragglers import stragglers
from esprof.analyzers.pricing import listed
from esprof.analyzers.summary.breakdown import breakdown
from esprof.analyzers.summary.throughput import throughput, throughput_of_steps
from esprof.replay.answering import Replayed
from esprof.trace.run import Run
from esprof.types import us


def diagnose(replayed: Replayed) -> Diagnosis:
    """Findings of a replayed run, most time first; before them, what brought the job to a standstill or an end."""
    parts = breakdown(replayed)
    findings = [
        *input_stalls(replayed, parts),
        *stragglers(replayed),
        *exposed_communication(replayed, parts),
        *host_bound(replayed, parts),
        *allocator(replayed),
        *stalls(replayed.run),
        *near_limit(replayed.run),
        *evidence_quality(replayed),
    ]
    findings.sort(key=lambda found: -found.saving_us)
    findings = [*hangs(replayed.run), *findings]
    return Diagnosis(
        verdict=_verdict(replayed, findings, parts),
        findings=tuple(findings),
        step_us=us(replayed.oracle.step_ns),
        unprofiled_step_us=None if replayed.unprofiled_ns is None else us(replayed.unprofiled_ns),
        overhead_pct=None if replayed.overhead_pct is None else round(replayed.overhead_pct, 3),
        steps=replayed.steady.kept,
        world_size=replayed.run.world_size,
        breakdown=parts,
        throughput=throughput(replayed),
        explained_pct=round(replayed.explained_pct, 3),
        replay_error_pct=round(float(abs(replayed.error_pct).max()), 4),
        warnings=replayed.warnings,
    )


def diagnose_unreplayed(run: Run) -> Diagnosis:
    """Findings of a run without a window that could be replayed: from its steps' times and its flight recorder alone."""
    findings = (*hangs(run), *stalls(run), *near_limit(run))
    step_ns, speed = throughput_of_steps(run)
    if findings:
        verdict = hang_verdict(findings[0]) if findings[0].id in HANGS else f"{findings[0].title}."
    elif step_ns is None:
        verdict = "No step ended, and no window was recorded."
    else:
        verdict = f"A step takes {step_ns / 1e6:.1f} ms; no window was recorded that would tell what it is made of."
    return Diagnosis(
        verdict=verdict,
        findings=findings,
        step_us=None if step_ns is None else us(step_ns),
        unprofiled_step_us=None if step_ns is None else us(step_ns),
        overhead_pct=None,
        steps=(),
        world_size=run.world_size,
        breakdown=(),
        throughput=speed,
        explained_pct=None,
        replay_error_pct=None,
        warnings=run.warnings,
    )


def _verdict(replayed: Replayed, findings: list[Finding], parts: tuple[RankBreakdown, ...]) -> str:
    step_ms = replayed.oracle.step_ns / 1e6
    if findings and findings[0].id in HANGS:
        return hang_verdict(findings[0])
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
