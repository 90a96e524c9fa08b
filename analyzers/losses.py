"""One finding for each loss: the cause carries the saving, and its symptoms are listed below it.

Two findings may save the same time. The peers of a late rank wait for it in a synchronisation: either without the late rank
or without the synchronisation the step is shorter, but the time is saved only once. Causes are therefore examined from
upstream to downstream, and each is credited with what it saves in addition to those before it, as replay of all of them
together shows. Credits add up to what all causes save together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from esprof.analyzers.finding import GPU_BOUND, Finding
from esprof.analyzers.price import MIN_PCT_OF_STEP
from esprof.analyzers.steps.excess import LOADER, NO_CPU
from esprof.core.errors import UsageError
from esprof.core.types import us
from esprof.replay.whatif.pricing import Pricer
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.stacks import functions_of

_NO_BATCH = tuple(f"ESP{number}" for number in range(101, 111))
"""Waits for input data, by cause."""

UPSTREAM_FIRST = (
    "ESP113",  # Making batches takes CPUs from the threads that train.
    "ESP404",  # A thread without a CPU does everything later.
    "ESP409",  # So does one that compiles.
    *(
        "ESP111",
        "ESP603",
        "ESP602",
        "ESP601",
        "ESP806",
        "ESP807",
    ),  # Work of single steps, whichever line or rank does it.
    *(
        "ESP206",
        "ESP204",
        "ESP201",
        "ESP203",
        "ESP202",
        "ESP207",
        "ESP208",
        "ESP205",
    ),  # A late rank makes all others wait.
    *_NO_BATCH,  # Without a batch no rank computes.
    *("ESP403", "ESP402", "ESP406"),  # Python code delays the launches after it.
    *("ESP503", "ESP501"),  # So does an allocation.
    *("ESP706", "ESP707", "ESP504"),  # Work of the model that is not necessary, whatever bounds it.
    *(
        "ESP701",
        "ESP708",
        "ESP703",
        "ESP705",
        "ESP702",
    ),  # Kernels that take longer than necessary delay waits for the device.
    *(
        "ESP307",
        "ESP310",
        "ESP309",
        "ESP302",
        "ESP304",
        "ESP306",
        "ESP303",
        "ESP305",
        "ESP308",
        "ESP301",
    ),  # So do collectives; ESP301 covers all.
    *("ESP405", "ESP408", "ESP401"),  # A wait for the device contains everything above. Launches come after it.
)
"""Ids with a saving, from cause to symptom. Ids that are not listed come last."""

WAITS = ("ESP405",)
"""Ids of waits that contain what is upstream of them."""

MIN_CREDIT = 0.2
"""Least share of its own saving that a finding must add to the causes upstream; below, it is a symptom of theirs."""

MIN_PCT_BEFORE_BOUNDS = 3.0
"""Least saving, in per cent of a step, for a cause to precede bounds: a bound says what no remedy exceeds, and no remedy
reaches it."""

_ACTIVITIES = dict.fromkeys((*_NO_BATCH, "ESP111", "ESP206"), LOADER) | {
    "ESP113": NO_CPU,
    "ESP404": NO_CPU,
    "ESP403": GARBAGE_COLLECTION,
}
"""Id -> the activity that takes the time, as slow steps name it (`extra_time_in`)."""

_LINES, _CALLEES = (
    ("source_line", "lines_around", "python_line", "extra_time_in"),
    ("calls", "python_call", "innermost"),
)
"""Evidence that says where the time is spent: lines and stages, and functions that these lines call."""


@dataclass(frozen=True)
class GroupedFindings:
    """Findings by loss."""

    findings: tuple[Finding, ...] = ()
    """Urgent findings, causes with their symptoms, and findings without a saving, of which devices that compute all the time
    come first. The first of all is the most important one."""
    uncertain: tuple[Finding, ...] = ()
    """Findings whose interval contains zero."""


def joint_us(causes: Iterable[Finding]) -> float:
    """Saving of a step if all causes are fixed, µs: what each adds to the others."""
    return round(sum(finding.saving_us for finding in causes), 3)


def by_loss(found: Iterable[Finding], pricer: Pricer | None) -> GroupedFindings:
    """Group findings by the time that they save. Without a pricer, only measured savings are compared."""
    found = _shown_by_waits(list(found), pricer)
    uncertain = tuple(finding for finding in found if finding.saving_us and not finding.is_saving)
    savings = [finding for finding in found if finding.is_saving]
    causes = _Causes(pricer)
    for finding in sorted(savings, key=_from_upstream):
        causes.add(finding)
    unpriced = [finding for finding in found if not finding.saving_us]
    urgent = [finding for finding in unpriced if is_urgent(finding)]
    others = sorted((one for one in unpriced if not is_urgent(one)), key=lambda one: one.id != GPU_BOUND)
    return GroupedFindings((*urgent, *sorted(causes.findings(), key=_importance), *others), uncertain)


def _shown_by_waits(found: Sequence[Finding], pricer: Pricer | None) -> list[Finding]:
    """The findings; an uncertain cause saves at least what a wait does that it would end, if that saving is certain.

    A slow loader may hit one step of a short window. That its rank's peers wait in each step shows that the time is lost.
    """
    waits = [one for one in found if one.id in WAITS and one.is_saving]
    return [max((_shown_by(one, wait, pricer) for wait in waits), key=_low_us, default=one) for one in found]


def _shown_by(cause: Finding, wait: Finding, pricer: Pricer | None) -> Finding:
    """The cause, with the lower end of the wait's interval if it is uncertain, upstream, and would end the wait."""
    is_candidate = cause.saving_us and not cause.is_saving and not cause.is_bound and cause.what_if is not None
    if pricer is None or not is_candidate or cause.saving_us < wait.saving_us or _order(cause) >= _order(wait):
        return cause
    joint_us = us(pricer.saving_ns(f"{cause.what_if},{wait.what_if}") or 0.0)
    is_ended = joint_us - cause.saving_us < MIN_CREDIT * wait.saving_us
    return msgspec.structs.replace(cause, saving_low_us=wait.saving_low_us) if is_ended else cause


