"""Figures of benchmarks: a JSON line each, and rows of Markdown tables."""

import json
from collections.abc import Iterable, Mapping, Sequence


def show(name: str, value: float, unit: str, context: Mapping[str, object]) -> None:
    """Print a figure as a JSON line."""
    line = {"name": name, "value": round(value, 4), "unit": unit, "context": context}
    print(json.dumps(line, default=float), flush=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a column whose title begins with `>` is aligned right."""
    titles, ruler = (
        (column.lstrip(">") for column in columns),
        ("--:" if column[0] == ">" else "---" for column in columns),
    )
    lines = [" | ".join(titles), "|".join(ruler)]
    return "\n".join(f"| {line} |" for line in [*lines, *(" | ".join(row) for row in rows)])
