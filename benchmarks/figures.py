"""Figures of benchmarks: a JSON line each, and Markdown tables."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from esprof.core.statistics import MIN_REPLICATES, bootstrap


class Figure(NamedTuple):
    """A result over several measurements."""

    name: str
    value: float
    unit: str
    context: Mapping[str, object]


class Ratio(NamedTuple):
    """A ratio of two medians, and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float]) -> "Ratio":
        """Of the median of `first` to that of `second`, which were measured in pairs: these are resampled."""
        a, b = np.array(first), np.array(second)

        def ratios(at: np.ndarray) -> np.ndarray:
            return np.median(a[at], axis=-1) / np.median(b[at], axis=-1)

        found = bootstrap(len(a), 1, ratios, MIN_REPLICATES, np.random.default_rng(0))
        return cls(
            float(np.median(a) / np.median(b)), float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))
        )


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


def summary(figures: Iterable[Figure]) -> str:
    """A Markdown table of figures, and the hardware of this machine."""
    rows = (
        [
            one.name.replace("_", " "),
            f"{one.value:.1f} {one.unit}",
            "; ".join(f"{k} {v}" for k, v in one.context.items()),
        ]
        for one in figures
    )
    return f"{table(('figure', '>value', 'of'), rows)}\n\nMeasured on {hardware()}."


def hardware() -> str:
    """The processor of this machine, and how many of its CPUs this process may use."""
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{len(os.sched_getaffinity(0))} CPUs ({model[1] if model else 'of an unknown kind'})"
