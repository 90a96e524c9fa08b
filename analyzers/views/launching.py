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

_FUSED = re.compile("^triton_")
"""Kernels of torch.compile."""


@dataclass(frozen=True)
class Launching:
    """How the kernels of some steps are launched."""

    by_graphs: float
    """Share of the kernels that CUDA graphs launch."""
    fused: float
    """Share of the kernels that torch.compile made."""
    is_compiled: bool
    """Whether the steps run what torch.compile made."""

    @property
    def is_graphed(self) -> bool:
        return self.by_graphs >= MIN_GRAPHED_SHARE

    def evidence(self) -> dict[str, Evidence]:
        graphs = {"launched_by_graphs": Evidence(round(self.by_graphs, 3), "share")} if self.by_graphs else {}
        return graphs | ({"made_by_compile": Evidence(round(self.fused, 3), "share")} if self.is_compiled else {})


def launching(events: Table, steps: Sequence[int]) -> Launching:
    """How the kernels of these steps of a rank are launched."""
    codes, texts = events.codes("name")
    is_steady = np.isin(events.ints("step"), steps)
    is_launch = is_steady & events.is_kind("runtime") & _mask(_GRAPH_LAUNCH, texts)[codes]
    is_operation = is_steady & events.is_kind("op") & _mask(_COMPILED, texts)[codes]
    is_kernel = is_steady & events.is_kind("kernel")
    graphed = np.isin(events.ints("correlation")[is_kernel], events.ints("correlation")[is_launch])
    fused = _mask(_FUSED, texts)[codes[is_kernel]]
    count = max(1, len(fused))
    return Launching(float(graphed.sum() / count), float(fused.sum() / count), bool(is_operation.any() or fused.any()))


def _mask(pattern: re.Pattern[str], texts: list[str]) -> np.ndarray:
    """Mask of the texts that the pattern finds; the last entry is for code -1, no text."""
    return np.array([pattern.search(text) is not None for text in texts] + [False])
