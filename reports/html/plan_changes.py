"""The recommended plan on the page: each change before and after, as texts, and as bars in per cent of the width."""

from dataclasses import dataclass

from esprof.analyzers.advisors.checkpoint.answer import CheckpointAdvice
from esprof.analyzers.advisors.compression.answer import CompressionAdvice
from esprof.analyzers.advisors.job.batches import BatchAdvice
from esprof.analyzers.advisors.job.est_answer import EstAdvice
from esprof.analyzers.advisors.loader.answer import LoaderAdvice
from esprof.analyzers.advisors.recommend import Advice, Kind, Recommendations
from esprof.reports.terminal.advice.recommendations import checkpoint_title
from esprof.reports.units import duration, interval, pct

_TABLES: dict[type[Advice], tuple[str, str]] = {
    EstAdvice: ("ests", "Assignment of logical workers (ESTs)"),
    BatchAdvice: ("samples", "Samples of each rank"),
    CompressionAdvice: ("codecs", "Compression of gradients"),
    LoaderAdvice: ("loaders", "DataLoader"),
    CheckpointAdvice: ("checkpoints", "Checkpoints"),
}
"""Table in the template, and title, of each type of advice."""


@dataclass(frozen=True)
class StepBar:
    """A step of the job, and its interval where there is one."""

    name: str
    text: str
    step_pct: float
    low_pct: float
    high_pct: float


@dataclass(frozen=True)
class PlanChange:
    """One change of the plan, or why there is none."""

    table: str
    title: str
    text: str
    is_advised: bool
    effect: str
    """When it takes effect, and whether training gives other bits; empty if it is not part of a plan."""
    steps: tuple[StepBar, StepBar]
    """Before and after."""
    widest: float
    """What the longest bar of its table stands for: bytes of a bucket, or microseconds."""
    notes: tuple[str, ...]
    advice: Advice


def changes(found: Recommendations) -> tuple[PlanChange, ...]:
    """Each kind of advice, the recommended ones first."""
    each = [_change(kind, advice, found) for kind, advice in found.advice.items()]
    return tuple(sorted(each, key=lambda one: not one.is_advised))


def _change(kind: Kind, advice: Advice, found: Recommendations) -> PlanChange:
    is_advised = advice.is_worth_it if isinstance(advice, BatchAdvice) else advice.plan is not None
    part = getattr(found.plan.parts, kind) if found.plan is not None else None
    effect = ""
    if part is not None:
        when = "in the running job" if part.applies == "live" else "after a restart"
        effect = f"{when}; {'other bits in training' if part.changes_bits else 'the same bits in training'}"
    table, title = _TABLES[type(advice)]
    return PlanChange(
        table=table,
        title=title,
        text=_sentence(advice, is_advised=is_advised),
        is_advised=is_advised,
        effect=effect,
        steps=_steps(advice),
        widest=_widest(advice) or 1.0,
        notes=tuple(map(_as_sentence, getattr(advice, "warnings", ()))),
        advice=advice,
    )


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _sentence(advice: Advice, *, is_advised: bool) -> str:
    if isinstance(advice, CheckpointAdvice):
        return f"{checkpoint_title(advice)}."
    now, then = duration(advice.baselines["now"]), duration(advice.value)
    error = f"the error of the prediction is {pct(advice.error_pct)} of a step"
    if is_advised:
        return f"A step would take {then} instead of {now}, {pct(advice.gain_pct)} less; {error}."
    return f"Keep what you have: a step takes {now}, and {then} with the best alternative; {error}."


def _steps(advice: Advice) -> tuple[StepBar, StepBar]:
    if isinstance(advice, CheckpointAdvice):
        before, after = (advice.of(every).step_us for every in (advice.measured.every, advice.advised))
        low, high, said = after, after, duration(after)
    else:
        before, after, low, high = advice.baselines["now"], advice.value, advice.low_us, advice.high_us
        said = f"{duration(after)} ({interval(low, high)})"
    widest = max(before, after, high) or 1.0
    ends = [_pct(us, widest) for us in (before, after, low, high)]
    return (
        StepBar("before", duration(before), ends[0], ends[0], ends[0]),
        StepBar("after", said, *ends[1:]),
    )


def _widest(advice: Advice) -> float:
    if isinstance(advice, EstAdvice):
        return max(max(rank.now_us, rank.advised_us) for rank in advice.decision.ranks)
    if isinstance(advice, BatchAdvice):
        return max(max(rank.samples_now, rank.samples) for rank in advice.decision)
    if isinstance(advice, CompressionAdvice):
        return max(max(bucket.nbytes or 0, bucket.sent_bytes or 0) for bucket in advice.decision)
    if isinstance(advice, LoaderAdvice):
        return max(one.step_us for one in advice.choices)
    return max(one.step_us for one in advice.intervals)


def _pct(us: float, widest: float) -> float:
    return round(100 * us / widest, 2)
