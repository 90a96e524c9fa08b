"""Diagnosis: run every rule on a run, order the findings by price, and state the verdict in one sentence."""

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec
import numpy as np

from esprof.analyzers.computing import computes
from esprof.analyzers.device_only import NO_CPU_EVENTS, DeviceOnly, is_device_only
from esprof.analyzers.finding import CPU_CONTENTION, GPU_BOUND, Diagnosis, Finding, Throughput
from esprof.analyzers.findings import RULES
from esprof.analyzers.ignore import NOTHING, Ignores, ignored_note
from esprof.analyzers.large import NEED_ALL_GRAPHS, LargeCase, case_of
from esprof.analyzers.largest_share import computing, largest_share
from esprof.analyzers.losses import MIN_PCT_BEFORE_BOUNDS, by_loss, is_urgent, joint_us
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case, as_measured, no_more_than, priced, unpriced
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core import readable
from esprof.core.errors import InputError
from esprof.core.step_words import Unit, in_words_of
from esprof.core.types import NS_PER_S, ns, us
from esprof.replay.over_ranks import IN_THIS_PROCESS, RankWorkers
from esprof.replay.replayed import Replayed
from esprof.replay.skeleton.large import answered
from esprof.replay.whatif.pricing import MAX_ERROR_PCT
from esprof.run.run import Run, RunWarning
from esprof.run.schema import Table

MIN_CONTENTION_PCT = 10
"""Least cost of waiting for CPUs, in per cent of a step, that makes all other findings less certain."""

_TAKE_TIME = "123467"
"""Families of findings that take time of the step, whether or not it is known how much: first digits of their ids."""

