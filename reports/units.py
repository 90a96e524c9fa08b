"""Formatting of figures, with units and a readable precision."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from math import ceil, floor
from typing import Any

from esprof.analyzers.evidence import Evidence, Unit, Value
from esprof.analyzers.finding import Diagnosis, Finding, Ignored, Throughput
from esprof.core import readable
from esprof.core.readable import decimal, runs
from esprof.core.types import NS_PER_S, NS_PER_US, Ns, Rank
from esprof.replay.whatif.memory.peak import PeakMemory
from esprof.run.overhead import Overhead

UNKNOWN = "–"
_MAX_VALUES_LISTED = 8
"""Values shown in a line of evidence; a note gives the number of further ones."""


def duration(us: float | None) -> str:
    """A span of time, from microseconds: `41.2 ms`."""
    return UNKNOWN if us is None else readable.duration(us * NS_PER_US)


def interval(low_us: float | None, high_us: float | None) -> str:
    """The ends of an interval of time, from microseconds: `36.8 to 45.0 ms`."""
    if low_us is None or high_us is None:
        return UNKNOWN
    return readable.interval(low_us * NS_PER_US, high_us * NS_PER_US)


def saving(finding: Finding) -> str:
    """Saving per step: `40.9 ms (36.8 to 45.0 ms)`; `at most 40.9 ms (…)` for a bound; `0 to 45.0 ms` if the interval
    includes zero."""
    if not finding.saving_us:
        return UNKNOWN
    ends = interval(finding.saving_low_us, finding.saving_high_us)
    most = "at most " * finding.is_bound
    return f"{most}{duration(finding.saving_us)} ({ends})" if finding.is_saving else f"{most}{ends}"


def pct(value: float | None) -> str:
    """A share in per cent: `34.2 %`; a tiny one is `<0.1 %`, not zero."""
    if value is None:
        return UNKNOWN
    if 0 < abs(value) < 0.05:
        return "<0.1 %" if value > 0 else ">−0.1 %"
    return f"{value:.1f} %".replace("-", "−")


def bound_pct(value: float) -> str:
    """The upper bound of an error, rounded up to tenths: `0.9 %` for 0.84."""
    return f"{max(1, ceil(10 * value)) / 10:.1f} %"


def overhead(found: Overhead | None) -> str:
    """Overhead of recording: `4 to 9 %`, `at most 3 %`."""
    if found is None:
        return UNKNOWN
    high = f"{max(1, ceil(found.high_pct))} %"
    return f"{floor(found.low_pct)} to {high}" if found.low_pct >= 1 else f"at most {high}"


def error_pct(value: float | None) -> str:
    """An error in per cent, with its sign and two decimals: `+0.84 %`; `0.00 %` has none."""
    if value is None:
        return UNKNOWN
    return "0.00 %" if abs(value) < 0.005 else f"{value:+.2f} %".replace("-", "−")


def p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def times(factor: float | None) -> str:
    """A speed-up: `1.23×`."""
    return UNKNOWN if factor is None else f"{factor:.2f}×"


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(per_s: float | None) -> str:
    """A rate per second, without the noun: `8.31`, `1,064`."""
    return UNKNOWN if per_s is None else decimal(per_s)


def rates(throughput: Throughput) -> list[str]:
    """The known rates of a throughput, steps first: `8.31 steps/s`, `133 samples/s`."""
    known = {
        "steps": throughput.steps_per_s,
        "samples": throughput.samples_per_s,
        "tokens": throughput.tokens_per_s,
    }
    return [f"{rate(value)} {noun}/s" for noun, value in known.items() if value is not None]


def hours(value: float | None) -> str:
    """Hours: `16.4 h`."""
    return UNKNOWN if value is None else f"{decimal(value)} h"


def size(amount: float | None) -> str:
    """Bytes in binary units: `25.0 MiB`."""
    return UNKNOWN if amount is None else readable.size(amount)


def peak(of: PeakMemory) -> str:
    """Peak memory against its limit: `25.0 MiB`, `96.0 GiB, does not fit into 80.0 GiB`."""
    return size(of.peak) + ("" if of.fits is not False else f", does not fit into {size(of.limit)}")


def when(ns: Ns | None) -> str:
    """A point in time, in UTC to the minute."""
    return UNKNOWN if ns is None else datetime.fromtimestamp(ns / NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M UTC")


def ranks(which: Sequence[Rank], world_size: int) -> str:
    """`rank 1`, `ranks 0–2, 5`, `all ranks`; `the whole job` where no rank is named."""
    if not which:
        return "the whole job"
    return "all ranks" if len(which) == world_size > 1 else readable.ranks(which)


def recorded_ranks(world_size: int, missing: Sequence[Rank]) -> str:
    """`8 ranks`; `1 of 128 ranks` where some are missing."""
    return f"{world_size - len(missing):,} of {plural(world_size, 'rank')}" if missing else plural(world_size, "rank")


def ignored(one: Ignored) -> str:
    """`ESP301 until 2027-05-31, saves 3.40 ms (3.06 to 3.74 ms) a step, 2.8 %: why`."""
    finding = one.finding
    worth = f", saves {saving(finding)} a step, {pct(finding.saving_pct)}" if finding.is_saving else ""
    return f"{finding.id} until {one.until}{worth}: {one.reason}"


def symptom(one: Finding) -> str:
    """A symptom: `ESP405, aten::item blocks the CPU once a step (29.9 ms alone)`."""
    return f"{one.id}, {one.title} ({duration(one.saving_us)} alone)"


def uncertain(one: Finding) -> str:
    """A finding whose saving may be nothing: `ESP405, 0 to 12.0 ms: aten::item blocks the CPU once a step`."""
    return f"{one.id}, {saving(one)}: {one.title}"


def joint_saving(diagnosis: Diagnosis) -> str | None:
    """What all causes save together: `42.0 ms a step`; None with less than two."""
    causes = [finding for finding in diagnosis.findings if finding.is_saving]
    return f"{duration(diagnosis.joint_saving_us)} a step" if len(causes) > 1 else None


def plural(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"


_UNITS: dict[Unit, Callable[[Any], str]] = {
    "ns": readable.duration,
    "bytes": size,
    "bytes/s": lambda amount: f"{size(amount)}/s",
    "share": lambda share: pct(100 * share),
    "ranks": lambda which: runs(which) or "none",
}


def evidence(entries: Mapping[str, Evidence]) -> list[tuple[str, str]]:
    """(label, text) of each entry of `Finding.evidence` that has a value."""
    return [_labelled(name, seen) for name, seen in entries.items() if seen.value != {}]


def _labelled(name: str, seen: Evidence) -> tuple[str, str]:
    """An entry as (label, text). Only the first of many values are shown."""
    label = name.replace("_", " ")
    if not isinstance(seen.value, dict):
        return label, _shown(seen.value, seen.unit)
    noun = "" if seen.by == "cause" else f"{seen.by} "
    texts = [f"{noun}{key}: {_shown(value, seen.unit)}" for key, value in seen.value.items()]
    more = [f"and {len(texts) - _MAX_VALUES_LISTED} more"] if len(texts) > _MAX_VALUES_LISTED else []
    return label, ", ".join(texts[:_MAX_VALUES_LISTED] + more)


def _shown(value: Value, unit: Unit | None) -> str:
    if value is None:
        return "unknown"
    if unit is not None:
        return _UNITS[unit](value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    return decimal(value) if isinstance(value, float) else str(value)
