"""Texts of operations, shared by the terminal and the HTML report."""

from esprof.analyzers.ops.answer import Op, OpsAnswer
from esprof.analyzers.ops.sort import Sort
from esprof.analyzers.views.kernel_names import short_kernel
from esprof.core.readable import decimal
from esprof.core.text import printable

SORTED_BY: dict[Sort, str] = {
    "own-gpu": "own time on the GPU",
    "total-gpu": "total time on the GPU",
    "own-cpu": "own time on the CPU",
    "total-cpu": "total time on the CPU",
    "calls": "calls",
}


def label(op: Op) -> str:
    """The name of a row, as in a trace."""
    return f"nn.Module: {op.name}" if op.kind == "module" else op.name


def detail(op: Op, limit: int) -> list[str]:
    """Shapes, kernels and source location of an operation, in lines of at most `limit` characters."""
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
    """Minimum and maximum over the ranks of the sort column, and the outlier rank."""
    field = "calls" if answer.sort == "calls" else f"{answer.sort.replace('-', '_')}_us"
    values = [getattr(rank, field) / (1 if field == "calls" else 1_000) for rank in op.by_rank]
    named = f", rank {op.differs}" if op.differs is not None else ""
    return f"{decimal(min(values))} … {decimal(max(values))}{named}"
