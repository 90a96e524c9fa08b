"""The charts of the page as plotly figures: plain JSON, one dict a chart.

Text colours, grids and rules are set by the page's style sheet, so that one figure serves a light page, a dark one and
paper. Plotly reads `<b>`, `<a href>` and kin in any text that it draws: every name passes `_label` first.
"""

from collections import defaultdict
from collections.abc import Iterable
from html import escape
from textwrap import wrap
from typing import Any

import msgspec

from esprof.analyzers.finding import PARTS, Diagnosis
from esprof.analyzers.samples.flame import Flame, FlameNode, FlameTree
from esprof.analyzers.steps.step_times import Series, StepTimes
from esprof.analyzers.summary.report import Bar, Excerpt, Report
from esprof.analyzers.views.memory_use import MemoryCurve, MemoryUse
from esprof.core.text import printable
from esprof.replay.answer import ReplayAnswer, WhatIf
from esprof.reports.classes import CLASSES, ORIGINS, TimeClass, time_class
from esprof.reports.units import duration, pct, size, times
from esprof.run.run import Window

_LONGEST_TITLE = 4_000
"""Characters of a finding's title: as many as the page shows elsewhere."""
_FONT = "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


class Figure(msgspec.Struct, frozen=True):
    """One chart: `id` of the element it is drawn in, what it shows in words, its classes of time, its plotly JSON."""

    id: str
    alt: str
    legend: tuple[TimeClass, ...]
    data: list[dict[str, Any]]
    layout: dict[str, Any]


def breakdown(diagnosis: Diagnosis) -> Figure:
    """A stacked bar a rank: where its mean step goes."""
    ranks = diagnosis.breakdown
    names = [f"rank {rank.rank}" for rank in ranks]
    data = [_stack(time_class(part), names, [getattr(rank, part) for rank in ranks]) for part in PARTS]
    longest = max((rank.step_us for rank in ranks), default=0.0)
    layout = laid_out(height=_height(len(ranks), 36), xaxis=_milliseconds(_ms(longest)), yaxis=_rows(names))
    legend = tuple(time_class(part) for part in PARTS)
    return Figure("breakdown-chart", "Where the mean step of each rank goes", legend, data, layout | _STACKED)


def what_if(answer: ReplayAnswer) -> Figure:
    """A bar for each answered scenario, with its interval, against the step as it was measured."""
    answered = [scenario for scenario in answer.what_if if scenario.predicted_us is not None]
    now = _ms(answer.step_us)
    reach = max([now, *(_ms(_end(scenario)) for scenario in answered)])
    figures = [f"{duration(scenario.predicted_us)} · {times(scenario.speedup)}" for scenario in answered]
    layout = laid_out(
        height=_height(len(answered), 38) + 20,
        margin=MARGIN | {"b": 30},
        xaxis=_milliseconds(reach * 1.03),
        yaxis=_rows([label(scenario.spec, 36) for scenario in answered]),
        yaxis2=_beside(figures),
        shapes=[{"type": "line", "x0": now, "x1": now, "yref": "paper", "y0": 0, "y1": 1, "line": {"dash": "dot"}}],
        annotations=[_below(now, f"measured {duration(answer.step_us)}")],
    )
    alt = f"Predicted step time of each what-if, against {duration(answer.step_us)} measured"
    return Figure("what-if-chart", alt, (), [_predicted(answered), _ON_SECOND_AXIS], layout)


def critical_path(answer: ReplayAnswer) -> Figure:
    """A bar for each class of time on the critical path, longest first."""
    path = answer.critical_path
    classes = sorted(((us, name) for name, us in path.classes.items() if us > 0), reverse=True)
    looks = [time_class(name) for _, name in classes]
    longest = max((us for us, _ in classes), default=0.0)
    data = {
        "type": "bar",
        "orientation": "h",
        "x": [_ms(us) for us, _ in classes],
        "y": list(range(len(classes))),
        "marker": {"color": [look.colour for look in looks]},
        "hoverinfo": "none",
    }
    layout = laid_out(
        height=_height(len(classes), 30),
        xaxis=_milliseconds(_ms(longest) * 1.03),
        yaxis=_rows([look.label for look in looks]),
        yaxis2=_beside([f"{duration(us)} · {pct(100 * us / path.span_us)}" for us, _ in classes]),
    )
    return Figure("critical-path-chart", "Time on the critical path by class", (), [data, _ON_SECOND_AXIS], layout)


