"""Sampled Python stacks of the training threads as trees of functions, bounded in size for a page."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.types import NS_PER_US, Ns, Rank, us
from esprof.replay.cpu.frames import Frame, Origin, frame

SampledPhase = Literal["stack", "plain", "timed"]

PHASES: tuple[SampledPhase, ...] = ("stack", "plain", "timed")
"""Phases whose samples are used, best first: `stack` steps are sampled twenty times as densely, and the profiler slows
`timed` steps."""

MIN_SHARE_OF_TREE = 0.005
"""Share of a tree's time below which functions are joined into one node."""

MAX_NODES = 200
"""Most functions with a node of their own in the tree of all ranks."""

MAX_NODES_OF_A_RANK = 60
"""Most functions with a node of their own in the tree of one rank."""

MAX_RANKS_APART = 5
"""Most ranks with a tree of their own, in addition to the tree of all ranks."""

MAX_LINES_NAMED = 3
"""Most lines listed for one function."""

_PLUMBING = {
    "Module._wrapped_call_impl": "torch/nn/modules/module.py",
    "Module._call_impl": "torch/nn/modules/module.py",
    "ModuleEvents._replaced.<locals>.__call__": "esprof/recorder/injected/windows/module_events.py",
}
"""Functions through which each module's `forward` is called, and the ends of their files: those of PyTorch, and one of the
recorder."""


class LineShare(msgspec.Struct, frozen=True):
    """A line of a function, and its share of the function's time in per cent."""

    line: int
    pct: float


class FlameNode(msgspec.Struct, frozen=True, kw_only=True):
    """A function under one chain of callers, or (without file) several joined functions. Times include callees."""

    function: str
    file: str
    origin: Origin
    parent: int
    """Index of the caller in the tree; -1 for the outermost functions."""
    us: float
    cpu_us: float | None
    """Time that the thread ran on a CPU; None if unknown."""
    lines: tuple[LineShare, ...]
    """Longest time first, at most `MAX_LINES_NAMED`."""


class FlameTree(msgspec.Struct, frozen=True, kw_only=True):
    """The stacks of one rank, or of all ranks if `rank` is None. Callers precede their callees."""

    rank: Rank | None
    samples: int
    us: float
    cpu_us: float | None
    nodes: tuple[FlameNode, ...]


