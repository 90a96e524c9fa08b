"""Figures and lists as people read them: durations, sizes, and runs of ranks or steps."""

from collections.abc import Collection, Iterable
from itertools import groupby

from esprof.core.types import NS_PER_MS, NS_PER_S, Rank

_MAX_RUNS_NAMED = 10
"""Runs of neighbours that a list names before it says how many numbers more there are."""


def duration(ns: float) -> str:
    """A span of time: `0.012 ms`, `3.05 ms`, `41.2 ms`, `1,057 ms`; from ten seconds on `62.0 s`."""
    in_s = abs(ns) >= 10 * NS_PER_S
    return f"{decimal(ns / NS_PER_S)} s" if in_s else f"{decimal(ns / NS_PER_MS)} ms"


def interval(low_ns: float, high_ns: float) -> str:
    """Two spans of time that bound another: `36.8 to 45.0 ms`, `0 to 32.8 ms`, `9,800 ms to 12.1 s`."""
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


def verb(plural: str, which: Collection[Rank]) -> str:
    """The verb of a sentence about these ranks: `waits` of one, `wait` of several."""
    return f"{plural}s" if len(which) == 1 else plural


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """`step 5`, `steps 5–7, 9`."""
    found = list(numbers)
    return f"{noun if len(found) == 1 else noun + 's'} {runs(found)}"


def runs(numbers: Iterable[int]) -> str:
    """Numbers as runs of neighbours, in order: `0–2, 5`. Of many runs the first are named: `0, 2, 4 and 97 more`."""
    found = stretches(numbers)
    named, more = found[:_MAX_RUNS_NAMED], sum(map(len, found[_MAX_RUNS_NAMED:]))
    text = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in named)
    return f"{text} and {more:,} more" if more else text


def stretches(numbers: Iterable[int]) -> list[range]:
    """The unbroken stretches of `numbers`, ascending: 5, 0, 1, 2 are 0 to 2, and 5."""
    # Neighbours share the difference between their value and their place.
    runs = groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0])
    found = [[number for _, number in run] for _, run in runs]
    return [range(run[0], run[-1] + 1) for run in found]


def decimal(value: float) -> str:
    """Three or four figures that count, thousands separated."""
    amount = abs(value)
    if amount == 0:
        return "0"
    # The borders are those of the rounded figures: 999.96 is 1,000, and 9.996 is 10.0.
    decimals = 0 if amount >= 999.95 else 1 if amount >= 9.995 else 2 if amount >= 0.0995 else 3
    return f"{value:,.{decimals}f}"
