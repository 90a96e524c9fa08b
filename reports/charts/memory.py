"""Memory of each rank over time, and in the phases of a step."""

from typing import Any

from esprof.analyzers.views.memory_use import MemoryCurve, MemoryUse, RankMemory
from esprof.reports.charts.figure import MARGIN, Figure, across, laid_out
from esprof.reports.classes import CLASSES
from esprof.reports.units import size

_PHASES = ("forward", "backward", "optimizer")


def draw(use: MemoryUse) -> Figure:
    """A line for each rank: its memory in use over time. Dotted: the memory reserved by the CUDA allocator."""
    data = []
    for curve, colour in zip(use.curves, _colours(), strict=False):
        data.append(_held(curve, f"rank {curve.rank}", curve.used, {"color": colour, "width": 1.5}))
        if curve.reserved:
            name = f"rank {curve.rank}, reserved"
            data.append(_held(curve, name, curve.reserved, {"color": colour, "width": 1, "dash": "dot"}))
    most = max(max(trace["y"]) for trace in data)
    limits = {_gib(rank.limit) for rank in use.ranks if rank.limit is not None and _gib(rank.limit) < 2 * most}
    layout = laid_out(
        height=300,
        margin=MARGIN | {"t": 12, "b": 36},
        xaxis={"ticksuffix": " s", "showticksuffix": "last", "zeroline": False, "fixedrange": False},
        yaxis={
            "ticksuffix": " GiB",
            "range": [0, 1.05 * max([most, *limits])],
            "automargin": True,
            "fixedrange": True,
            "zeroline": False,
        },
        shapes=[across(limit) for limit in limits],
        dragmode="zoom",
        showlegend=True,
        legend={"orientation": "h", "y": 1.12},
    )
    return Figure("memory-chart", "Memory of each rank over time", (), data, layout)


def draw_phases(use: MemoryUse) -> Figure | None:
    """Bars for each phase of a step: the peak of each rank that has a curve. None if no phase was sampled."""
    colours = dict(zip((curve.rank for curve in use.curves), _colours(), strict=False))
    ranks = [rank for rank in use.ranks if rank.rank in colours and any(getattr(rank, phase) for phase in _PHASES)]
    if not ranks:
        return None
    layout = laid_out(
        height=240,
        margin=MARGIN | {"t": 12, "b": 28},
        barmode="group",
        xaxis={"fixedrange": True},
        yaxis={"ticksuffix": " GiB", "rangemode": "tozero", "automargin": True, "fixedrange": True, "zeroline": False},
    )
    data = [_peaks(rank, colours[rank.rank]) for rank in ranks]
    return Figure("memory-phases-chart", "Peak memory of each rank in the phases of a step", (), data, layout)


def _peaks(rank: RankMemory, colour: str) -> dict[str, Any]:
    peaks = [getattr(rank, phase) for phase in _PHASES]
    return {
        "type": "bar",
        "name": f"rank {rank.rank}",
        "x": list(_PHASES),
        "y": [_gib(held or 0) for held in peaks],
        "marker": {"color": colour},
        "customdata": [size(held) for held in peaks],
        "hovertemplate": f"rank {rank.rank}, %{{x}}: %{{customdata}}<extra></extra>",
    }


def _held(curve: MemoryCurve, name: str, held: tuple[int, ...], line: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(curve.at_s),
        "y": [_gib(amount) for amount in held],
        "line": line,
        "showlegend": "dash" not in line,
        "customdata": [size(amount) for amount in held],
        "hovertemplate": f"{name}: %{{customdata}} at %{{x:.1f}} s<extra></extra>",
    }


def _colours() -> list[str]:
    return [style.colour for style in dict.fromkeys(CLASSES.values())]


def _gib(amount: int) -> float:
    return round(amount / (1 << 30), 4)
