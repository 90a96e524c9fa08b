"""The result of `ops` as a table for a terminal."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from esprof.analyzers.ops.answer import Attention, CollectiveRate, OpsAnswer, Utilisation
from esprof.analyzers.ops.sort import By
from esprof.core.readable import decimal
from esprof.core.step_words import in_words_of
from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.operations import SORTED_BY, detail, label, spread
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, heading, headline, warned

_MIN_NAME_COLUMNS = 24
"""Minimum width of names."""

_ROWS: dict[By, str] = {"operation": "Operations", "module": "Modules"}

MAX_COLLECTIVES = 8
"""Most rows of collectives."""

MIN_SHARE_UNKNOWN = 0.01
"""Least share of the time of collectives from which on a line says that their bandwidth is unknown."""


def render_text(answer: OpsAnswer, screen: Screen = PLAIN) -> str:
    """The operations, largest first: their times, deviating ranks, kernels and callers."""
    ranks = units.recorded_ranks(answer.world_size, answer.missing_ranks)
    of = f"rank {answer.ranks[0]} of {ranks}" if len(answer.ranks) < answer.world_size and _is_one(answer) else ranks
    steps = units.plural(len(answer.steps), "steady-state step")
    mean = "" if answer.unit == "window" else f" (mean of {steps})"
    takes = in_words_of(answer.unit, f"A step takes {units.duration(answer.step_us)} on {of}{mean}.")
    lines = [
        headline(takes, screen),
        Text(),
        heading(f"{_ROWS[answer.by]} by {SORTED_BY[answer.sort]}, in ms per {answer.unit}"),
    ]
    rest = (*_collectives(answer), *_footing(answer, screen))
    return drawn(screen, *lines, _table(answer, screen), *_cut(answer), Text(), *rest)


def _is_one(answer: OpsAnswer) -> bool:
    return len(answer.ranks) == 1


def _table(answer: OpsAnswer, screen: Screen) -> Table:
    gpu = (">own\nGPU", ">total\nGPU") if answer.has_gpu else ()
    ranks = () if _is_one(answer) else (">ranks",)
    backward = ((">backward\nGPU" if answer.has_gpu else ">backward\nCPU"),) if answer.by == "module" else ()
    rows = grid(answer.by, ">calls", *gpu, ">own\nCPU", ">total\nCPU", *backward, ">share", *ranks, padding=2)
    # Names get the width that the other columns leave.
    name = max(_MIN_NAME_COLUMNS, screen.width - 26 - 18 * answer.has_gpu - 10 * bool(backward) - 24 * bool(ranks))
    for op in answer.ops:
        lines = [(printable(label(op), name), "bold"), *((f"\n  {line}", "dim") for line in detail(op, name - 2))]
        times = (op.own_gpu_us, op.total_gpu_us) if answer.has_gpu else ()
        of_backward = (op.backward_gpu_us if answer.has_gpu else op.backward_cpu_us,) if backward else ()
        differs = Text(spread(answer, op), style="yellow" if op.differs is not None else "")
        rows.add_row(
            Text.assemble(*lines),
            decimal(op.calls),
            *(decimal(us / 1_000) for us in (*times, op.own_cpu_us, op.total_cpu_us, *of_backward)),
            units.pct(op.share_pct),
            *([differs] if ranks else ()),
        )
    return rows


def _cut(answer: OpsAnswer) -> Iterable[str]:
    if not answer.ops:
        yield f"no {answer.by} has a matching name" if answer.pattern is not None else f"no {answer.by} was recorded"
    elif answer.found > len(answer.ops):
        yield f"{len(answer.ops)} of {units.count(answer.found)} shown; --top {answer.found} shows all"


def _collectives(answer: OpsAnswer) -> Iterable[Table | Text | str]:
    """The bandwidths of collectives by size, those with most time first."""
    if not answer.collectives:
        return
    rows = grid(
        "collective", ">ranks", ">size", ">calls", ">each", ">algorithm\nGB/s", ">bus\nGB/s", ">of the\nlink", padding=2
    )
    shown = answer.collectives[:MAX_COLLECTIVES]
    for one in shown:
        least = "≥ " * (not one.is_matched)
        rows.add_row(
            printable(one.collective, _MIN_NAME_COLUMNS),
            str(len(one.ranks)),
            units.size((one.smallest + one.largest) / 2),
            decimal(one.calls),
            units.duration(one.us),
            *(least + decimal(rate / 1e9) for rate in (one.algorithm_bytes_per_s, one.bus_bytes_per_s)),
            "–" if one.peak is None or one.peak_pct is None else f"{least}{units.pct(one.peak_pct)}",
        )
    yield heading("Bandwidth of collectives by size, most time first")
    yield rows
    if len(answer.collectives) > len(shown):
        yield f"{len(shown)} of {len(answer.collectives)} shown; --json has all"
    yield from _link(shown)
    yield Text()


def _link(shown: Sequence[CollectiveRate]) -> Iterable[str]:
    """What the bandwidths are compared with."""
    peaks = {(one.peak.source, one.peak.bytes_per_s) for one in shown if one.peak is not None}
    for source, rate in sorted(peaks):
        how = (
            "measured by esprof probe" if source == "probe" else "all links of a device in one direction, by data sheet"
        )
        yield f"link: {decimal(rate / 1e9)} GB/s ({how})"
    if not all(one.is_matched for one in shown):
        yield "≥: calls without a counterpart on other ranks; their time may include waiting"


def _footing(answer: OpsAnswer, screen: Screen) -> Iterable[Text]:
    if answer.has_gpu:
        outside = ""
        if answer.gpu_outside_us > 0:
            outside = f", {units.duration(answer.gpu_outside_us)} of it launched outside any operation"
        yield fact(
            "GPU",
            f"{units.duration(answer.gpu_us)} of work per {answer.unit} and rank, summed over streams{outside}",
            screen,
        )
    if answer.utilisation:
        yield fact("MFU", in_words_of(answer.unit, model_flop_utilisation(answer.utilisation)), screen)
    if answer.attention:
        found = ", ".join(_attention(one, answer.step_us) for one in answer.attention)
        yield fact("Attn", in_words_of(answer.unit, found), screen)
    if answer.collectives_unknown >= MIN_SHARE_UNKNOWN:
        share = units.pct(100 * answer.collectives_unknown)
        yield fact("Links", f"unknown: kind, group or size of {share} of the time of collectives", screen)
    operations = f"{units.duration(answer.cpu_us)} in operations per {answer.unit} and rank"
    yield fact("CPU", f"{operations}, summed over threads", screen)
    if answer.by_shape and not answer.shapes_recorded:
        yield fact("Shapes", "none recorded; use `esprof record --shapes`", screen)
    if not answer.modules_recorded:
        modules = "none recorded; `esprof record` and torch.profiler with with_stack=True record them"
        yield fact("Modules", modules, screen)
    yield from warned(answer.warnings)


def _attention(one: Attention, step_us: float) -> str:
    share = units.pct(100 * one.us / step_us) if step_us else "–"
    kernels = f"{decimal(one.kernels)} kernels a step and rank"
    return f"{printable(one.implementation)}: {units.duration(one.us)} of work ({share} of the step) in {kernels}"


def model_flop_utilisation(used: Utilisation) -> str:
    """The utilisation of a step and what it counts, or the reason why it is unknown."""
    if used.mfu_pct is None or used.operations_per_step is None:
        return f"unknown: {used.reason}"
    of = ", ".join(f"{name} {units.pct(100 * share)}" for name, share in used.precisions.items())
    counted = f", counted in {units.pct(100 * used.counted_share)} of their time" if used.is_lower_bound else ""
    return (
        f"{'at least ' * used.is_lower_bound}{units.pct(used.mfu_pct)} of the device's peak: "
        f"{decimal(used.operations_per_step / 1e12)} TFLOP a step and rank in multiplications ({of}){counted}"
    )
