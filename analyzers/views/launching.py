"""What a job does already so that its CPU launches fewer kernels one by one: CUDA graphs and torch.compile."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence
from esprof.run.schema import Table

MIN_GRAPHED_SHARE = 0.1
"""Least share of the kernels that CUDA graphs launch for a step to count as graphed, at least in part."""

_GRAPH_LAUNCH = re.compile(r"^(cuda|cu|hip)GraphLaunch")
_COMPILED = re.compile(r"^Torch-Compiled Region|^CompiledFunction|^## Call CompiledFxGraph")
"""Operations of torch.compile."""

_REGION = re.compile(r"^Torch-Compiled Region: (\d+)/\d")
"""Calls of compiled code by frame and compilation."""

_FUSED = re.compile("^triton_")
"""Kernels of torch.compile."""


@dataclass(frozen=True)
class Launching:
    """How the kernels of some steps are launched."""

    by_graphs: float
    """Share of the kernels that CUDA graphs launch."""
    fused: float | None
    """Share of the kernels that torch.compile made; None without a GPU."""
    is_compiled: bool
    """Whether the steps run what torch.compile made."""
    regions: float = 0.0
    """Calls of compiled regions in a mean step."""
    breaks: float = 0.0
    """Those inside another region: what follows a graph break is a region of its own, which the one before calls."""

    @property
    def is_graphed(self) -> bool:
        return self.by_graphs >= MIN_GRAPHED_SHARE

    def evidence(self) -> dict[str, Evidence]:
        graphs = {"launched_by_graphs": Evidence(round(self.by_graphs, 3), "share")} if self.by_graphs else {}
        compiled = {}
        if self.is_compiled and self.fused is not None:
            compiled["made_by_compile"] = Evidence(round(self.fused, 3), "share")
        if self.regions:
            compiled["compiled_regions_per_step"] = Evidence(round(self.regions, 1))
            compiled["graph_breaks_per_step"] = Evidence(round(self.breaks, 1))
        return graphs | compiled


def launching(events: Table, steps: Sequence[int]) -> Launching:
    """How the kernels of these steps of a rank are launched."""
    is_steady = np.isin(events.ints("step"), steps)
    is_launch = is_steady & events.is_kind("runtime") & events.matches("name", _GRAPH_LAUNCH.search)
    is_operation = is_steady & events.is_kind("op") & events.matches("name", _COMPILED.search)
    is_kernel = is_steady & events.is_kind("kernel")
    graphed = np.isin(events.ints("correlation")[is_kernel], events.ints("correlation")[is_launch])
    fused = events.matches("name", _FUSED.search)[is_kernel]
    count = max(1, len(fused))
    regions = np.flatnonzero(is_steady & events.is_kind("op") & events.matches("name", _REGION.search))
    return Launching(
        float(graphed.sum() / count),
        float(fused.sum() / count) if len(fused) else None,
        bool(is_operation.any() or fused.any()),
        len(regions) / max(1, len(steps)),
        _nested(events, regions) / max(1, len(steps)),
    )


def frame_of(name: str) -> int | None:
    """Number of the frame that a compiled region runs; None for other operations."""
    found = _REGION.search(name)
    return int(found[1]) if found else None


def _nested(events: Table, rows: np.ndarray) -> int:
    """Number of these rows that lie within another of them on the same thread."""
    start, tid = events.ints("start_ns")[rows], events.ints("tid")[rows]
    end = start + events.ints("dur_ns")[rows]
    order = np.lexsort((-end, start, tid))
    count, latest, thread = 0, -1, -1
    for at in order.tolist():
        if tid[at] == thread and end[at] <= latest:
            count += 1
        else:
            thread, latest = int(tid[at]), int(end[at])
    return count
