"""Where the Python of the training threads was: sampled stacks as trees of functions, bounded for a page."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from esprof.analyzers.samples.frames import Frame, Origin, frame
from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.types import NS_PER_US, Ns, Rank, us

SampledPhase = Literal["stack", "plain", "timed"]

PHASES: tuple[SampledPhase, ...] = ("stack", "plain", "timed")
"""Steps whose samples are taken, best first: those of `stack` steps are twenty times as dense, and the profiler of `timed`
ones slows what it sees."""

MIN_SHARE_OF_TREE = 0.005
"""Share of a tree's time below which a function is joined with others."""

MAX_NODES = 200
"""Functions that keep a node of their own in the tree of all ranks."""

MAX_NODES_OF_A_RANK = 60
"""The same, in the tree of one rank beside it."""

MAX_RANKS_APART = 5
"""Ranks that have a tree of their own, beside that of all."""

MAX_LINES_NAMED = 3
"""Lines that are named of one function."""

_PLUMBING = ("Module._wrapped_call_impl", "Module._call_impl")
"""Functions of `torch/nn/modules/module.py` through which each module's `forward` is called."""


class LineShare(msgspec.Struct, frozen=True):
    """A line that a function was at, and for which share of its time, in per cent."""

    line: int
    pct: float


class FlameNode(msgspec.Struct, frozen=True, kw_only=True):
    """A function as its callers called it, or (without file) several that are joined. Times hold those of its callees."""

    function: str
    file: str
    origin: Origin
    parent: int
    """Index of its caller in the tree; -1 for one that nobody called."""
    us: float
    cpu_us: float | None
    """How much of the time the thread ran on a CPU; None where that is not known."""
    lines: tuple[LineShare, ...]
    """Most time first, at most `MAX_LINES_NAMED`."""


class FlameTree(msgspec.Struct, frozen=True, kw_only=True):
    """The stacks of one rank, or of all where `rank` is None. A caller stands before its callees."""

    rank: Rank | None
    samples: int
    us: float
    cpu_us: float | None
    nodes: tuple[FlameNode, ...]


