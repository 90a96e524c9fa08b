"""Figures for people: every number with its unit, at a precision that a person can use."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from math import ceil
from typing import Any

from esprof.analyzers.evidence import Evidence, Unit, Value
from esprof.analyzers.finding import Throughput
from esprof.types import NS_PER_S, NS_PER_US, Ns, Rank

UNKNOWN = "–"
_LISTED = 8
"""Values that a line of evidence shows before it says how many more there are."""


def ms(us: float | None) -> str:
    """Microseconds as milliseconds: `1,057 ms`, `41.2 ms`, `3.05 ms`, `0.012 ms`."""
    return UNKNOWN if us is None else f"{_decimal(us / 1_000)} ms"


def pct(value: float | None) -> str:
    """A share in per cent: `34.2 %`; one too small for its decimals is `<0.1 %`, never a false zero."""
    if value is None:
        return UNKNOWN
    if 0 < abs(value) < 0.05:
        return "<0.1 %" if value > 0 else ">−0.1 %"
    return f"{value:.1f} %".replace("-", "−")


def bound_pct(value: float) -> str:
    """An error as the bound that holds for it, at least a tenth of a per cent: `0.9 %` for 0.84."""
    return f"{max(1, ceil(10 * value)) / 10:.1f} %"


def error_pct(value: float | None) -> str:
    """An error in per cent, with its sign and two decimals: `+0.84 %`; `0.00 %` has none."""
    if value is None:
        return UNKNOWN
    return "0.00 %" if abs(value) < 0.005 else f"{value:+.2f} %".replace("-", "−")


def times(factor: float | None) -> str:
    """A speed-up: `1.23×`."""
    return UNKNOWN if factor is None else f"{factor:.2f}×"


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(per_s: float | None) -> str:
    """A rate per second, without the noun: `8.31`, `1,064`."""
    return UNKNOWN if per_s is None else _decimal(per_s)


def rates(throughput: Throughput) -> list[str]:
    """What is known of a throughput, steps first: `8.31 steps/s`, `133 samples/s`."""
    known = {
        "steps": throughput.steps_per_s,
        "samples": throughput.samples_per_s,
        "tokens": throughput.tokens_per_s,
    }
    return [f"{rate(value)} {noun}/s" for noun, value in known.items() if value is not None]


def hours(value: float | None) -> str:
    """Hours: `16.4 h`."""
    return UNKNOWN if value is None else f"{_decimal(value)} h"


def seconds(value: float | None) -> str:
    """Seconds: `0.41 s`."""
    return UNKNOWN if value is None else f"{value:,.2f} s"


def size(value: float | None) -> str:
    """Bytes in binary units: `512 B`, `25.0 MiB`."""
    if value is None:
        return UNKNOWN
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def when(ns: Ns | None) -> str:
    """A point in time, in UTC to the minute."""
    return UNKNOWN if ns is None else datetime.fromtimestamp(ns / NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M UTC")


def ranks(which: Sequence[Rank], world_size: int) -> str:
    """Ranks as runs: `rank 1`, `ranks 0–2, 5`; `all 8 ranks`, and `the job` where no rank is named."""
    if not which:
        return "the job"
    if len(which) == world_size > 1:
        return f"all {world_size} ranks"
    return named("rank", which)


def named(noun: str, numbers: Sequence[int]) -> str:
    """`step 5`, `steps 5–7, 9`."""
    return f"{noun if len(numbers) == 1 else noun + 's'} {spans(numbers)}"


def spans(numbers: Sequence[int]) -> str:
    """Numbers as runs of neighbours: `0–2, 5`."""
    # Neighbours share the difference between their value and their place.
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(group) for _, group in runs)]
    return ", ".join(f"{low}–{high}" if high > low else str(low) for low, high in ends)


def plural(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


_UNITS: dict[Unit, Callable[[Any], str]] = {
    "ns": lambda ns: ms(ns / NS_PER_US),
    "bytes": size,
    "bytes/s": lambda amount: f"{size(amount)}/s",
    "share": lambda share: pct(100 * share),
    "ranks": lambda which: spans(which) or "none",
}


def evidence(name: str, seen: Evidence) -> tuple[str, str]:
    """One entry of `Finding.evidence` as (label, text). Of many values the first are shown, and how many more there are."""
    label = name.replace("_", " ")
    if not isinstance(seen.value, dict):
        return label, _shown(seen.value, seen.unit)
    noun = "" if seen.by == "cause" else f"{seen.by} "
    texts = [f"{noun}{key}: {_shown(value, seen.unit)}" for key, value in seen.value.items()]
    more = [f"and {len(texts) - _LISTED} more"] if len(texts) > _LISTED else []
    return label, ", ".join(texts[:_LISTED] + more) or "none"


def _shown(value: Value, unit: Unit | None) -> str:
    if value is None:
        return "not known"
    if unit is not None:
        return _UNITS[unit](value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    return _decimal(value) if isinstance(value, float) else str(value)


def _decimal(value: float) -> str:
    """Three or four figures that count, thousands separated."""
    size = abs(value)
    if size >= 1_000 or size == 0:
        return f"{value:,.0f}"
    return f"{value:.{1 if size >= 10 else 2 if size >= 0.1 else 3}f}"