def _low_us(finding: Finding) -> float:
    return finding.saving_low_us


def is_urgent(finding: Finding) -> bool:
    """Whether a finding without a price comes first, as slow steps do that cost much of the run."""
    return not finding.saving_us and finding.severity == "critical"


def _from_upstream(finding: Finding) -> tuple[int, float]:
    return _order(finding), -finding.saving_us


def _order(finding: Finding) -> int:
    """Position from cause to symptom."""
    return UPSTREAM_FIRST.index(finding.id) if finding.id in UPSTREAM_FIRST else len(UPSTREAM_FIRST)


def _importance(finding: Finding) -> tuple[bool, bool, float]:
    """Sort key: causes before bounds, those that save at least half of their prediction first, large savings first.

    A bound tells no one what to do, however narrow its interval is.
    """
    is_late = finding.is_bound or finding.saving_pct < MIN_PCT_BEFORE_BOUNDS
    return is_late, finding.is_doubtful, -finding.saving_us


@dataclass
class _Causes:
    """Causes found so far, from upstream to downstream."""

    pricer: Pricer | None
    credited: list[tuple[Finding, float]] = field(default_factory=list)
    """Each cause, and what it adds to those before it, µs."""
    symptoms: dict[int, list[Finding]] = field(default_factory=dict)
    """Position of a cause -> its symptoms."""
    together_us: float = 0.0
    """Saving of a step without all replayed causes, µs."""

    def add(self, finding: Finding) -> None:
        """Add a finding as a cause, or as a symptom of the cause that saves most of the same time."""
        is_replayed = finding.what_if is not None
        together_us = self._with(finding) if is_replayed else self.together_us
        alone_us = min(finding.saving_us, together_us - self.together_us) if is_replayed else finding.saving_us
        credit_us = alone_us - self._measured_us(finding)
        share = credit_us / finding.saving_us
        if (share >= MIN_CREDIT and share * finding.saving_pct >= MIN_PCT_OF_STEP) or not self.credited:
            self.credited.append((finding, credit_us))
            self.together_us = together_us
        else:
            shared = [self._shared_us(cause, finding) for cause, _ in self.credited]
            self.symptoms.setdefault(shared.index(max(shared)), []).append(finding)

    def findings(self) -> Iterable[Finding]:
        """The causes with their credits and symptoms."""
        for position, (cause, credit_us) in enumerate(self.credited):
            yield _credited(cause, credit_us, self.symptoms.get(position, ()))

    def _with(self, finding: Finding) -> float:
        """Saving of a step without all replayed causes and this replayed finding, µs."""
        return self._joint_us([*(cause for cause, _ in self.credited), finding], self.together_us)

    def _measured_us(self, finding: Finding) -> float:
        """Credit of causes that spend the same time in the same place, where replay does not compare the two, µs."""
        return sum(
            credit_us
            for cause, credit_us in self.credited
            if (cause.what_if is None or finding.what_if is None) and _is_same_place(cause, finding)
        )

    def _shared_us(self, cause: Finding, finding: Finding) -> float:
        """Saving that two findings have in common, µs."""
        if cause.what_if is None or finding.what_if is None:
            return min(cause.saving_us, finding.saving_us) if _is_same_place(cause, finding) else 0.0
        return cause.saving_us + finding.saving_us - self._joint_us([cause, finding], cause.saving_us)

    def _joint_us(self, findings: Sequence[Finding], least_us: float) -> float:
        """Saving of a step without all of these, µs; at least `least_us` and the saving of each."""
        assert self.pricer is not None, "replayed savings need a pricer"
        scenarios = dict.fromkeys(finding.what_if for finding in findings if finding.what_if is not None)
        try:
            joint_ns = self.pricer.saving_ns(",".join(scenarios))
        except UsageError:  # The scenarios exclude each other, as two sizes of buckets do.
            joint_ns = None
        return max(us(joint_ns or 0.0), least_us, findings[-1].saving_us)


