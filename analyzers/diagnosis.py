"""Diagnosis: run every rule on a run, order the findings by price, and state the verdict."""

from collections.abc import Iterable
from functools import partial

import msgspec

from esprof.analyzers.device_only import NO_CPU_EVENTS, DeviceOnly, is_device_only
from esprof.analyzers.finding import CPU_CONTENTION, Diagnosis, Finding, Throughput
from esprof.analyzers.findings import RULES
from esprof.analyzers.ignore import NOTHING, Ignores, ignored_note
from esprof.analyzers.large import NEED_ALL_GRAPHS, LargeCase, case_of
from esprof.analyzers.losses import by_loss, joint_us
from esprof.analyzers.priced_causes import as_measured, no_more_than, priced, unpriced
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.analyzers.throughput import throughput, throughput_of_steps
from esprof.analyzers.verdict import atypical, stopped_verdict, verdict_of
from esprof.core import readable
from esprof.core.errors import InputError
from esprof.core.step_words import Unit, in_words_of
from esprof.core.types import us
from esprof.replay.over_ranks import IN_THIS_PROCESS, RankWorkers
from esprof.replay.replayed import Replayed
from esprof.replay.skeleton.large import answered
from esprof.replay.whatif.pricing import MAX_ERROR_PCT
from esprof.run.run import Run, RunWarning

MIN_CONTENTION_PCT = 10
"""Least cost of waiting for CPUs, in per cent of a step, that makes all other findings less certain."""


def diagnose(
    of: Run | Replayed,
    ignores: Ignores = NOTHING,
    max_error_pct: float = MAX_ERROR_PCT,
    workers: RankWorkers = IN_THIS_PROCESS,
) -> Diagnosis:
    """Findings by loss (`losses.py`); causes of a hang or an end of the job precede them. Findings covered by `ignores` are
    listed separately.

    A Run is built and replayed, a large one by `workers`. Nothing is priced if replay's error exceeds `max_error_pct`, in
    per cent of a step. A run without windows, or one that hung before all ranks had one, is diagnosed without replay. Raises
    InputError if it has no graph and did not hang.
    """
    diagnosed = partial(_diagnosed, ignores=ignores)
    if isinstance(of, Replayed):
        return diagnosed(of)
    if not any(len(of.events(rank)) for rank in of.ranks):
        return _diagnose_unreplayed(RecordedJob(of), ignores)
    if is_device_only(of):
        return _diagnose_device_only(DeviceOnly.of(of), ignores)
    try:
        return answered(of, diagnosed, max_error_pct=max_error_pct, workers=workers)
    except InputError:
        if not stopped_by(job := RecordedJob(of)):
            raise
        return _diagnose_unreplayed(job, ignores)


def _diagnosed(replayed: Replayed, ignores: Ignores) -> Diagnosis:
    return diagnose_replayed(replayed, RecordedJob(replayed.run), ignores)


def diagnose_replayed(replayed: Replayed, job: RecordedJob, ignores: Ignores) -> Diagnosis:
    """Diagnose a replayed run, with the steps and samples of the same run in `job`."""
    return diagnose_case(case_of(replayed, job), ignores)


def diagnose_case(case: Case, ignores: Ignores) -> Diagnosis:
    """Diagnose the run of a case."""
    replayed, job = case.replayed, case.job
    losses = by_loss(found_in(case), case.pricer)
    causes, ignored = ignores.split(losses.findings)
    stopped, unit = stopped_by(job), replayed.run.unit
    verdict = (
        stopped_verdict(stopped[0]) if stopped else atypical(replayed) + verdict_of(case, causes, losses.uncertain)
    )
    return Diagnosis(
        verdict=in_words_of(unit, verdict) + ignored_note(ignored),
        findings=_worded([*stopped, *causes], unit),
        joint_saving_us=joint_us(causes),
        uncertain=_worded(losses.uncertain, unit),
        ignored=ignored,
        unit=unit,
        step_us=us(replayed.pricer.step_ns),
        scatter_pct=None if replayed.pricer.error.scatter is None else round(100 * replayed.pricer.error.scatter, 3),
        unprofiled_step_us=None if replayed.unprofiled_ns is None else us(replayed.unprofiled_ns),
        overhead=replayed.overhead,
        steps=replayed.steps.steady,
        world_size=replayed.run.world_size,
        missing_ranks=replayed.run.missing_ranks,
        breakdown=case.breakdown,
        throughput=throughput(replayed, job.steps) if unit == "step" else None,
        explained_pct=round(replayed.explained_pct, 3),
        replay_error_pct=round(float(abs(replayed.error_pct).max()), 4),
        warnings=(*replayed.warnings, *_warnings_of(case), *ignores.warnings),
    )