MIN_TIMES_AS_LONG = 2.0
"""Ratio of recorded steps to those without profiler next to them from which the window is not typical of the job. The
profiler alone makes steps of small kernels up to 1.9 times as long (docs/results/gpu.md)."""


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
    stopped = stopped_by(job)
    findings, unit = [*stopped, *causes], replayed.run.unit
    verdict = (
        _stopped_verdict(stopped[0])
        if stopped
        else _atypical(replayed) + _verdict(replayed, findings, losses.uncertain, case)
    )
    return Diagnosis(
        verdict=in_words_of(unit, verdict) + ignored_note(ignored),
        findings=_worded(findings, unit),
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
        throughput=_throughput(replayed, job.steps) if unit == "step" else None,
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
    step_ns, speed = _throughput_of_steps(job.steps)
    if stopped:
        verdict = _stopped_verdict(stopped[0])
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
    if _atypical(replayed):
        return [msgspec.structs.replace(one, confidence="low") for one in found]
    if not lack_cpus:
        return found
    return [
        one
        if one.id == CPU_CONTENTION
        else msgspec.structs.replace(one, confidence=no_more_than("medium", one.confidence))
        for one in found
    ]


def _atypical(replayed: Replayed) -> str:
    """A sentence if the recorded steps certainly take much longer than those without profiler next to them; else empty."""
    longer, plain_ns = replayed.overhead, replayed.unprofiled_ns
    if longer is None or plain_ns is None or longer.low_pct < 100 * (MIN_TIMES_AS_LONG - 1):
        return ""
    return (
        f"The recorded steps are not typical of the job: they take {1 + longer.pct / 100:.1f} times as long as the steps "
        f"without profiler next to them, which take {readable.duration(plain_ns)}. Record another window. In this one: "
    )


def _stopped_verdict(finding: Finding) -> str:
    """The finding's title, and where the first rank at fault is."""
    if not finding.ranks:
        return f"{finding.title}."
    rank = finding.ranks[0]
    if location := finding.evidence["stacks"].of(rank):
        return f"{finding.title}. Rank {rank} is at {location}."
    last = finding.evidence["last_entered"].of(rank) if "last_entered" in finding.evidence else None
    return f"{finding.title}. Rank {rank} last entered {last}." if last else f"{finding.title}."


def _verdict(replayed: Replayed, findings: Sequence[Finding], uncertain: Sequence[Finding], case: Case) -> str:
    if findings and is_urgent(findings[0]):
        return f"{findings[0].title}. Apart from that: {_verdict(replayed, findings[1:], uncertain, case)}"
    step_ns = replayed.pricer.step_ns
    missing = replayed.run.missing_ranks
    absent = f"{readable.ranks(missing).capitalize()} {readable.verb('are', missing)} missing from this run"
    caveat = f" {absent} and may be the cause." if missing else ""
    if replayed.pricer.too_far_off:
        return (
            f"A step takes {readable.duration(step_ns)}. Replay cannot predict savings: "
            f"{replayed.pricer.too_far_off}.{caveat}"
        )
    if not findings or findings[0].saving_us <= 0:
        return f"{_unpriced_verdict(findings, uncertain, case)}{caveat}"
    if findings[0].is_bound:
        return f"{_bound_verdict(findings, uncertain, step_ns)}{caveat}"
    return f"{_priced_verdict(findings[0], step_ns)}{caveat}"


def _unpriced_verdict(findings: Sequence[Finding], uncertain: Sequence[Finding], case: Case) -> str:
    """Where the step's time goes, if no finding has a significant saving."""
    step = readable.duration(case.pricer.step_ns)
    if bound := next((one for one in findings if one.id == GPU_BOUND), None):
        return f"A step takes {step}. {bound.title}."
    takes = f"A step takes {step}, {100 * computing(case.breakdown):.0f} % of it compute"
    unpriced = next((f" Without a price: {one.title}." for one in findings if one.id[3] in _TAKE_TIME), "")
    where, rest = computes(case), largest_share(case.replayed, case.breakdown)
    if rest is None:
        nothing = "" if unpriced else "; no cause known to esprof costs noticeable time"
        return f"{takes}{nothing}.{where}{unpriced}"
    if not uncertain:
        return f"{takes}.{where} {rest} No change that esprof can price would save 1 % of a step.{unpriced}"
    most = max(uncertain, key=lambda one: one.saving_us)
    return f"{takes}.{where} {rest} No saving is certain; the largest may be {_range(most)}: {most.title}.{unpriced}"


def _range(finding: Finding) -> str:
    return readable.interval(ns(finding.saving_low_us), ns(finding.saving_high_us))


def _priced_verdict(first: Finding, step_ns: float) -> str:
    """The first finding, and what a step takes without it."""
    # Measured savings are a share of the run's mean step, replayed ones of the window's.
    step_ns = ns(first.saving_us) * 100 / first.saving_pct if first.saving_pct else step_ns
    without = step_ns - ns(first.saving_us)
    step = readable.duration(step_ns)
    if without <= 0:
        return f"{first.title}. That is the whole step of {step}."
    if first.is_vague:
        return f"{first.title}. Fixing it would save {_range(first)} of a step of {step}."
    return (
        f"{first.title}. Fixing it would shorten a step from {step} to {readable.duration(without)} "
        f"({step_ns / without:.2f}×)."
    )


def _bound_verdict(findings: Sequence[Finding], uncertain: Sequence[Finding], step_ns: float) -> str:
    """The first finding, which is a bound. If no finding is a cause, the largest possible one is named, too."""
    bound = findings[0]
    most, step = readable.duration(ns(bound.saving_us)), readable.duration(step_ns)
    said = f"{bound.title}. No fix saves more than {most} of a step of {step}."
    possible = [one for one in uncertain if not one.is_bound and one.saving_pct >= MIN_PCT_BEFORE_BOUNDS]
    if not possible or any(one.is_saving and not one.is_bound for one in findings):
        return said
    largest = max(possible, key=lambda one: one.saving_us)
    likely = f"No cause is certain; the largest may save {_range(largest)}: {largest.title}."
    return f"{said} {likely}" if largest.saving_us < bound.saving_us else f"{likely} What is certain: {said}"


def _throughput(replayed: Replayed, job: JobSteps) -> Throughput:
    """Rates from all steps without profiler if there are enough, else from the steady-state recorded ones.

    They follow from the mean step, so that occasional slow steps count. Samples and tokens are summed over the ranks of
    the run; None if a rank has no counts.
    """
    ranks = job.run.ranks
    plain = job.numbers("plain")
    if replayed.unprofiled_ns is not None and len(plain):
        took_ns = float(job.durations_ns(plain).mean())
        if took_ns > 0:
            return _rates([job.rows(rank, plain) for rank in ranks], took_ns / NS_PER_S)
    return _rates([job.table(rank) for rank in ranks], replayed.pricer.step_ns / NS_PER_S)


def _throughput_of_steps(job: JobSteps) -> tuple[float | None, Throughput | None]:
    """(mean duration of a step in ns, rates), from step times alone; None if no step ended."""
    tables = [steps for rank in job.run.ranks if len(steps := job.table(rank))]
    if not tables:
        return None, None
    step_ns = max(float(np.mean(steps.ints("dur_ns"))) for steps in tables)
    return step_ns, _rates(tables, step_ns / NS_PER_S) if step_ns > 0 else None


def _rates(tables: list[Table], step_s: float) -> Throughput:
    return Throughput(
        steps_per_s=round(1 / step_s, 4),
        samples_per_s=_rate(tables, "samples", step_s),
        tokens_per_s=_rate(tables, "tokens", step_s),
    )


def _rate(tables: list[Table], column: str, step_s: float) -> float | None:
    counts = [steps.ints(column) for steps in tables]
    if any((count <= 0).all() for count in counts):
        return None
    return round(sum(float(np.mean(count[count > 0])) for count in counts) / step_s, 3)
