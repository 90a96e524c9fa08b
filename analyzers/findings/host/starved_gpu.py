"""ESP401: a CPU that cannot keep its GPU busy."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.replay.dfg import Cls, Dfg, LaneKind

MIN_SHARE_IN_TINY_KERNELS = 0.5
"""Least share of kernels shorter than the median launch for which launches are the bottleneck."""

MIN_IDLE_SHARE_LIMITING = 0.2
"""Least share of the step for which a GPU waits for launches at which the CPU is said to limit the step."""

MIN_GRAPHED_SHARE = 0.1
"""Least share of the kernels that CUDA graphs launch for the step to count as graphed, at least in part."""

_GRAPH_LAUNCH = re.compile(r"^(cuda|cu|hip)GraphLaunch")
_COMPILED = re.compile(r"^Torch-Compiled Region|^CompiledFunction|^## Call CompiledFxGraph")
"""Operations of torch.compile."""

_FUSED = re.compile("^triton_")
"""Kernels of torch.compile."""

_SCENARIO = "host=2x"


def host_bound(case: Case) -> Iterator[Cause]:
    """GPUs that are idle because their CPU has not launched the next kernel."""
    dfg = case.replayed.built.dfg
    saving = case.pricer.saving_ns(_SCENARIO) if dfg.has_gpu() else None
    if saving is None or not case.is_worth_reporting(saving):
        return
    idle = {one.rank: one.host / one.step_us for one in case.breakdown if one.step_us}
    most = max(idle.values(), default=0)
    kernels, optimized = _kernels(dfg, case.replayed.steps.steady), _optimized(case)
    launches = dfg.of(Cls.LAUNCH) & np.isin(dfg.step, case.replayed.steps.steady)
    rank_steps = len(case.replayed.steps.steady) * len(dfg.marks.ranks)
    yield Cause(
        id="ESP401",
        title=_title(most),
        ranks=dfg.marks.ranks,
        scenario=_SCENARIO,
        is_bound=True,
        confidence="medium",
        evidence={
            "host_share": by_rank({rank: round(share, 4) for rank, share in idle.items()}, "share"),
            "launches_per_step_and_rank": Evidence(round(float(launches.sum()) / rank_steps, 1)),
            **kernels.evidence(),
            **optimized.evidence(),
            "priced_as": Evidence("a CPU twice as fast; gaps above 1 ms stay"),
        },
        advice=_advice(kernels, optimized),
    )


@dataclass(frozen=True)
class _Kernels:
    """Median durations of kernels and of launches, ns."""

    median_ns: float
    launch_ns: float
    short: float
    """Share of the kernels that take less than the median launch."""

    @property
    def are_tiny(self) -> bool:
        return self.short >= MIN_SHARE_IN_TINY_KERNELS

    def evidence(self) -> dict[str, Evidence]:
        return {
            "median_kernel": Evidence(round(self.median_ns), "ns"),
            "median_launch": Evidence(round(self.launch_ns), "ns"),
            "kernels_shorter_than_a_launch": Evidence(round(self.short, 3), "share"),
        }


def _kernels(dfg: Dfg, steps: tuple[int, ...]) -> _Kernels:
    steady = np.isin(dfg.step, steps)
    took = dfg.dur_ns[steady & dfg.on(LaneKind.STREAM) & dfg.of(Cls.COMPUTE)]
    launches = dfg.dur_ns[steady & dfg.of(Cls.LAUNCH)]
    launch = float(np.median(launches)) if len(launches) else 0.0
    return (
        _Kernels(float(np.median(took)), launch, float((took < launch).mean())) if len(took) else _Kernels(0, launch, 0)
    )


@dataclass(frozen=True)
class _Optimized:
    """What the job does already to spare its CPU."""

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


def _optimized(case: Case) -> _Optimized:
    """From the events of the first rank: all ranks run one program."""
    events = case.run.events(case.replayed.built.dfg.marks.ranks[0])
    codes, texts = events.codes("name")
    is_steady = np.isin(events.ints("step"), case.replayed.steps.steady)
    is_launch = is_steady & events.is_kind("runtime") & _mask(_GRAPH_LAUNCH, texts)[codes]
    is_operation = is_steady & events.is_kind("op") & _mask(_COMPILED, texts)[codes]
    is_kernel = is_steady & events.is_kind("kernel")
    graphed = np.isin(events.ints("correlation")[is_kernel], events.ints("correlation")[is_launch])
    fused = _mask(_FUSED, texts)[codes[is_kernel]]
    count = max(1, len(fused))
    return _Optimized(float(graphed.sum() / count), float(fused.sum() / count), bool(is_operation.any() or fused.any()))


def _mask(pattern: re.Pattern[str], texts: list[str]) -> np.ndarray:
    """Mask of the texts that the pattern finds; the last entry is for code -1, no text."""
    return np.array([pattern.search(text) is not None for text in texts] + [False])


def _title(idle: float) -> str:
    """`idle` is the largest share of the step for which a GPU waits for launches."""
    if idle >= MIN_IDLE_SHARE_LIMITING:
        return f"The CPU limits the step: a GPU waits for kernel launches for up to {100 * idle:.0f} % of it"
    return f"A GPU waits for kernel launches for up to {100 * idle:.0f} % of the step"


def _advice(kernels: _Kernels, optimized: _Optimized) -> str:
    what = (
        "Most kernels take less time than their launch, so the CPU cannot get ahead of the GPU. "
        if kernels.are_tiny
        else "Launches are not the bottleneck: most kernels take longer than their launch. The CPU is busy between "
        "launches: look for Python code, hooks and logging. "
    )
    return f"{what}{_remedy(kernels, optimized)} The saving is a bound: it assumes a CPU twice as fast."


def _remedy(kernels: _Kernels, optimized: _Optimized) -> str:
    """What is left to do: nothing that the job does already."""
    if optimized.is_graphed:
        return (
            f"CUDA graphs launch {100 * optimized.by_graphs:.0f} % of the kernels already. What is left is the CPU's work "
            "between graphs and the kernels outside of them: capture more of the step in fewer graphs, and prepare the "
            "next step's inputs while the GPU works."
        )
    if optimized.is_compiled:
        return (
            f"torch.compile is used already and made {100 * optimized.fused:.0f} % of the kernels: look for graph breaks "
            'and for what it leaves out (the optimizer), launch its kernels together (`mode="reduce-overhead"`, which uses '
            "CUDA graphs), or give each kernel more work (larger batches)."
        )
    if kernels.are_tiny:
        return (
            "Fuse kernels (torch.compile, foreach or fused optimizers), launch them together (CUDA graphs), or give each "
            "more work (larger batches)."
        )
    return "torch.compile and CUDA graphs remove that time, too."


_PAGES = (
    Page(
        "ESP401",
        "The CPU limits the step",
        "The GPU finishes its work and waits for the CPU to launch more. If it waits for less than a fifth of the step, the "
        "title says only that.",
        "`host share` is the share of the step in which the CPU works while its GPU idles. "
        "`kernels shorter than a launch` shows whether launches themselves are the bottleneck: if half of all "
        "kernels or more are that short, no CPU that launches them one by one gets ahead. `launched by graphs` is the "
        "share of kernels that CUDA graphs launch, and `made by compile` the share that torch.compile made.",
        "`host=2x`: replay makes CPU work, launches and gaps of up to 1 ms twice as fast; longer gaps are sleeps or "
        "I/O, and first calls of kernels (ESP407) do not recur. What other findings save of it is counted for them.",
        "Use torch.compile, CUDA graphs, fused optimizers or larger batches; avoid synchronisation within the step.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=host_bound)