class Flame(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled stacks of the steps of one phase. The first tree is that of all ranks, those of single ranks follow."""

    phase: SampledPhase
    ranks: tuple[Rank, ...]
    """The ranks that have samples of this phase."""
    trees: tuple[FlameTree, ...]


@dataclass(frozen=True)
class RankStacks:
    """Distinct stacks of one rank, as the table has them; arrays have an entry for each."""

    stacks: tuple[str, ...]
    dur_ns: np.ndarray
    cpu_ns: np.ndarray | None
    """None where the time on a CPU is not known of all."""
    samples: int


def flame(samples: JobSamples) -> Flame | None:
    """The stacks of the best phase that has samples on any rank; None where no rank has any."""
    phase, sampled = chosen(samples)
    if not sampled:
        return None
    trees = [_tree(None, list(sampled.values()))]
    if len(sampled) > 1:
        trees += [_tree(rank, [sampled[rank]]) for rank in _most_different(sampled)]
    return Flame(phase=phase, ranks=tuple(sampled), trees=tuple(trees))


def collapsed(samples: JobSamples, rank: Rank | None = None) -> str:
    """The stacks of the same samples, of one rank or of all, in the format of flamegraph.pl: `caller;callee µs` a line.

    Functions are named with their file, the innermost with its line. Empty where there are no samples.
    """
    _, sampled = chosen(samples)
    lines: Counter[str] = Counter()
    for of, stacks in sampled.items():
        if rank in (None, of):
            for stack, ns in zip(stacks.stacks, stacks.dur_ns.tolist(), strict=True):
                lines[";".join([f"rank {of}", *_collapsed(stack)])] += ns
    return "".join(f"{line} {ns // NS_PER_US}\n" for line, ns in sorted(lines.items()) if ns >= NS_PER_US)


def chosen(samples: JobSamples) -> tuple[SampledPhase, dict[Rank, RankStacks]]:
    """The best phase that has samples on any rank, and the stacks sampled in it, by rank; none where there is none."""
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
    """The numbers of the steps in `phase`, without the job's first step, which holds what a job does only once."""
    numbers = steps.in_phase(rank, phase)
    if phase != "plain":
        return numbers
    first = steps.table(rank).ints("step").min(initial=0)
    found: np.ndarray = numbers[numbers != first]
    return found


def _most_different(sampled: dict[Rank, RankStacks]) -> list[Rank]:
    """At most MAX_RANKS_APART of the ranks, ascending: those that spend their time least as the ranks do on average."""
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
    """Share of the time in which each (file, function) is the innermost."""
    total = max(1, int(sampled.dur_ns.sum()))
    found: dict[tuple[str, str], float] = {}
    for stack, ns in zip(sampled.stacks, sampled.dur_ns.tolist(), strict=True):
        last = frame(stack.rpartition("\n")[2])
        found[last.file, last.function] = found.get((last.file, last.function), 0.0) + ns / total
    return found


@dataclass
class _Node:
    """A function as its callers called it, while a tree grows."""

    frame: Frame
    ns: Ns = 0
    cpu_ns: Ns = 0
    lines: Counter[int] = field(default_factory=Counter)
    callees: dict[tuple[str, str], "_Node"] = field(default_factory=dict)


def _tree(rank: Rank | None, sampled: Sequence[RankStacks]) -> FlameTree:
    root = _grown(sampled)
    tells_cpu = all(one.cpu_ns is not None for one in sampled)
    return FlameTree(
        rank=rank,
        samples=sum(one.samples for one in sampled),
        us=us(root.ns),
        cpu_us=us(root.cpu_ns) if tells_cpu else None,
        nodes=tuple(_bounded(root, MAX_NODES if rank is None else MAX_NODES_OF_A_RANK, tells_cpu)),
    )


def _grown(sampled: Sequence[RankStacks]) -> _Node:
    """All stacks as one tree, whose root stands for the thread."""
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
    """The nodes of a stack from `root` on, each with the line that it was at; of a function that calls itself, one node."""
    yield root, 0
    frames = list(map(frame, stack.splitlines()))
    node, before = root, None
    for depth, one in enumerate(frames):
        is_last = depth == len(frames) - 1
        key = one.file, one.function
        repeats = not is_last and (frames[depth + 1].file, frames[depth + 1].function) == key
        if repeats or (not is_last and one.function in _PLUMBING and one.file.endswith("torch/nn/modules/module.py")):
            continue
        if key != before:
            node = node.callees.setdefault(key, _Node(one))
            yield node, one.line
        before = key


def _bounded(root: _Node, most: int, tells_cpu: bool) -> Iterator[FlameNode]:
    """The nodes under `root` that are large enough, the small callees of each function joined into one."""
    least = max(MIN_SHARE_OF_TREE * root.ns, _smallest(root, most))
    waiting, count = [(root, -1)], 0
    while waiting:
        node, parent = waiting.pop()
        small = [callee for callee in node.callees.values() if callee.ns < least]
        large = [callee for callee in node.callees.values() if callee.ns >= least]
        for callee in sorted(large, key=lambda one: -one.ns):
            yield _shown(callee, parent, tells_cpu)
            waiting.append((callee, count))
            count += 1
        joined = _Node(Frame("", 0, f"{len(small)} more"), sum(n.ns for n in small), sum(n.cpu_ns for n in small))
        if joined.ns >= MIN_SHARE_OF_TREE * root.ns:
            yield _shown(joined, parent, tells_cpu)
            count += 1


def _smallest(root: _Node, most: int) -> Ns:
    """The time that a node must have for at most `most` to have it. A caller always has as much as its callees."""
    times, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        times += [callee.ns for callee in node.callees.values()]
        waiting += node.callees.values()
    return sorted(times, reverse=True)[most] + 1 if len(times) > most else 0


def _shown(node: _Node, parent: int, tells_cpu: bool) -> FlameNode:
    lines = [
        LineShare(line, round(100 * ns / node.ns, 1)) for line, ns in node.lines.most_common(MAX_LINES_NAMED) if line
    ]
    return FlameNode(
        function=node.frame.function,
        file=node.frame.file,
        origin=node.frame.origin,
        parent=parent,
        us=us(node.ns),
        cpu_us=us(node.cpu_ns) if tells_cpu else None,
        lines=tuple(lines),
    )


def _collapsed(stack: str) -> Iterator[str]:
    """The frames of a stack as flamegraph.pl reads them: `;` stands between them, and a line ends with a number."""
    frames = list(map(frame, stack.splitlines()))
    for depth, one in enumerate(frames):
        line = f":{one.line}" if depth == len(frames) - 1 and one.line else ""
        text = f"{one.function} ({one.file}{line})" if one.file else one.function
        yield text.replace(";", ",")