def timeline(excerpt: Excerpt) -> Figure:
    """Lanes from top to bottom by rank, time from left to right, coloured by class."""
    lanes = sorted(dict.fromkeys((bar.rank, bar.lane) for bar in excerpt.bars), key=lambda lane: lane[0])
    place = {lane: number for number, lane in enumerate(lanes)}
    by_class: dict[TimeClass, list[Bar]] = defaultdict(list)
    for bar in excerpt.bars:
        by_class[time_class(bar.cls)].append(bar)
    layout = laid_out(
        height=_height(len(lanes), 24) + 24,
        margin=MARGIN | {"t": 58},
        xaxis=_milliseconds(_ms(excerpt.span_us)) | {"fixedrange": False},
        yaxis=_rows([f"rank {rank} · {label(lane, 24)}" for rank, lane in lanes]),
        shapes=_between_ranks(lanes),
        dragmode="zoom",
        barmode="overlay",
    )
    data = [_stretches(look, bars, place) for look, bars in by_class.items()]
    return Figure("timeline-chart", "Timeline of every rank", tuple(by_class), data, layout)


def memory(use: MemoryUse) -> Figure:
    """A line for each rank shown: what it held over time; dotted, what CUDA's allocator had reserved for it."""
    colours = [look.colour for look in dict.fromkeys(CLASSES.values())]
    data = []
    for curve, colour in zip(use.curves, colours, strict=False):
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
        shapes=[_across(limit) for limit in limits],
        dragmode="zoom",
        showlegend=True,
        legend={"orientation": "h", "y": 1.12},
    )
    return Figure("memory-chart", "Memory of each rank over time", (), data, layout)


def step_times(times: StepTimes) -> Figure:
    """A point for each step drawn, by step: what it took, what it was, and which finding names it."""
    top = _ms(times.top_us)
    looks = {role: _STEP_ROLES[role] for role in times.series}
    data = [
        _points(look.label, times.series[role], top, {"color": look.colour, "size": 4, "line": {"width": 0}})
        for role, look in looks.items()
    ]
    marked = []
    for mark, colour in zip(times.marks, _MARKS, strict=False):
        named = printable(f"{mark.id}: {mark.title}", _LONGEST_TITLE)
        marked.append(TimeClass(named, colour, colour, "steps that this finding names"))
        ring = {"color": colour, "size": 9, "line": {"width": 1.5, "color": colour}}
        data.append(_points("<br>".join(map(escape, wrap(named, 80))), mark.steps, top, ring, "-open"))
    mean, median = _ms(times.mean_us), _ms(times.median_us)
    layout = laid_out(
        height=320,
        margin=MARGIN | {"b": 40, "r": 118},
        xaxis={
            "title": {"text": "step", "standoff": 6},
            "zeroline": False,
            "fixedrange": False,
            "separatethousands": True,
        },
        yaxis={
            "ticksuffix": " ms",
            "range": [0, top],
            "automargin": True,
            "fixedrange": True,
            "zeroline": False,
            "separatethousands": True,
        },
        shapes=[
            *(_band(window) for window in times.windows),
            *(_upright(step - 0.5) for step in times.passes),
            _across(mean) | {"line": {"width": 1.2}},
            _across(median) | {"line": {"width": 1.2, "dash": "dash"}},
        ],
        annotations=[
            _at_the_end(mean, f"mean {duration(times.mean_us)}", is_upper=mean >= median),
            _at_the_end(median, f"median {duration(times.median_us)}", is_upper=mean < median),
        ],
        dragmode="zoom",
        hovermode="closest",
    )
    legend = (*looks.values(), *marked)
    return Figure("steps-chart", "What each step of the run took", legend, data, layout)


def _points(name: str, steps: Series, top: float, marker: dict[str, Any], suffix: str = "") -> dict[str, Any]:
    """What takes longer than the axis reaches lies on its upper edge, as a triangle."""
    took = [_ms(us) for us in steps.us]
    is_above = [ms > top for ms in took]
    if any(is_above):
        symbols = ["triangle-up" if above else "circle" for above in is_above]
        sizes = [max(8, marker["size"]) if above else marker["size"] for above in is_above]
        marker = marker | {"symbol": [symbol + suffix for symbol in symbols], "size": sizes}
    else:
        marker = marker | {"symbol": f"circle{suffix}"}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(steps.step),
        "y": [min(ms, top) for ms in took],
        "marker": marker,
        "cliponaxis": False,
        "customdata": [[duration(us), f"{at:,.1f} s"] for us, at in zip(steps.us, steps.at_s, strict=True)],
        "meta": [name],
        "hovertemplate": "step %{x}: %{customdata[0]}, %{customdata[1]} after the start<br>%{meta[0]}<extra></extra>",
    }


