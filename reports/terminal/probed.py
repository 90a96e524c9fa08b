"""The results of `probe` as tables for a terminal."""

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from esprof.analyzers.views.probed import POOR_LINE_PCT, CurveSummary, OverlapSummary, Probed, StepSummary
from esprof.core import readable
from esprof.core.readable import decimal
from esprof.core.text import printable
from esprof.core.types import Rank
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, heading, headline
from esprof.run.probes import Condition

_NAMES = {
    "collective": "{}",
    "congestion": "{}",
    "encode": "encode {}",
    "decode": "decode {}",
    "exchange": "mean with {}",
    "shards": "shards with {}",
    "narrow": "cast to {}",
    "add": "add {}",
    "begin": "begin {}",
    "coding": "code {}",
    "matmul": "matmul, {}",
    "dense": "{}",
    "sparse": "{}, 2:4",
    "sparsify": "pack {}",
    "copy": "memory copy",
    "read": "memory read",
    "launch": "operator launch",
    "threads": "matmul on threads",
    "load": "data read, {}",
    "save": "write and sync",
}
_GROUPS = (
    ("Links", ("collective",)),
    ("Links, by TCP congestion control", ("congestion",)),
    ("Codecs, by bytes of the gradient", ("encode", "decode")),
    ("Compressed exchanges, by bytes of the gradient", ("exchange", "shards")),
    ("Devices", ("matmul", "copy", "read", "launch", "threads")),
    ("Products with weights, by operations", ("dense", "sparse", "sparsify")),
    ("Storage", ("load", "save")),
)


def draw_probed(answer: Probed, screen: Screen = PLAIN) -> str:
    """The job's own step, then the benchmarks. Where several ranks have the same benchmark, the slowest is shown."""
    how = "measured" if answer.whole else "partly measured: the probe was interrupted"
    ranks = units.plural(answer.world_size, "rank")
    blocks: list[RenderableType] = [headline(f"{ranks}, {how} in {answer.took_s:.0f} s", screen)]
    if answer.steps:
        blocks += [Text(), heading("The job's own step"), _steps(answer.steps)]
    for title, kinds in _GROUPS:
        curves = [curve for curve in answer.curves if curve.kind in kinds]
        if curves:
            blocks += [Text(), heading(title), _curves(curves)]
    if answer.beside:
        blocks += [Text(), heading("Concurrent with a backward pass"), _concurrent(answer.beside)]
    return drawn(screen, *blocks, Text(), *_facts(answer, screen))


def title(curve: CurveSummary) -> str:
    """The title of a curve: `all_reduce, two at once`."""
    name = _NAMES.get(curve.kind, "{}").format(printable(curve.name))
    more = ", two at once" if curve.beside == "itself" else ""
    return name + more + (f", {curve.concurrency} threads" if curve.concurrency > 1 else "")


def rate(curve: CurveSummary) -> str:
    """The rate at the largest size, with its unit."""
    match curve.unit:
        case "bytes":
            return f"{decimal(curve.rate / 1e9)} GB/s"
        case "flop":
            return f"{decimal(curve.rate / 1e12)} TFLOP/s"
        case "calls":
            return f"{decimal(1e6 / curve.rate)} µs each"
    return units.times(curve.rate)


def slowest_of_alike(curves: Sequence[CurveSummary]) -> list[tuple[CurveSummary, int]]:
    """(slowest curve, number of curves) for each benchmark, in the order of their first curve."""
    alike: dict[tuple[object, ...], list[CurveSummary]] = {}
    for curve in curves:
        own = curve.ranks if curve.kind in ("collective", "congestion") else None
        alike.setdefault((curve.kind, curve.name, curve.beside, curve.concurrency, own), []).append(curve)
    return [(min(same, key=lambda one: one.rate), len(same)) for same in alike.values()]


def _steps(steps: Sequence[StepSummary]) -> Table:
    rows = grid(
        "rank", "device", "setting", ">step", ">data", ">forward", ">backward", ">optimizer", ">steps", padding=2
    )
    for step in steps:
        phases = [units.duration(step.parts_us.get(phase)) for phase in ("data", "forward", "backward", "optimizer")]
        rows.add_row(
            str(step.rank),
            printable(step.device or units.UNKNOWN, 24),
            printable(step.setting or "as given", 30),
            units.duration(step.median_us),
            *phases,
            str(step.steps),
        )
    return rows


