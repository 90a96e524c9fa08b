"""Building blocks of terminal output: the screen, and headlines, facts and tables that fit it."""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.terminal.stream import DEFAULT_COLUMNS, columns_of, takes_colour
from esprof.run.run import RunWarning

MAX_ROWS = 16
"""Rows of a table; a note gives the number of further rows and where to find them."""
_MIN_NAME_COLUMNS = 12
"""Least width of a column of names, unless all are shorter."""
_WRAPPING_CONSOLE = Console(file=io.StringIO(), markup=False, emoji=False)
"""Only wraps text; prints nothing."""


@dataclass(frozen=True)
class Screen:
    """The output device: `width` in columns, and whether to use colour."""

    width: int = DEFAULT_COLUMNS
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO | None) -> "Screen":
        """The screen of `stream`, None for a file."""
        return cls(columns_of(stream), takes_colour(stream))


PLAIN = Screen()


def drawn(screen: Screen, *blocks: RenderableType) -> str:
    """Render `blocks` one below the other, without markup, emoji codes and highlighting, which names may contain."""
    console = Console(
        file=io.StringIO(),
        width=screen.width,
        force_terminal=screen.colour,
        color_system="standard" if screen.colour else None,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(Group(*(_fitting(block, screen) for block in blocks)))
    # CI runners execute a line of the log that begins with "::"; wrapping may move a name there.
    return "\n".join(re.sub(r"^(\s*)::", r"\1: :", line.rstrip()) for line in capture.get().splitlines())


def _fitting(block: RenderableType, screen: Screen) -> RenderableType:
    """`block`; or, of a table whose figures would leave too little room for its names, one paragraph for each row."""
    if not isinstance(block, Table) or not block.show_header or _needed_width(block) <= screen.width:
        return block
    heads = [_plain(column.header).replace("-\n", "").replace("\n", " ") for column in block.columns]
    rows = zip(*(column.cells for column in block.columns), strict=True)
    return Group(*(_paragraph(block, heads, row, screen) for row in rows))


def _needed_width(table: Table) -> int:
    """Columns of the screen that the figures take, and the names at least."""
    needed = 0
    for column in table.columns:
        cells = [_plain(cell) for cell in (column.header, *column.cells)]
        widest = max(cell_len(line) for cell in cells for line in cell.split("\n"))
        needed += (widest if column.no_wrap else min(widest, _MIN_NAME_COLUMNS)) + table.padding[1]
    return needed - table.padding[1]


def _paragraph(table: Table, heads: Sequence[str], row: Sequence[RenderableType], screen: Screen) -> Text:
    """The first cell, a name or `rank 3`, and the other cells with their headings below it."""
    first = row[0] if isinstance(row[0], Text) else Text(str(row[0]))
    name = Text.assemble(f"{heads[0]} ", first) if table.columns[0].no_wrap else first
    figures = [f"{head} {_plain(cell)}" for head, cell in zip(heads[1:], row[1:], strict=True) if _plain(cell)]
    return Text("\n").join([name, *(Text(f"  {line}") for line in wrapped(", ".join(figures), screen.width - 2, None))])


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def headline(text: str, screen: Screen, at_most: int | None = None) -> Text:
    return Text("\n".join(wrapped(text, screen.width, at_most)), style="bold")


def heading(text: str) -> Text:
    return Text(text, style="bold")


def fact(name: str, text: str, screen: Screen, at_most: int | None = 2) -> Text:
    """A line of the footing in at most `at_most` lines, or in as many as it takes."""
    lines = wrapped(text, screen.width - 8, at_most)
    return Text.assemble((f"{name:<8}", "dim"), "\n        ".join(lines))


def wrapped(text: str, width: int, at_most: int | None) -> list[str]:
    """`text` in lines of `width` columns (a wide character takes two), at most `at_most`; a longer one ends in `…`."""
    width = max(width, 24)
    lines = Text(printable(" ".join(text.split()), 2_000)).wrap(_WRAPPING_CONSOLE, width)
    shown = [line.plain.rstrip() for line in lines[:at_most]]
    if at_most is not None and len(lines) > at_most:
        shown[-1] = Text(shown[-1]).wrap(_WRAPPING_CONSOLE, width - 2)[0].plain.rstrip() + " …"
    return shown


def warned(warnings: Sequence[RunWarning]) -> Iterable[Text]:
    for warning in warnings:
        yield Text.assemble(("warning ", "yellow"), f"{printable(warning.code)}: {printable(warning.message, 500)}")


def grid(*columns: str, header: bool = True, padding: int = 3) -> Table:
    """A table without rules. A column whose name starts with `>` is right-aligned and never wraps."""
    found = Table(box=None, show_header=header, header_style="dim", pad_edge=False, padding=(0, padding, 0, 0))
    for name in columns:
        right = name.startswith(">")
        found.add_column(name.removeprefix(">"), justify="right" if right else "left", no_wrap=right)
    return found


def cut_note(number: int, where: str) -> Iterable[str]:
    if number > MAX_ROWS:
        yield f"{MAX_ROWS} of {units.count(number)} shown; `{where}` lists all"
