"""Time of each Python function under its callers, from sampled stacks."""

from collections.abc import Sequence
from typing import Any

from esprof.analyzers.samples.flame import Flame, FlameNode, FlameTree
from esprof.reports.charts.figure import Figure, in_ms, label, laid_out
from esprof.reports.classes import ORIGINS
from esprof.reports.units import duration, pct

_MAX_HEIGHT_PX = 760
"""Maximum height; the levels of deeper trees are drawn lower."""
_ROOT_COLOUR = "#bfc6ce"


def draw(stacks: Flame) -> Figure:
    """Bars for each tree, callers above callees. One tree is visible at a time, at first that of all ranks.

    A click on a bar zooms in on it (`zoom_on_click`), which the page does.
    """
    data = [_bars(tree, is_visible=index == 0) for index, tree in enumerate(stacks.trees)]
    deepest = max(max(trace["y"]) for trace in data) + 1
    layout = laid_out(
        height=min(64 + 22 * deepest, _MAX_HEIGHT_PX),
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        uniformtext={"minsize": 10, "mode": "hide"},
        bargap=0.04,
        barmode="overlay",
        hovermode="closest",
        xaxis={"visible": False, "fixedrange": True, "range": [0, data[0]["x"][0]]},
        yaxis={"visible": False, "fixedrange": True, "range": [deepest - 0.5, -0.5]},
        meta={"zoom_on_click": True},
    )
    return Figure(
        "flame-chart", "Time of each Python function under its callers", tuple(ORIGINS.values()), data, layout
    )


def tree_name(tree: FlameTree) -> str:
    """The ranks whose stacks a tree holds."""
    return "all ranks" if tree.rank is None else f"rank {tree.rank}"


def _bars(tree: FlameTree, is_visible: bool) -> dict[str, Any]:
    """The root stands for the thread; the functions follow it."""
    begins_us, levels = _places(tree.nodes)
    styles = [ORIGINS[node.origin] for node in tree.nodes]
    spent = [tree.us, *(node.us for node in tree.nodes)]
    cpu = [] if tree.cpu_us is None else ["on a CPU for %{customdata[3]} % of it"]
    of_nodes = [_location_and_cpu(node) for node in tree.nodes]
    return {
        "type": "bar",
        "orientation": "h",
        "name": tree_name(tree),
        "visible": is_visible,
        "base": [0.0, *map(in_ms, begins_us)],
        "x": [in_ms(us) for us in spent],
        "y": [0, *(level + 1 for level in levels)],
        "text": [f"training thread · {duration(tree.us)}", *(label(node.function, 60) for node in tree.nodes)],
        "textposition": "inside",
        "insidetextanchor": "start",
        "textangle": 0,
        "insidetextfont": {"color": ORIGINS["job"].ink},
        # Plotly's %{x} is where a bar ends, not how long it is.
        "customdata": [
            [where, duration(us), pct(100 * us / tree.us if tree.us else 0.0), on_cpu]
            for us, (where, on_cpu) in zip(spent, [("", _cpu_pct(tree.us, tree.cpu_us)), *of_nodes], strict=True)
        ],
        "marker": {"color": [_ROOT_COLOUR, *(style.colour for style in styles)], "line": {"width": 0}},
        "hovertemplate": "<br>".join(("%{text}", "%{customdata[0]}", "%{customdata[1]}, %{customdata[2]} of all", *cpu))
        + "<extra></extra>",
    }


def _places(nodes: Sequence[FlameNode]) -> tuple[list[float], list[int]]:
    """Where each function begins, in microseconds, and its level: callees follow one another below their caller."""
    begins: list[float] = []
    levels: list[int] = []
    free = [0.0] * (len(nodes) + 1)  # Where the next callee of each function begins; the last entry is of the thread.
    for index, node in enumerate(nodes):
        begins.append(free[node.parent])
        levels.append(levels[node.parent] + 1 if node.parent >= 0 else 0)
        free[index] = begins[index]
        free[node.parent] += node.us
    return begins, levels


def _location_and_cpu(node: FlameNode) -> tuple[str, float | None]:
    """Source location of a function, and the percentage of its time that it ran on a CPU."""
    cpu = _cpu_pct(node.us, node.cpu_us)
    if not node.file:
        return "", cpu
    lines = ", ".join(f"{line.line} ({pct(line.pct)})" for line in node.lines)
    return f"{label(node.file, 100)}, at {lines}" if lines else label(node.file, 100), cpu


def _cpu_pct(us: float, cpu_us: float | None) -> float | None:
    return None if cpu_us is None or us <= 0 else round(min(100.0, 100 * cpu_us / us), 1)
