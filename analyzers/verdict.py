"""The verdict of a diagnosis: what a step loses most time to, or what stopped the job, in a sentence or two."""

from collections.abc import Sequence

from esprof.analyzers.computing import computes
from esprof.analyzers.finding import GPU_BOUND, Finding
from esprof.analyzers.largest_share import computing, largest_share
from esprof.analyzers.losses import MIN_PCT_BEFORE_BOUNDS, is_urgent
from esprof.analyzers.rule import Case
from esprof.core import readable
from esprof.core.types import ns
from esprof.replay.replayed import Replayed

_TAKE_TIME = "123467"
"""Families of findings that take time of the step, whether or not it is known how much: first digits of their ids."""

MIN_TIMES_AS_LONG = 2.0
"""Ratio of recorded steps to those without profiler next to them from which the window is not typical of the job. The
profiler alone makes steps of small kernels up to 1.9 times as long (docs/results/gpu.md)."""


def verdict_of(case: Case, findings: Sequence[Finding], uncertain: Sequence[Finding]) -> str:
    """What a step loses most time to, of `findings` and `uncertain` ones by importance."""
    if findings and is_urgent(findings[0]):
        return f"{findings[0].title}. Apart from that: {verdict_of(case, findings[1:], uncertain)}"
    step_ns, too_far_off = case.pricer.step_ns, case.pricer.too_far_off
    missing = case.run.missing_ranks
    absent = f"{readable.ranks(missing).capitalize()} {readable.verb('are', missing)} missing from this run"
    caveat = f" {absent} and may be the cause." if missing else ""
    if too_far_off:
        step = readable.duration(step_ns)
        return f"A step takes {step}. Replay cannot predict savings: {too_far_off}.{caveat}"
    if not findings or findings[0].saving_us <= 0:
        return f"{_unpriced_verdict(case, findings, uncertain)}{caveat}"
    if findings[0].is_bound:
        return f"{_bound_verdict(findings, uncertain, step_ns)}{caveat}"
    return f"{_priced_verdict(findings[0], step_ns)}{caveat}"


def stopped_verdict(finding: Finding) -> str:
    """What stopped the job, and where the first rank at fault is."""
    if not finding.ranks:
        return f"{finding.title}."
    rank = finding.ranks[0]
    if location := finding.evidence["stacks"].of(rank):
        return f"{finding.title}. Rank {rank} is at {location}."
    last = finding.evidence["last_entered"].of(rank) if "last_entered" in finding.evidence else None
    return f"{finding.title}. Rank {rank} last entered {last}." if last else f"{finding.title}."


def atypical(replayed: Replayed) -> str:
    """A sentence if the recorded steps certainly take much longer than those without profiler next to them; else empty."""
    longer, plain_ns = replayed.overhead, replayed.unprofiled_ns
    if longer is None or plain_ns is None or longer.low_pct < 100 * (MIN_TIMES_AS_LONG - 1):
        return ""
    return (
        f"The recorded steps are not typical of the job: they take {1 + longer.pct / 100:.1f} times as long as the steps "
        f"without profiler next to them, which take {readable.duration(plain_ns)}. Record another window. In this one: "
    )


def _unpriced_verdict(case: Case, findings: Sequence[Finding], uncertain: Sequence[Finding]) -> str:
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
