"""Time of each Python function under its callers, from sampled stacks."""

from typing import Any

from esprof.analyzers.samples.flame import Flame, FlameNode, FlameTree
from esprof.reports.charts.figure import Figure, in_ms, label, laid_out
from esprof.reports.classes import ORIGINS
from esprof.reports.units import duration, pct

_MAX_HEIGHT_PX = 760
"""Maximum height; the levels of deeper trees are drawn lower."""


def draw(stacks: Flame) -> Figure:
    """An icicle chart for each tree, callers above callees. One is visible at a time, at first that of all ranks."""
    data = [_icicle(tree, is_visible=index == 0) for index, tree in enumerate(stacks.trees)]
    deepest = max(map(_depth, stacks.trees))
    layout = laid_out(
        height=min(64 + 22 * deepest, _MAX_HEIGHT_PX),
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        uniformtext={"minsize": 10, "mode": "hide"},
    )
    return Figure(
        "flame-chart", "Time of each Python function under its callers", tuple(ORIGINS.values()), data, layout
    )


def tree_name(tree: FlameTree) -> str:
    """The ranks whose stacks a tree holds."""
    return "all ranks" if tree.rank is None else f"rank {tree.rank}"


def _icicle(tree: FlameTree, is_visible: bool) -> dict[str, Any]:
    styles = [ORIGINS[node.origin] for node in tree.nodes]
    share = "%{value:,.1f} ms, %{percentRoot:.1%} of all"
    cpu = [] if tree.cpu_us is None else ["on a CPU for %{customdata[1]} % of it"]
    return {
        "type": "icicle",
        "name": tree_name(tree),
        "visible": is_visible,
        # The root stands for the thread; the functions follow it.
        "ids": [str(index) for index in range(len(tree.nodes) + 1)],
        "parents": ["", *(str(node.parent + 1) for node in tree.nodes)],
        "labels": [f"training thread · {duration(tree.us)}", *(label(node.function, 60) for node in tree.nodes)],
        "values": [in_ms(tree.us), *(in_ms(node.us) for node in tree.nodes)],
        "customdata": [["", _cpu_pct(tree.us, tree.cpu_us)], *(_location_and_cpu(node) for node in tree.nodes)],
        "branchvalues": "total",
        "sort": False,
        "tiling": {"orientation": "v", "pad": 1},
        "pathbar": {"visible": False},
        "leaf": {"opacity": 1},
        "marker": {"colors": ["#bfc6ce", *(style.colour for style in styles)], "line": {"width": 0}},
        "textfont": {"color": ORIGINS["job"].ink},
        "hovertemplate": "<br>".join(("%{label}", "%{customdata[0]}", share, *cpu)) + "<extra></extra>",
    }


def _location_and_cpu(node: FlameNode) -> list[Any]:
    """Source location of a function, and the percentage of its time that it ran on a CPU."""
    if not node.file:
        return ["", _cpu_pct(node.us, node.cpu_us)]
    lines = ", ".join(f"{line.line} ({pct(line.pct)})" for line in node.lines)
    return [
        f"{label(node.file, 100)}, at {lines}" if lines else label(node.file, 100),
        _cpu_pct(node.us, node.cpu_us),
    ]


def _cpu_pct(us: float, cpu_us: float | None) -> float | None:
    return None if cpu_us is None or us <= 0 else round(min(100.0, 100 * cpu_us / us), 1)


def _depth(tree: FlameTree) -> int:
    """Number of levels of a tree, including its root."""
    depth: list[int] = []
    for node in tree.nodes:
        depth.append(2 if node.parent < 0 else depth[node.parent] + 1)
    return max(depth, default=1)