class Flame(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled stacks of the steps of one phase. The first tree is of all ranks; trees of single ranks follow."""

    phase: SampledPhase
    ranks: tuple[Rank, ...]
    """The ranks that have samples of this phase."""
    trees: tuple[FlameTree, ...]


@dataclass(frozen=True)
class RankStacks:
    """Distinct stacks of one rank; arrays have one entry per stack."""

    stacks: tuple[str, ...]
    dur_ns: np.ndarray
    cpu_ns: np.ndarray | None
    """None if the time on a CPU is unknown for any sample."""
    samples: int


def flame(samples: JobSamples) -> Flame | None:
    """Trees of the best phase that has samples on any rank; None if no rank has samples."""
    phase, sampled = chosen(samples)
    if not sampled:
        return None
    trees = [_tree(None, list(sampled.values()))]
    if len(sampled) > 1:
        trees += [_tree(rank, [sampled[rank]]) for rank in _most_different(sampled)]
    return Flame(phase=phase, ranks=tuple(sampled), trees=tuple(trees))


def collapsed(samples: JobSamples, rank: Rank | None = None) -> str:
    """The same stacks, of one rank or of all, in the format of flamegraph.pl: one `caller;callee µs` per line.

    Functions have their file, the innermost also its line. Empty if there are no samples.
    """
    _, sampled = chosen(samples)
    lines: Counter[str] = Counter()
    for of, stacks in sampled.items():
        if rank in (None, of):
            for stack, ns in zip(stacks.stacks, stacks.dur_ns.tolist(), strict=True):
                lines[";".join([f"rank {of}", *_collapsed(stack)])] += ns
    return "".join(f"{line} {ns // NS_PER_US}\n" for line, ns in sorted(lines.items()) if ns >= NS_PER_US)


def chosen(samples: JobSamples) -> tuple[SampledPhase, dict[Rank, RankStacks]]:
    """The best phase that has samples on any rank, and its stacks by rank; no stacks if no phase has samples."""
    for phase in PHASES:
        found = {rank: of_rank for rank in samples.run.ranks if (of_rank := _sampled(samples, rank, phase)).samples}
        if found:
            return phase, found
    return PHASES[-1], {}


def _sampled(samples: JobSamples, rank: Rank, phase: SampledPhase) -> RankStacks:
    rank_samples = samples.of(rank)
    if not len(rank_samples):
        return RankStacks((), np.zeros(0, np.int64), None, 0)
    used = np.isin(rank_samples.step, _steps_in(samples.steps, rank, phase)) & (rank_samples.code >= 0)
    code, dur, cpu = rank_samples.code[used], rank_samples.dur_ns[used], rank_samples.cpu_ns[used]

    def by_stack(values: np.ndarray) -> np.ndarray:
        return np.bincount(code, weights=np.maximum(values, 0), minlength=len(rank_samples.stacks)).astype(np.int64)

    return RankStacks(
        tuple(rank_samples.stacks), by_stack(dur), None if (cpu < 0).any() else by_stack(cpu), int(used.sum())
    )


def _steps_in(steps: JobSteps, rank: Rank, phase: SampledPhase) -> np.ndarray:
    """Numbers of the steps in `phase`. Plain steps exclude the job's first, which includes one-time work."""
    numbers = steps.in_phase(rank, phase)
    if phase != "plain":
        return numbers
    first = steps.table(rank).ints("step").min(initial=0)
    found: np.ndarray = numbers[numbers != first]
    return found


def _most_different(sampled: dict[Rank, RankStacks]) -> list[Rank]:
    """At most MAX_RANKS_APART ranks, ascending: those whose shares of time by function differ most from the mean."""
    shares = {rank: _innermost(stacks) for rank, stacks in sampled.items()}
    mean: dict[tuple[str, str], float] = {}
    for of_rank in shares.values():
        for function, share in of_rank.items():
            mean[function] = mean.get(function, 0.0) + share / len(shares)
    away = {
        rank: sum(abs(of_rank.get(function, 0.0) - share) for function, share in mean.items())
        for rank, of_rank in shares.items()
    }
    return sorted(sorted(away, key=lambda rank: (-away[rank], rank))[:MAX_RANKS_APART])


def _innermost(sampled: RankStacks) -> dict[tuple[str, str], float]:
    """Share of the time in which each (file, function) is innermost."""
    total = max(1, int(sampled.dur_ns.sum()))
    found: dict[tuple[str, str], float] = {}
    for stack, ns in zip(sampled.stacks, sampled.dur_ns.tolist(), strict=True):
        last = frame(stack.rpartition("\n")[2])
        found[last.file, last.function] = found.get((last.file, last.function), 0.0) + ns / total
    return found


@dataclass
class _Node:
    """A node of a tree under construction."""

    frame: Frame
    ns: Ns = 0
    cpu_ns: Ns = 0
    lines: Counter[int] = field(default_factory=Counter)
    callees: dict[tuple[str, str], "_Node"] = field(default_factory=dict)


def _tree(rank: Rank | None, sampled: Sequence[RankStacks]) -> FlameTree:
    root = _grown(sampled)
    has_cpu_ns = all(one.cpu_ns is not None for one in sampled)
    return FlameTree(
        rank=rank,
        samples=sum(one.samples for one in sampled),
        us=us(root.ns),
        cpu_us=us(root.cpu_ns) if has_cpu_ns else None,
        nodes=tuple(_bounded(root, MAX_NODES if rank is None else MAX_NODES_OF_A_RANK, has_cpu_ns)),
    )


def _grown(sampled: Sequence[RankStacks]) -> _Node:
    """One tree of all stacks; its root represents the thread."""
    root = _Node(Frame("", 0, ""))
    for one in sampled:
        cpu = np.zeros_like(one.dur_ns) if one.cpu_ns is None else one.cpu_ns
        for stack, dur_ns, cpu_ns in zip(one.stacks, one.dur_ns.tolist(), cpu.tolist(), strict=True):
            if dur_ns:
                for node, line in _path(root, stack):
                    node.ns += dur_ns
                    node.cpu_ns += cpu_ns
                    node.lines[line] += dur_ns
    return root


def _path(root: _Node, stack: str) -> Iterator[tuple[_Node, int]]:
    """The nodes of a stack from `root` on, each with its line; direct recursion has one node."""
    yield root, 0
    frames = list(map(frame, stack.splitlines()))
    node, before = root, None
    for depth, one in enumerate(frames):
        is_last = depth == len(frames) - 1
        key = one.file, one.function
        repeats = not is_last and (frames[depth + 1].file, frames[depth + 1].function) == key
        if repeats or (not is_last and _is_plumbing(one)):
            continue
        if key != before:
            node = node.callees.setdefault(key, _Node(one))
            yield node, one.line
        before = key


def _is_plumbing(one: Frame) -> bool:
    return one.function in _PLUMBING and one.file.endswith(_PLUMBING[one.function])


def _bounded(root: _Node, most: int, has_cpu_ns: bool) -> Iterator[FlameNode]:
    """The nodes under `root` that are large enough; the small callees of each function are joined into one node."""
    least = max(MIN_SHARE_OF_TREE * root.ns, _smallest(root, most))
    waiting, count = [(root, -1)], 0
    while waiting:
        node, parent = waiting.pop()
        small = [callee for callee in node.callees.values() if callee.ns < least]
        large = [callee for callee in node.callees.values() if callee.ns >= least]
        for callee in sorted(large, key=lambda one: -one.ns):
            yield _shown(callee, parent, has_cpu_ns)
            waiting.append((callee, count))
            count += 1
        joined = _Node(Frame("", 0, f"{len(small)} more"), sum(n.ns for n in small), sum(n.cpu_ns for n in small))
        if joined.ns >= MIN_SHARE_OF_TREE * root.ns:
            yield _shown(joined, parent, has_cpu_ns)
            count += 1


def _smallest(root: _Node, most: int) -> Ns:
    """Smallest time of a node, ns, that at most `most` nodes reach. Callers have at least the time of their callees."""
    times, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        times += [callee.ns for callee in node.callees.values()]
        waiting += node.callees.values()
    return sorted(times, reverse=True)[most] + 1 if len(times) > most else 0


def _shown(node: _Node, parent: int, has_cpu_ns: bool) -> FlameNode:
    lines = [
        LineShare(line, round(100 * ns / node.ns, 1)) for line, ns in node.lines.most_common(MAX_LINES_NAMED) if line
    ]
    return FlameNode(
        function=node.frame.function,
        file=node.frame.file,
        origin=node.frame.origin,
        parent=parent,
        us=us(node.ns),
        cpu_us=us(node.cpu_ns) if has_cpu_ns else None,
        lines=tuple(lines),
    )


def _collapsed(stack: str) -> Iterator[str]:
    """The frames of a stack as flamegraph.pl reads them. `;` separates frames there, so that `,` replaces it."""
    frames = list(map(frame, stack.splitlines()))
    for depth, one in enumerate(frames):
        line = f":{one.line}" if depth == len(frames) - 1 and one.line else ""
        text = f"{one.function} ({one.file}{line})" if one.file else one.function
        yield text.replace(";", ",")
