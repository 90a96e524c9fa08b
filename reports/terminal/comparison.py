"""The result of `compare` for a terminal and as Markdown."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from esprof.analyzers.comparison.answer import (
    CollectiveChange,
    ComparedRun,
    OperatorChange,
    PartChange,
    RunComparison,
    TimeChange,
)
from esprof.analyzers.comparison.verdict import MEANING, WAITING, saves_text, signed
from esprof.analyzers.gate.baseline import SHOWN_PHASE
from esprof.core.step_words import in_words_of
from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, heading, headline, warned

_Rows = Sequence[tuple[str, ...]]
_Titled = tuple[str, Sequence[str], _Rows]
"""Title, columns and rows of a table."""

MAX_OPERATORS = 10
"""Operations and modules shown; JSON has more."""

_INDENT = "  "


def draw_comparison(found: RunComparison, screen: Screen = PLAIN) -> str:
    """The verdict, the parts that sum to the change, and what explains them."""
    blocks: list[RenderableType] = [headline(found.verdict, screen), ""]
    for title, columns, rows in comparison_tables(found):
        blocks += [heading(title), _grid(columns, rows), ""]
    blocks += [fact(name, text, screen, at_most=4) for name, text in comparison_facts(found)]
    return drawn(screen, *blocks, *warned(found.warnings))


def markdown_comparison(found: RunComparison) -> str:
    """The same as GitHub Markdown; every name from the runs is escaped."""
    lines = [f"### esprof compare: {_inert(found.verdict)}", ""]
    for title, columns, rows in comparison_tables(found):
        ruler = ("--:" if column.startswith(">") else "---" for column in columns)
        cells = ([_inert(cell) for cell in row] for row in rows)
        titles = (column.removeprefix(">") for column in columns)
        lines += [f"**{title}**", "", *(f"| {' | '.join(row)} |" for row in (titles, ruler, *cells)), ""]
    lines += [f"- {name}: {_inert(text)}" for name, text in comparison_facts(found)]
    lines += [f"- warning: {_inert(printable(warning.message, 500))}" for warning in found.warnings]
    return "\n".join(lines)


def _grid(columns: Sequence[str], rows: _Rows) -> Table:
    table = grid(*columns)
    for row in rows:
        table.add_row(*row)
    return table


def comparison_tables(found: RunComparison) -> Iterator[_Titled]:
    """The tables that are not empty."""
    for title, columns, rows in _all_tables(found):
        if rows:
            yield in_words_of(found.unit, title), columns, rows


def _all_tables(found: RunComparison) -> Iterator[_Titled]:
    changes = (">before", ">after", ">change", ">interval", "")
    yield "Parts of the change of a step", ("part", *changes), [*_parts(found)]
    ranks = [(f"rank {one.rank}", *_cells(one)) for one in found.ranks if not one.noise]
    yield "Own work of a rank in a step", ("rank", *changes), ranks
    operators = [(printable(one.name, 80), _calls(one), *_cells(one)) for one in found.operators[:MAX_OPERATORS]]
    yield "Operations and modules", ("name", ">calls", *changes), operators
    sizes = [
        (
            printable(one.collective, 80),
            _calls(one),
            f"{units.size(one.bytes_before)} → {units.size(one.bytes_after)}",
            f"{units.duration(one.us_before)} → {units.duration(one.us_after)}",
        )
        for one in found.collectives
    ]
    yield "Collectives a step", ("kind", ">calls", ">size of one", ">time of one"), sizes
    code = [(printable(one.line, 100), *_cells(one)) for one in found.code]
    yield "Code in steps without profiler, sampled", ("line", *changes), code
    waits = [(WAITING[one.name].split(",")[0], *_cells(one)) for one in found.waits]
    yield "Waits in steps without profiler", ("wait", *changes), waits
    findings = [
        ("new" if one.is_new else "gone", one.id, printable(one.title, 200), units.duration(one.saving_us))
        for one in found.findings
    ]
    yield "Findings of one run alone", ("", "id", "finding", ">saves"), findings


def _calls(one: OperatorChange | CollectiveChange) -> str:
    return f"{one.calls_before:.3g} → {one.calls_after:.3g}"


def _parts(found: RunComparison) -> Iterator[tuple[str, ...]]:
    yield (found.unit, *_cells(found.step))
    for part in found.parts:
        yield (_INDENT + MEANING.get(part.name, part.name), *_cells(part))
        yield from _places(part)


def _places(part: PartChange) -> Iterator[tuple[str, ...]]:
    """The places of a part that differs beyond noise, if one of them does."""
    for place in part.places:
        if not (part.noise or place.noise):
            yield (2 * _INDENT + printable(place.line or place.name, 80), *_cells(place))


def _cells(change: TimeChange) -> tuple[str, str, str, str, str]:
    """Before, after, change, interval, and whether it is noise."""
    before, after = (units.duration(us).replace("-", "−") for us in (change.before_us, change.after_us))
    return before, after, signed(change), interval_text(change), "noise" if change.noise else ""


def interval_text(change: TimeChange) -> str:
    """The interval of a change: `+16.1 ms to +22.0 ms`."""
    if change.low_us is None or change.high_us is None:
        return "unknown"
    return f"{_signed(change.low_us)} to {_signed(change.high_us)}"


def _signed(us: float) -> str:
    return f"{'−' if us < 0 else '+'}{units.duration(abs(us))}"


def comparison_facts(found: RunComparison) -> Iterable[tuple[str, str]]:
    """What was compared, as pairs of name and text."""
    step = found.step
    yield (
        "Steps",
        f"{SHOWN_PHASE[found.phase]}: {step.steps_before} before, {step.steps_after} after, in blocks of {step.block}; "
        f"medians {units.duration(step.median_before_us)} → {units.duration(step.median_after_us)}, rank test p "
        f"{units.p_value(step.p)}; intervals {100 * found.confidence:g} % over each table",
    )
    if found.saves:
        yield "Saves", saves_text(found.saves)
    yield "Before", _run(found.before)
    yield "After", _run(found.after)
    if found.differs:
        yield "Differs", "; ".join(found.differs)


def _run(run: ComparedRun) -> str:
    command = shlex.join(run.command) or "command unknown"
    return f"{shlex.join(run.sources)}: {command}; {units.plural(len(run.recorded_steps), 'recorded step')}"


def _inert(text: str) -> str:
    """`text` with what Markdown, HTML, links and mentions use escaped."""
    return re.sub(r"[^\w ./=%:;,→+−–µ()-]|_", lambda match: f"&#{ord(match.group())};", text)
