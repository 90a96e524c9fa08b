"""Format durations, sizes and lists of ranks or steps for people."""

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from esprof.core.types import NS_PER_MS, NS_PER_S, Rank

_MAX_RUNS_NAMED = 10
"""Ranges that a list shows before it only counts the remaining numbers."""


def duration(ns: float) -> str:
    """Format a duration: `0.012 ms`, `3.05 ms`, `41.2 ms`, `1,057 ms`; from ten seconds on `62.0 s`."""
    in_s = abs(ns) >= 10 * NS_PER_S
    return f"{decimal(ns / NS_PER_S)} s" if in_s else f"{decimal(ns / NS_PER_MS)} ms"


def interval(low_ns: float, high_ns: float) -> str:
    """Format an interval of durations: `36.8 to 45.0 ms`, `0 to 32.8 ms`, `9,800 ms to 12.1 s`."""
    low, high = duration(low_ns), duration(high_ns)
    number, unit = low.split(" ")
    return f"{number if high.endswith(f' {unit}') or low_ns == 0 else low} to {high}"


def size(amount: float) -> str:
    """Bytes in binary units: `512 B`, `25.0 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(abs(amount), 1) < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def ranks(which: Iterable[Rank]) -> str:
    """`rank 1`, `ranks 0–2, 5`."""
    return numbered("rank", which)


_SINGULARS = {"are": "is", "were": "was"}


def verb(plural: str, which: Collection[int]) -> str:
    """Inflect a verb for these ranks or steps: `waits` for one, `wait` for several."""
    return _SINGULARS.get(plural, f"{plural}s") if len(which) == 1 else plural


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """`step 5`, `steps 5–7, 9`."""
    found = list(numbers)
    return f"{noun if len(found) == 1 else noun + 's'} {runs(found)}"


def runs(numbers: Iterable[int]) -> str:
    """Format numbers as ascending ranges: `0–2, 5`. Of many ranges the first are shown: `0, 2, 4 and 97 more`."""
    found = stretches(numbers)
    named, more = found[:_MAX_RUNS_NAMED], sum(map(len, found[_MAX_RUNS_NAMED:]))
    text = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in named)
    return f"{text} and {more:,} more" if more else text


def listed(texts: Sequence[str], most: int) -> str:
    """Join texts by commas. Of more than `most`, the first are shown: `a, b and 3 more`."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def stretches(numbers: Iterable[int]) -> list[range]:
    """Return the contiguous ranges of `numbers`, ascending: 5, 0, 1, 2 gives 0 to 2, and 5."""
    # Consecutive numbers share the difference between value and position.
    runs = groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0])
    found = [[number for _, number in run] for _, run in runs]
    return [range(run[0], run[-1] + 1) for run in found]


def decimal(value: float) -> str:
    """Format with three or four significant digits and thousands separators."""
    amount = abs(value)
    if amount == 0:
        return "0"
    # The limits apply to the rounded value: 999.96 is 1,000, and 9.996 is 10.0.
    decimals = 0 if amount >= 999.95 else 1 if amount >= 9.995 else 2 if amount >= 0.0995 else 3
    return f"{value:,.{decimals}f}"
