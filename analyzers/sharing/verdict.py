"""What a Run to share must preserve of the diagnosis of the original: its verdict."""

import re
from dataclasses import dataclass
from typing import Any

from esprof.analyzers.finding import ACTIVITIES, Confidence, Diagnosis, Finding
from esprof.core import readable
from esprof.core.types import Rank, ns

MAX_CHANGE = 0.01
"""Largest relative change of the step time and of the saving of the first finding; of the time of an activity, in relation
to the step."""


_FIGURE = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


@dataclass(frozen=True)
class SharedVerdict:
    """The first finding of a diagnosis with its price, and the step time; where time goes, if the finding has no price."""

    id: str | None
    """None without a finding."""
    title: str
    """Its figures count as figures."""
    ranks: tuple[Rank, ...]
    saving_us: float
    confidence: Confidence | None
    is_vague: bool
    places: frozenset[str]
    """Texts in its evidence: lines, operations and reasons."""
    step_us: float | None
    attribution: tuple[tuple[Rank, str, float], ...]
    """Time of each activity of each rank, µs; empty for a finding with a price."""
    missing_ranks: tuple[Rank, ...]

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> "SharedVerdict":
        first = next(iter(diagnosis.findings), None)
        is_priced = first is not None and first.is_saving
        return cls(
            id=first.id if first else None,
            title=first.title if first else "",
            ranks=first.ranks if first else (),
            saving_us=first.saving_us if first else 0.0,
            confidence=first.confidence if first else None,
            is_vague=first is not None and first.is_vague,
            places=frozenset(_texts(first)) if first else frozenset(),
            step_us=diagnosis.step_us,
            attribution=()
            if is_priced
            else tuple((one.rank, part, getattr(one, part)) for one in diagnosis.breakdown for part in ACTIVITIES),
            missing_ranks=diagnosis.missing_ranks,
        )

    @property
    def preserved(self) -> str:
        """What a smaller Run preserves, in words."""
        step = "" if self.step_us is None else f"a step of {readable.duration(ns(self.step_us))}"
        if self.id is None:
            return f"{step or 'no finding'} and where its time goes (there is no finding)"
        if self.attribution:
            return f"{self.id} without a saving, {step} and where its time goes"
        saving = f"{self.id}, {readable.duration(ns(self.saving_us))}" if self.saving_us else self.id
        return f"{saving} of {step}" if step else saving

    def is_kept_by(self, other: "SharedVerdict") -> bool:
        """Whether `other` says the same: all but figures is equal, and figures are within MAX_CHANGE."""
        if self._words() != other._words() or (self.step_us is None) != (other.step_us is None):
            return False
        step = self.step_us or 0.0
        return (
            _is_near(step, other.step_us or 0.0)
            and _is_near(self.saving_us, other.saving_us)
            and all(map(_is_near, _figures(self.title), _figures(other.title)))
            and all(
                abs(b[-1] - a[-1]) <= MAX_CHANGE * step
                for a, b in zip(self.attribution, other.attribution, strict=True)
            )
        )

    def _words(self) -> tuple[Any, ...]:
        activities = [(rank, part) for rank, part, _ in self.attribution]
        title = _FIGURE.sub("#", self.title)
        first = (self.id, title, self.ranks, self.confidence, self.is_vague, self.places)
        return *first, activities, self.missing_ranks


def _is_near(figure: float, other: float) -> bool:
    return abs(other - figure) <= MAX_CHANGE * figure


def _figures(title: str) -> list[float]:
    return [float(figure.replace(",", "")) for figure in _FIGURE.findall(title)]


def _texts(finding: Finding) -> list[str]:
    values: list[object] = []
    for evidence in finding.evidence.values():
        values += evidence.value.values() if isinstance(evidence.value, dict) else [evidence.value]
    return [value for value in values if isinstance(value, str)]