def _band(window: Window) -> dict[str, Any]:
    return {
        "type": "rect",
        "x0": window.first - 0.5,
        "x1": window.last + 0.5,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "fillcolor": _STEP_ROLES["stack" if window.stacks else "timed"].colour,
        "opacity": 0.16,
        "line": {"width": 0},
        "layer": "below",
    }


def _upright(x: float) -> dict[str, Any]:
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": {"width": 1, "dash": "dot"}}


def _at_the_end(y: float, text: str, is_upper: bool) -> dict[str, Any]:
    """`text` to the right of the line at `y`, on the side away from the other line."""
    anchor = "bottom" if is_upper else "top"
    return {"x": 1, "xref": "paper", "xanchor": "left", "y": y, "yanchor": anchor, "text": text, "showarrow": False}


def flame(stacks: Flame) -> Figure:
    """An icicle a tree, callers above what they call; one is seen at a time, the first to begin with."""
    data = [_icicle(tree, is_seen=place == 0) for place, tree in enumerate(stacks.trees)]
    deepest = max(map(_depth, stacks.trees))
    layout = laid_out(
        height=min(64 + 22 * deepest, _HIGHEST_FLAME),
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        uniformtext={"minsize": 10, "mode": "hide"},
    )
    return Figure(
        "flame-chart", "Time of each Python function under its callers", tuple(ORIGINS.values()), data, layout
    )


def tree_name(tree: FlameTree) -> str:
    """Whose stacks a tree holds."""
    return "all ranks" if tree.rank is None else f"rank {tree.rank}"


def _icicle(tree: FlameTree, is_seen: bool) -> dict[str, Any]:
    looks = [ORIGINS[node.origin] for node in tree.nodes]
    share = "%{value:,.1f} ms, %{percentRoot:.1%} of all"
    cpu = [] if tree.cpu_us is None else ["on a CPU for %{customdata[1]} % of it"]
    return {
        "type": "icicle",
        "name": tree_name(tree),
        "visible": is_seen,
        # The root stands for the thread; the functions follow it.
        "ids": [str(place) for place in range(len(tree.nodes) + 1)],
        "parents": ["", *(str(node.parent + 1) for node in tree.nodes)],
        "labels": [f"training thread · {duration(tree.us)}", *(label(node.function, 60) for node in tree.nodes)],
        "values": [_ms(tree.us), *(_ms(node.us) for node in tree.nodes)],
        "customdata": [["", _cpu_pct(tree.us, tree.cpu_us)], *(_told(node) for node in tree.nodes)],
        "branchvalues": "total",
        "sort": False,
        "tiling": {"orientation": "v", "pad": 1},
        "pathbar": {"visible": False},
        "leaf": {"opacity": 1},
        "marker": {"colors": ["#bfc6ce", *(look.colour for look in looks)], "line": {"width": 0}},
        "textfont": {"color": ORIGINS["job"].ink},
        "hovertemplate": "<br>".join(("%{label}", "%{customdata[0]}", share, *cpu)) + "<extra></extra>",
    }


def _told(node: FlameNode) -> list[Any]:
    """Where a function is, and how much of its time it ran on a CPU."""
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
    """Levels of a tree, its root among them."""
    depth: list[int] = []
    for node in tree.nodes:
        depth.append(2 if node.parent < 0 else depth[node.parent] + 1)
    return max(depth, default=1)


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


def _across(y: float) -> dict[str, Any]:
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": {"dash": "dash", "width": 1}}


def _gib(amount: int) -> float:
    return round(amount / (1 << 30), 4)


def _stack(look: TimeClass, names: list[str], parts_us: list[float]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": look.label,
        "x": [_ms(us) for us in parts_us],
        "y": list(range(len(names))),
        "marker": {"color": look.colour},
        "text": [duration(us) for us in parts_us],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": look.ink},
        "customdata": names,
        "hovertemplate": f"%{{customdata}} · {look.label}: %{{text}}<extra></extra>",
    }


def _predicted(answered: list[WhatIf]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "x": [_ms(scenario.predicted_us) for scenario in answered],
        "y": list(range(len(answered))),
        "marker": {"color": "#74879c"},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_ms(_end(scenario)) - _ms(scenario.predicted_us) for scenario in answered],
            "arrayminus": [_ms(scenario.predicted_us) - _ms(_start(scenario)) for scenario in answered],
            "thickness": 1.5,
            "width": 4,
        },
        "hoverinfo": "none",
    }