def _curves(curves: Sequence[CurveSummary]) -> Table:
    rows = grid("what", "ranks", "sizes", ">smallest", ">largest", ">spread", ">rate", ">fit error", padding=2)
    for curve, count in slowest_of_alike(curves):
        first, last = curve.points[0], curve.points[-1]
        which = readable.runs(curve.ranks) if count == 1 else f"{readable.runs(curve.ranks)} of {count}"
        spread = 100 * max((point.high_us - point.low_us) / 2 / max(point.median_us, 1e-3) for point in curve.points)
        line = units.bound_pct(curve.line.worst_pct) if len(curve.points) > 2 else units.UNKNOWN
        peak = f" ({curve.peak_pct:.0f} % of peak)" if curve.peak_pct is not None else ""
        rows.add_row(
            title(curve),
            which,
            f"{_size(curve, first.size)} – {_size(curve, last.size)}",
            units.duration(first.median_us),
            units.duration(last.median_us),
            f"{spread:.0f} %",
            rate(curve) + peak,
            Text(line, style="yellow" if curve.line.worst_pct > POOR_LINE_PCT and len(curve.points) > 2 else ""),
        )
    return rows


def _size(curve: CurveSummary, size: int) -> str:
    if curve.unit == "bytes":
        return units.size(size)
    return f"{decimal(size / 1e9)} GFLOP" if curve.unit == "flop" else f"{size:,}"


def _concurrent(summaries: Sequence[OverlapSummary]) -> Table:
    """The largest size of each operation, on the rank whose backward pass is slowed down most."""
    rows = grid("what", ">rank", ">size", ">slower by", ">pass slower by", ">work lost per MiB", padding=2)
    largest: dict[str, OverlapSummary] = {}
    for one in sorted(summaries, key=lambda one: (one.size, one.pass_longer_pct)):
        largest[one.what] = one
    for one in largest.values():
        lost = units.duration(one.lost_us_per_mib)
        rows.add_row(
            printable(one.what),
            str(one.rank),
            units.size(one.size),
            units.pct(one.longer_pct),
            units.pct(one.pass_longer_pct),
            lost,
        )
    return rows


def _facts(answer: Probed, screen: Screen) -> Iterable[Text]:
    for pair in answer.two_at_once:
        text = f"two {pair.name} of {units.size(pair.size)} at once take {units.times(pair.times_one)} the time of one"
        yield fact("Two", text, screen)
    poor = [title(curve) for curve in answer.curves if curve.line.worst_pct > POOR_LINE_PCT and len(curve.points) > 2]
    if poor:
        yield fact("Line", "latency and bandwidth alone describe the yellow curves badly", screen)
    alike: dict[str, list[Rank]] = {}
    for one in answer.conditions:
        alike.setdefault(_condition(one), []).append(one.rank)
    for text, which in alike.items():
        yield fact("Device", f"{readable.ranks(which)}: {text}", screen)
    yield from _controls(answer, screen)
    ended = [left for left in answer.left_out if left.by_budget]
    if ended:
        yield fact("Budget", f"{units.plural(len(ended), 'curve')} cut short: increase --budget", screen)
    for left in answer.left_out:
        if not left.by_budget:
            yield fact("Skipped", f"{left.what}: {left.reason}", screen)


def _controls(answer: Probed, screen: Screen) -> Iterable[Text]:
    """The TCP congestion controls of the hosts, if several were measured."""
    if any(curve.kind == "congestion" for curve in answer.curves):
        found = sorted({printable(one.congestion or "unknown") for one in answer.conditions})
        yield fact("TCP", f"congestion control of the hosts: {', '.join(found)}", screen)


def _condition(one: Condition) -> str:
    name = one.device or "device unknown"
    if one.unknown is not None:
        return f"{name}; clocks and other processes unknown: {one.unknown}"
    clock = f"{one.clock_mhz} MHz" if one.clock_mhz is not None else "clock unknown"
    held = f"throttled by {', '.join(one.throttled)}" if one.throttled else "not throttled"
    others = units.plural(len(one.foreign), "other process") if one.foreign else "no other process"
    return f"{name}: {clock}, {held}, {others}"