def _is_same_place(one: Finding, other: Finding) -> bool:
    """Whether both see time in the same line, stage or activity, or one in a function that a line of the other calls.

    That both see time in the same function is not enough: the training loop is one function.
    """
    if _lines(one) & _lines(other):
        return True
    return any(_functions(a, _CALLEES) & _functions(b, _LINES + _CALLEES) for a, b in ((one, other), (other, one)))


def _lines(finding: Finding) -> set[str]:
    activity = _ACTIVITIES.get(finding.id)
    return {*_texts(finding, _LINES)} | ({activity} if activity else set())


def _functions(finding: Finding, names: Sequence[str]) -> set[str]:
    return {function for text in _texts(finding, names) for function in functions_of(text)}


def _texts(finding: Finding, names: Sequence[str]) -> Iterable[str]:
    for name in names:
        if name in finding.evidence:
            value = finding.evidence[name].value
            for text in value.values() if isinstance(value, dict) else [value]:
                yield from str(text).split("; ")


def _credited(cause: Finding, credit_us: float, symptoms: Sequence[Finding]) -> Finding:
    """The cause with its credit as saving. The interval and the shares of a step shrink in proportion."""
    share = credit_us / cause.saving_us
    return msgspec.structs.replace(
        cause,
        saving_us=credit_us,
        saving_low_us=share * cause.saving_low_us,
        saving_high_us=share * cause.saving_high_us,
        saving_pct=round(share * cause.saving_pct, 3),
        saving_device_hours_per_day=round(share * cause.saving_device_hours_per_day, 3),
        symptoms=tuple(symptoms),
    )
