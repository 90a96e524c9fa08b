"""Diagnosis: run every rule on a run, order what they find by price, and say the verdict in one sentence."""

from collections.abc import Sequence

import msgspec

from esprof.analyzers.finding import CPU_CONTENTION, Diagnosis, Finding, RankBreakdown
from esprof.analyzers.findings import RULES
from esprof.analyzers.ignore import NOTHING, Ignores, told
from esprof.analyzers.largest_part import computing, largest_part
from esprof.analyzers.rule import Case, as_measured, no_more_than, priced, unpriced
from esprof.analyzers.steps.throughput import throughput, throughput_of_steps
from esprof.analyzers.views.breakdown import breakdown
from esprof.core import readable
from esprof.core.errors import InputError
from esprof.core.types import ns, us
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.pricing import MAX_ERROR_PCT
from esprof.run.run import Run

MUCH_CONTENTION_PCT = 10
"""What the lack of CPUs must cost, in per cent of a step, to make all other findings less sure."""


def diagnose(of: Run | Replayed, ignores: Ignores = NOTHING, max_error_pct: float = MAX_ERROR_PCT) -> Diagnosis:
    """Findings, most time first; before them, what brought the job to a standstill or an end. What `ignores` covers is
    told apart.

    A Run is built and replayed, and nothing is priced where replay's own error is above `max_error_pct`, in per cent of
    a step. It is diagnosed without replay where it has no window, or where it hung before all ranks had one. Raises
    InputError where it has no graph and did not hang.
    """
    if isinstance(of, Replayed):
        return _diagnose_replayed(of, ignores)
    if not any(len(of.events(rank)) for rank in of.ranks):
        return _diagnose_unreplayed(of, ignores)
    try:
        return _diagnose_replayed(Replayed.of(of, max_error_pct=max_error_pct), ignores)
    except InputError:
        if not stopped_by(of):
            raise
        return _diagnose_unreplayed(of, ignores)


def _diagnose_replayed(replayed: Replayed, ignores: Ignores) -> Diagnosis:
    case = Case(replayed, breakdown(replayed))
    case.pricer.prices(scenario for rule in RULES for scenario in rule.scenarios)
    found = [priced(cause, case) for rule in RULES if rule.of_case for cause in rule.of_case(case)]
    found, ignored = ignores.part(_less_sure(found) + _beside(replayed.run))
    stopped = stopped_by(replayed.run)
    findings = [*stopped, *sorted(found, key=lambda finding: -finding.saving_us)]
    return Diagnosis(
        verdict=(_stopped_verdict(stopped[0]) if stopped else _verdict(replayed, findings, case.parts)) + told(ignored),
        findings=tuple(findings),
        ignored=ignored,
        step_us=us(replayed.pricer.step_ns),
        scatter_pct=None if replayed.pricer.error.scatter is None else round(100 * replayed.pricer.error.scatter, 3),
        unprofiled_step_us=None if replayed.unprofiled_ns is None else us(replayed.unprofiled_ns),
        overhead=replayed.overhead,
        steps=replayed.steps.steady,
        world_size=replayed.run.world_size,
        missing_ranks=replayed.run.missing_ranks,
        breakdown=case.parts,
        throughput=throughput(replayed),
        explained_pct=round(replayed.explained_pct, 3),
        replay_error_pct=round(float(abs(replayed.error_pct).max()), 4),
        warnings=(*replayed.warnings, *ignores.warnings),
    )


