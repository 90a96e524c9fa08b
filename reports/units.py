"""Figures for people: every number with its unit, at a precision that a person can use."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from math import ceil
from typing import Any

from esprof.analyzers.finding import Throughput
from esprof.types import NS_PER_S, NS_PER_US, Ns, Rank

UNKNOWN = "–"
_LISTED = 8
"""Entries of a list or mapping that a line of evidence shows before it says how many more there are."""


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


_UNITS: dict[str, Callable[[float], str]] = {
    "us": ms,
    "ns": lambda ns: ms(ns / NS_PER_US),
    "ms": lambda value: ms(value * 1_000),
    "s": seconds,
    "pct": pct,
    "share": lambda value: pct(100 * value),
    "bytes": size,
    "per s": lambda value: f"{rate(value)}/s",
}
"""A word of an evidence key -> how the numbers under that key are shown."""
_NOUNS = {"share", "bytes"}
"""Of these, the words that the label keeps."""


def evidence(key: str, value: Any) -> tuple[str, str]:
    """One entry of `Finding.evidence` as (label, text): a word of the key tells the unit; lists are cut and say so."""
    label, unit = _label_and_unit(key)
    return label, _shown(value, unit, numbered="step" if key.endswith("steps") else "rank")


def _label_and_unit(key: str) -> tuple[str, str]:
    """`late_ms_per_step` -> (`late per step`, `ms`)."""
    if key.endswith("_per_s"):
        return key.removesuffix("_per_s").replace("_", " "), "per s"
    words = key.split("_")
    unit = next((word for word in reversed(words) if word in _UNITS), "")
    return " ".join(word for word in words if word != unit or word in _NOUNS), unit


def _shown(value: Any, unit: str, numbered: str) -> str:
    """`numbered` is what a mapping's numbers stand for: ranks or steps."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _UNITS[unit](value) if unit else _number(value)
    if isinstance(value, dict):
        return _listed([_entry(str(key), item, unit, numbered) for key, item in value.items()], value.values())
    if isinstance(value, list | tuple):
        return _listed([_shown(item, unit, numbered) for item in value], value)
    return str(value)


def _entry(key: str, value: Any, unit: str, numbered: str) -> str:
    if key.isdecimal():
        return f"{numbered} {key}: {_shown(value, unit, numbered)}"
    label, own_unit = (key, unit) if unit else _label_and_unit(key)
    text = _shown(value, own_unit, numbered)
    return f"{label}: {text}" if label else text


def _listed(texts: list[str], items: Iterable[Any]) -> str:
    more = len(texts) - _LISTED
    separator = "; " if any(isinstance(item, dict) for item in items) else ", "
    return separator.join(texts[:_LISTED] + ([f"and {more} more"] if more > 0 else [])) or "none"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else _decimal(value)


def _decimal(value: float) -> str:
    """Three or four figures that count, thousands separated."""
    size = abs(value)
    if size >= 1_000 or size == 0:
        return f"{value:,.0f}"
    return f"{value:.{1 if size >= 10 else 2 if size >= 0.1 else 3}f}"
