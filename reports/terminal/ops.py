"""The answer of `ops` as a table for a terminal."""

import re
from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from esprof.analyzers.ops import Op, OpsAnswer
from esprof.readable import decimal
from esprof.reports import units
from esprof.reports.terminal.text import PLAIN, Screen, drawn, fact, grid, heading, headline, warned
from esprof.text import printable

_SORTED_BY = {
    "own-gpu": "own time on the GPU",
    "total-gpu": "total time on the GPU",
    "own-cpu": "own time on the CPU",
    "total-cpu": "total time on the CPU",
    "calls": "calls",
}
_NARROWEST = 24
"""Columns that names have at least."""


def render_text(answer: OpsAnswer, screen: Screen = PLAIN) -> str:
    """The operations, most time first: what they take, on which rank that differs, what they launch and who calls them."""
    ranks = units.recorded_ranks(answer.world_size, answer.missing_ranks)
    of = f"rank {answer.ranks[0]} of {ranks}" if len(answer.ranks) < answer.world_size and _is_one(answer) else ranks
    steps = units.plural(len(answer.steps), "steady step")
    lines = [
        headline(f"A step takes {units.duration(answer.step_us)} on {of} (mean of {steps}).", screen),
        Text(),
        heading(f"Operations by {_SORTED_BY[answer.sort]}, in ms a step"),
    ]
    return drawn(screen, *lines, _table(answer, screen), *_cut(answer), Text(), *_footing(answer, screen))


def short_kernel(name: str) -> str:
    """A kernel's name without the arguments of its templates and its return type, which fill lines."""
    plain, depth = [], 0
    for letter in name.replace("(anonymous namespace)::", "").split("(", 1)[0]:
        depth += letter == "<"
        if not depth:
            plain.append(letter)
        depth -= letter == ">" and depth > 0
    return re.sub(r"^void\s+", "", "".join(plain)).strip() or name


def detail(op: Op, limit: int) -> list[str]:
    """What is known of an operation beside its times, in lines of at most `limit` characters."""
    found = []
    if op.shapes:
        found.append(op.shapes)
    if op.kernels:
        more = f", {op.kernels_found - 1} more" if op.kernels_found > 1 else ""
        found.append(f"{printable(short_kernel(op.kernels[0].name), limit - len(more) - 2)}{more}")
    if op.places:
        found.append(f"at {op.places[0].frame}")
    return [printable(line, limit) for line in found]


def spread(answer: OpsAnswer, op: Op) -> str:
    """The least and the most that a rank has of what rows are sorted by, and the rank that differs much."""
    field = "calls" if answer.sort == "calls" else f"{answer.sort.replace('-', '_')}_us"
    values = [getattr(rank, field) / (1 if field == "calls" else 1_000) for rank in op.by_rank]
    named = f", rank {op.differs}" if op.differs is not None else ""
    return f"{decimal(min(values))} … {decimal(max(values))}{named}"


def _is_one(answer: OpsAnswer) -> bool:
    return len(answer.ranks) == 1


def _table(answer: OpsAnswer, screen: Screen) -> Table:
    gpu = (">own\nGPU", ">total\nGPU") if answer.has_gpu else ()
    ranks = () if _is_one(answer) else (">ranks",)
    rows = grid("operation", ">calls", *gpu, ">own\nCPU", ">total\nCPU", ">share", *ranks, padding=2)
    # What the other columns take at most; names have the rest.
    name = max(_NARROWEST, screen.width - 26 - 18 * answer.has_gpu - 24 * bool(ranks))
    for op in answer.ops:
        label = op.name if op.kind != "module" else f"nn.Module: {op.name}"
        lines = [(printable(label, name), "bold"), *((f"\n  {line}", "dim") for line in detail(op, name - 2))]
        times = (op.own_gpu_us, op.total_gpu_us) if answer.has_gpu else ()
        differs = Text(spread(answer, op), style="yellow" if op.differs is not None else "")
        rows.add_row(
            Text.assemble(*lines),
            decimal(op.calls),
            *(decimal(us / 1_000) for us in (*times, op.own_cpu_us, op.total_cpu_us)),
            units.pct(op.share_pct),
            *([differs] if ranks else ()),
        )
    return rows


def _cut(answer: OpsAnswer) -> Iterable[str]:
    if not answer.ops:
        yield "no operation has such a name" if answer.pattern is not None else "no operation was recorded"
    elif answer.found > len(answer.ops):
        yield f"{len(answer.ops)} of {units.count(answer.found)} shown; --top {answer.found} shows all"


def _footing(answer: OpsAnswer, screen: Screen) -> Iterable[Text]:
    if answer.has_gpu:
        outside = ""
        if answer.gpu_outside_us > 0:
            outside = f", {units.duration(answer.gpu_outside_us)} of it launched outside any operation"
        yield fact(
            "GPU", f"{units.duration(answer.gpu_us)} of work a step and rank, summed over streams{outside}", screen
        )
    yield fact("CPU", f"{units.duration(answer.cpu_us)} in operations a step and rank, summed over threads", screen)
    if answer.by_shape and not answer.shapes_recorded:
        yield fact("Shapes", "none were recorded; `esprof record --shapes` does", screen)
    yield from warned(answer.warnings)
