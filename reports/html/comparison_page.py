"""The page of a comparison: one self-contained file that works offline, without a script."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from jinja2 import Template
from markupsafe import Markup

from esprof import __version__
from esprof.analyzers.comparison.answer import RunComparison, TimeChange
from esprof.analyzers.comparison.verdict import MEANING, signed
from esprof.reports import units
from esprof.reports.html.environment import STYLE, TEMPLATES, file_text, policy, templates
from esprof.reports.terminal.comparison import comparison_facts, comparison_tables, interval_text


@dataclass(frozen=True)
class ChangeBar:
    """A change as a bar from zero, with its interval, in per cent of the width of the axis."""

    name: str
    change: str
    kind: str
    """Its class in the style sheet: `more`, `less`, or `noise`."""
    left: float
    width: float
    low: float
    """Where the interval begins; the bar's end without one."""
    high: float


def render_comparison(found: RunComparison) -> str:
    """The page of a comparison, as one string."""
    zero, bars = change_bars(found)
    return _template().render(
        title=" → ".join(" ".join(run.sources) for run in (found.before, found.after)),
        version=__version__,
        found=found,
        mood="info" if found.step.noise else "warning" if found.step.change_us > 0 else "good",
        tiles=[*_tiles(found)],
        zero=zero,
        bars=bars,
        tables=[*comparison_tables(found)],
        facts=[*comparison_facts(found)],
        scripts=[],
        policy=policy([]),
        style=Markup(file_text(STYLE)),
    )


def change_bars(found: RunComparison) -> tuple[float, list[ChangeBar]]:
    """(position of zero in per cent, a bar for the step and for each of its parts)."""
    changes = [
        (f"the whole {found.unit}", found.step),
        *((MEANING.get(one.name, one.name), one) for one in found.parts),
    ]
    ends = [0.0, *(end for _, change in changes for end in _ends(change))]
    first, span = min(ends), max(ends) - min(ends) or 1.0

    def at(us: float) -> float:
        return round(100 * (us - first) / span, 2)

    def bar(name: str, change: TimeChange) -> ChangeBar:
        left, right = sorted((0.0, change.change_us))
        low, _, high = _ends(change)
        kind = "noise" if change.noise else "more" if change.change_us > 0 else "less"
        return ChangeBar(name, signed(change), kind, at(left), round(at(right) - at(left), 2), at(low), at(high))

    return at(0.0), [bar(name, change) for name, change in changes]


def _ends(change: TimeChange) -> tuple[float, float, float]:
    """Low end of the interval, change, high end; all are the change where the interval is unknown."""
    at = change.change_us
    return (at if change.low_us is None else change.low_us), at, (at if change.high_us is None else change.high_us)


def _tiles(found: RunComparison) -> Iterator[tuple[str, str, str]]:
    """Label, value and note of each figure above the tables."""
    step = found.step
    yield (
        f"{found.unit.capitalize()} before",
        units.duration(step.before_us),
        units.plural(step.steps_before, found.unit),
    )
    yield f"{found.unit.capitalize()} after", units.duration(step.after_us), units.plural(step.steps_after, found.unit)
    yield "Change", f"{step.pct:+.1f} %".replace("-", "−"), f"{signed(step)} · {interval_text(step)}"
    yield "Beyond noise", "no" if step.noise else "yes", f"rank test p {units.p_value(step.p)}"


@cache
def _template() -> Template:
    return templates(TEMPLATES, longest=4_000).get_template("compare.html")