def _stretches(look: TimeClass, bars: list[Bar], place: dict[tuple[int, str], int]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": look.label,
        "base": [_ms(bar.start_us) for bar in bars],
        "x": [_ms(bar.dur_us) for bar in bars],
        "y": [place[bar.rank, bar.lane] for bar in bars],
        "width": 0.78,
        "customdata": [label(bar.name, 80) for bar in bars],
        "marker": {"color": look.colour, "line": {"width": 0}},
        "hovertemplate": f"%{{customdata}}<br>{look.label}: %{{x:.3f}} ms from %{{base:.3f}} ms<extra></extra>",
    }


def _between_ranks(lanes: list[tuple[int, str]]) -> list[dict[str, Any]]:
    borders = [place + 0.5 for place in range(len(lanes) - 1) if lanes[place][0] != lanes[place + 1][0]]
    return [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": {"width": 1}, "layer": "below"}
        for y in borders
    ]


_STEP_ROLES = {
    "plain": TimeClass("without the profiler", "#2b7bba", "#ffffff", "steps that ran without the profiler"),
    "timed": TimeClass("in a window", "#1b9e77", "#14181f", "steps that the profiler recorded"),
    "stack": TimeClass("in a window with stacks", "#8a5a2f", "#ffffff", "steps recorded with Python stacks"),
    "beside": TimeClass(
        "first step, warm-up, export",
        "#8d99a6",
        "#14181f",
        "the job's first step, the profiler's warm-up and its writing",
    ),
}
_MARKS = ("#d55e2b", "#c06a9f", "#f2c230", "#5b3f9b", "#63bdea", "#1d3557")
"""Colours of the findings that name steps, in turn."""
_HIGHEST_FLAME = 760
"""Pixels; deeper trees have lower levels."""
_STACKED = {"barmode": "stack", "uniformtext": {"minsize": 10, "mode": "hide"}}
MARGIN = {"l": 8, "r": 20, "t": 34, "b": 8}
_ON_SECOND_AXIS = {"type": "scatter", "x": [], "y": [], "yaxis": "y2", "hoverinfo": "none"}
"""Plotly draws an axis only where a trace uses it."""


def laid_out(height: int, **more: Any) -> dict[str, Any]:
    layout = {
        "height": height,
        "margin": MARGIN,
        "font": {"family": _FONT, "size": 12, "color": "#7a8591"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "dragmode": False,
        "bargap": 0.3,
        "hoverlabel": {"align": "left", "font": {"family": _FONT, "size": 12}},
    }
    return layout | more


def _milliseconds(end: float) -> dict[str, Any]:
    """Time above the bars, where a chart that is taller than the screen still shows it."""
    return {
        "side": "top",
        "range": [0, end or 1],
        "ticksuffix": " ms",
        "showticksuffix": "last",
        "separatethousands": True,
        "tickangle": 0,
        "zeroline": False,
        "fixedrange": True,
    }


def _rows(labels: list[str]) -> dict[str, Any]:
    """An axis of numbered rows from the top: two rows of one name stay two."""
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": labels,
        "range": [len(labels) - 0.5, -0.5],
        "ticks": "outside",
        "ticklen": 6,
        "tickcolor": "rgba(0,0,0,0)",
        "fixedrange": True,
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
    }


def _beside(texts: list[str]) -> dict[str, Any]:
    """The figures in words, in a column of their own to the right: no bar, interval or rule can cover them."""
    return _rows(texts) | {"overlaying": "y", "side": "right"}


def _below(x: float, text: str) -> dict[str, Any]:
    return {"x": x, "y": 0, "yref": "paper", "yanchor": "top", "text": text, "showarrow": False}


def _height(rows: int, row_px: int) -> int:
    """Of a chart in pixels: rows get thinner when there are many."""
    return 64 + sum(row_px if row < 24 else 14 for row in range(max(rows, 1)))


def _ms(us: float | None) -> float:
    return round((us or 0.0) / 1_000, 4)


def _start(scenario: WhatIf) -> float | None:
    return scenario.predicted_us if scenario.low_us is None else scenario.low_us


def _end(scenario: WhatIf) -> float | None:
    return scenario.predicted_us if scenario.high_us is None else scenario.high_us


def label(name: str, limit: int) -> str:
    return escape(printable(name, limit))


def all_figures(report: Report) -> Iterable[Figure]:
    """Every chart that has something to show, in the order of the page."""
    yield breakdown(report.diagnosis)
    if report.steps is not None:
        yield step_times(report.steps)
    if any(scenario.answered for scenario in report.replay.what_if):
        yield what_if(report.replay)
    if report.replay.critical_path.span_us > 0:
        yield critical_path(report.replay)
    if report.timeline.bars:
        yield timeline(report.timeline)
    if report.flame is not None:
        yield flame(report.flame)
    if report.memory is not None:
        yield memory(report.memory)