def _warnings_of(case: Case) -> tuple[RunWarning, ...]:
    return (case.warning,) if isinstance(case, LargeCase) else ()


def _worded(findings: Iterable[Finding], unit: Unit) -> tuple[Finding, ...]:
    """The findings, in the words for what the steps of the run are."""
    return tuple(
        msgspec.structs.replace(
            one,
            title=in_words_of(unit, one.title),
            symptoms=_worded(one.symptoms, unit),
        )
        for one in findings
    )


def found_in(case: Case) -> list[Finding]:
    """What every rule finds, each with what it saves alone."""
    case.pricer.prices(scenario for rule in RULES for scenario in rule.scenarios)
    rules = [rule for rule in RULES if not (isinstance(case, LargeCase) and rule.ids & NEED_ALL_GRAPHS)]
    found = [priced(cause, case) for rule in rules if rule.of_case for cause in rule.of_case(case)]
    return _less_certain(found, case.replayed) + _outside_windows(case.job)


def _diagnose_unreplayed(job: RecordedJob, ignores: Ignores) -> Diagnosis:
    """Diagnose a run without replay: from its step times and its flight recorder."""
    run = job.run
    losses = by_loss(_outside_windows(job), None)
    stopped, (others, ignored) = stopped_by(job), ignores.split(losses.findings)
    step_ns, speed = throughput_of_steps(job.steps)
    if stopped:
        verdict = stopped_verdict(stopped[0])
    elif others:
        verdict = f"{others[0].title}."
    elif run.dumped:
        verdict = "In these dumps of the Flight Recorder, no rank waits for another in a collective."
    elif step_ns is None:
        verdict = "No step ended, and no window was recorded."
    else:
        verdict = f"A step takes {readable.duration(step_ns)}. No window was recorded, so its breakdown is unknown."
    return Diagnosis(
        verdict=verdict + ignored_note(ignored),
        findings=(*stopped, *others),
        joint_saving_us=joint_us(others),
        uncertain=losses.uncertain,
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


def _diagnose_device_only(of: DeviceOnly, ignores: Ignores) -> Diagnosis:
    """Diagnose a run of GPU work alone, which cannot be replayed."""
    run, unit = of.run, of.run.unit
    losses = by_loss([as_measured(cause, run) for cause in of.causes()], None)
    findings, ignored = ignores.split(losses.findings)
    step_us = us(of.step_ns)
    return Diagnosis(
        verdict=in_words_of(unit, of.verdict(findings)) + ignored_note(ignored),
        findings=_worded(findings, unit),
        joint_saving_us=joint_us(findings),
        uncertain=_worded(losses.uncertain, unit),
        ignored=ignored,
        unit=unit,
        step_us=step_us,
        scatter_pct=None,
        unprofiled_step_us=None,
        overhead=None,
        steps=of.steps.steady,
        world_size=run.world_size,
        missing_ranks=run.missing_ranks,
        breakdown=of.breakdown,
        throughput=Throughput(steps_per_s=round(1e6 / step_us, 4), samples_per_s=None, tokens_per_s=None)
        if unit == "step" and step_us
        else None,
        explained_pct=None,
        replay_error_pct=None,
        warnings=(*run.warnings, NO_CPU_EVENTS, *ignores.warnings),
    )


def stopped_by(job: RecordedJob) -> list[Finding]:
    """Causes of a hang or of the end of the job."""
    rules = [rule for rule in RULES if rule.of_job and rule.stops_the_job]
    return [unpriced(cause) for rule in rules if rule.of_job for cause in rule.of_job(job)]


def _outside_windows(job: RecordedJob) -> list[Finding]:
    """Findings about speed and memory from data recorded outside of windows."""
    rules = [rule for rule in RULES if rule.of_job and not rule.stops_the_job]
    return [as_measured(cause, job.run) for rule in rules if rule.of_job for cause in rule.of_job(job)]


def _less_certain(found: list[Finding], replayed: Replayed) -> list[Finding]:
    """The findings, with low confidence if the window is not typical of the job, and at most medium confidence if ranks lack
    CPUs, which may be why other work takes long."""
    lack_cpus = any(one.id == CPU_CONTENTION and one.saving_pct >= MIN_CONTENTION_PCT for one in found)
    if atypical(replayed):
        return [msgspec.structs.replace(one, confidence="low") for one in found]
    if not lack_cpus:
        return found
    return [
        one
        if one.id == CPU_CONTENTION
        else msgspec.structs.replace(one, confidence=no_more_than("medium", one.confidence))
        for one in found
    ]
