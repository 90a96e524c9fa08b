"""HTML of runs and analyses for notebooks. All text from traces is escaped."""

from html import escape

import pandas as pd

from esprof.core.text import printable
from esprof.run.run import Run

_MAX_ROWS = 12
"""Number of rows of a table that are shown."""
_MAX_CHARACTERS = 2_000


def run_html(run: Run) -> str:
    """Summary, ranks and warnings of a run."""
    ranks = pd.DataFrame(
        [
            {
                "rank": meta.rank,
                "host": meta.host,
                "device": meta.device,
                "windows": ", ".join(f"{window.first}–{window.last}" for window in meta.windows if not window.stacks),
                "events": meta.events,
            }
            for meta in run.meta.ranks
        ]
    )
    return "".join((_paragraph(repr(run)), _html(ranks), *(_paragraph(one.message) for one in run.warnings)))


def analysis_html(verdict: str, *tables: pd.DataFrame) -> str:
    """The verdict and all tables that are not empty."""
    return "".join((_paragraph(verdict), *(_html(table) for table in tables if len(table))))


def _paragraph(text: str) -> str:
    return f"<p>{escape(printable(text, _MAX_CHARACTERS))}</p>"


def _html(table: pd.DataFrame) -> str:
    more = f"<p>and {len(table) - _MAX_ROWS:,} more</p>" if len(table) > _MAX_ROWS else ""
    has_index = table.index.name is not None
    shown = table.head(_MAX_ROWS).to_html(index=has_index, escape=True, float_format="{:,.1f}".format, na_rep="–")
    return f"{shown}{more}"