def _diagnose_unreplayed(run: Run, ignores: Ignores) -> Diagnosis:
    """Findings of a run without a window that could be replayed: from its steps' times and its flight recorder alone."""
    stopped, (beside, ignored) = stopped_by(run), ignores.part(_beside(run))
    step_ns, speed = throughput_of_steps(run)
    if stopped:
        verdict = _stopped_verdict(stopped[0])
    elif beside:
        verdict = f"{beside[0].title}."
    elif run.dumped:
        verdict = "No rank waits for another in a collective, as far as these dumps of the Flight Recorder tell."
    elif step_ns is None:
        verdict = "No step ended, and no window was recorded."
    else:
        verdict = (
            f"A step takes {readable.duration(step_ns)}; no window was recorded that would tell what it is made of."
        )
    return Diagnosis(
        verdict=verdict + told(ignored),
        findings=(*stopped, *beside),
        ignored=ignored,
        step_us=None if step_ns is None else us(step_ns),
        scatter_pct=None,
        unprofiled_step_us=None if step_ns is None else us(step_ns),
        overhead=None,
        steps=(),
        world_size=run.world_size,
        missing_ranks=run.missing_ranks,
        breakdown=(),
        throughput=speed,
        explained_pct=None,
        replay_error_pct=None,
        warnings=(*run.warnings, *ignores.warnings),
    )


def stopped_by(run: Run) -> list[Finding]:
    """What brought the job to a standstill or to its end, if anything did."""
    rules = [rule for rule in RULES if rule.of_run and rule.stops_the_job]
    return [unpriced(cause) for rule in rules if rule.of_run for cause in rule.of_run(run)]


def _beside(run: Run) -> list[Finding]:
    """What was recorded beside the windows tells of the job's speed and of its memory."""
    rules = [rule for rule in RULES if rule.of_run and not rule.stops_the_job]
    return [as_measured(cause, run) for rule in rules if rule.of_run for cause in rule.of_run(run)]


def _less_sure(found: list[Finding]) -> list[Finding]:
    """The findings, of which none is sure where ranks lack CPUs: what takes long then may take long for that."""
    if not any(finding.id == CPU_CONTENTION and finding.saving_pct >= MUCH_CONTENTION_PCT for finding in found):
        return found
    return [
        finding
        if finding.id == CPU_CONTENTION
        else msgspec.structs.replace(finding, confidence=no_more_than("medium", finding.confidence))
        for finding in found
    ]


def _stopped_verdict(finding: Finding) -> str:
    """The finding, and where the first rank at fault is."""
    if not finding.ranks:
        return f"{finding.title}."
    rank = finding.ranks[0]
    if place := finding.evidence["stacks"].of(rank):
        return f"{finding.title}. Rank {rank} is at {place}."
    last = finding.evidence["last_entered"].of(rank) if "last_entered" in finding.evidence else None
    return f"{finding.title}. Rank {rank} last entered {last}." if last else f"{finding.title}."


def _verdict(replayed: Replayed, findings: Sequence[Finding], parts: tuple[RankBreakdown, ...]) -> str:
    step_ns = replayed.pricer.step_ns
    missing = replayed.run.missing_ranks
    caveat = f" What {readable.ranks(missing)} did is not in this run, and may be the cause." if missing else ""
    if replayed.pricer.too_far_off:
        return (
            f"A step takes {readable.duration(step_ns)}, and what it would gain cannot be said: "
            f"{replayed.pricer.too_far_off}.{caveat}"
        )
    if not findings or findings[0].saving_us <= 0:
        takes = f"A step takes {readable.duration(step_ns)}, {100 * computing(parts):.0f} % of it compute"
        rest = largest_part(replayed, parts)
        if rest is None:
            return f"{takes}; no cause that esprof knows costs it noticeably more.{caveat}"
        return f"{takes}. {rest} No change that esprof can price would gain a hundredth of a step.{caveat}"
    first = findings[0]
    # What was measured on all of the run is a share of its mean step, what was replayed of that of the window.
    step_ns = ns(first.saving_us) * 100 / first.saving_pct if first.saving_pct else step_ns
    without = step_ns - ns(first.saving_us)
    if without <= 0:
        return f"{first.title}. It is all of the step of {readable.duration(step_ns)}.{caveat}"
    return (
        f"{first.title}. Mending it would take a step from {readable.duration(step_ns)} to {readable.duration(without)} "
        f"({step_ns / without:.2f}×).{caveat}"
    )
