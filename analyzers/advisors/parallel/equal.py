"""Plans of equal stages: every stage has equally many replicas, and layers are divided so that the slowest is as fast as
possible. Each replica works on microbatches of its own.

The sweep is that of PipeDream-2BW's planner (Narayanan et al., ICML 2021, §3.3), with several stages on a device and the
time of a step of 1F1B with a flush (PTD-P, SC 2021, §3): with m microbatches in v stages on each of p devices, the longest
of which takes T, that is about (vm + p − 1) T.
"""

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from esprof.analyzers.advisors.parallel.problem import Problem, Split, Stage, ranges

_MAX_CHUNKS = 8
"""Most stages of a device. Each multiplies the transfers, and the idle time is short by then."""
MAX_MICROBATCHES = 10_000
"""Most microbatches of a step: each is some nodes of a graph for each stage."""


@dataclass(frozen=True, order=True)
class EqualPlan:
    """A plan of equal stages. Plans are in order of their time, then of their sizes."""

    step_us: float
    """Closed form of the time of a step."""
    ranks: int
    """p, the devices of a pipeline."""
    chunks: int
    """v, the stages of each of them."""
    replicas: int
    """d, the pipelines side by side."""
    ends: tuple[int, ...]
    """For each stage, the number of the layer after its last."""
    kind: int
    """Number of the type of device."""
    problem: Problem = field(compare=False)
    """The problem whose microbatch is that of all replicas together."""

    @property
    def split(self) -> Split:
        """The stages in order."""
        return _stages(self.problem, self.ends, self.ranks, self.kind, self.replicas)


def equal_plans(problems: Sequence[Problem], batch: int, most: int) -> list[EqualPlan]:
    """The `most` best plans of equal stages for steps of `batch` samples, by the closed form, and the best of one stage.

    Each problem has the microbatch of one replica. A plan has the memory that 1F1B, or interleaved 1F1B, needs.
    """
    best, alone = list[EqualPlan](), list[EqualPlan]()
    for problem in problems:
        for kind in range(len(problem.kinds)):
            for plan in _Sweep(problem, kind, batch).plans(best, most):
                if len(plan.ends) == 1:
                    alone.append(plan)
                insort(best, plan)
                del best[most:]
    return [*best, *(plan for plan in sorted(alone)[:1] if plan not in best)]


def _stages(problem: Problem, ends: Sequence[int], ranks: int, kind: int, replicas: int) -> Split:
    """The stages that end before these layers, on ranks in turn, each on the devices after those of the rank before."""
    firsts = (0, *ends[:-1])
    return tuple(
        Stage(first, end, kind, replicas, problem.is_local(number % ranks * replicas, replicas))
        for number, (first, end) in enumerate(zip(firsts, ends, strict=True))
    )


def held_by_rank(ranks: int, chunks: int, microbatches: int) -> np.ndarray:
    """How many microbatches the devices of a pipeline hold at most in 1F1B, or interleaved 1F1B, float64[ranks], where a
    microbatch counts by the share of the device's stages that hold it."""
    rank = np.arange(ranks)
    warm = ranks - rank if chunks == 1 else ranks + (ranks - 1 - 2 * rank) / chunks
    return np.minimum(microbatches, warm).astype(float)


@dataclass(frozen=True)
class _Sweep:
    """All plans of one problem on one type of device."""

    problem: Problem
    kind: int
    batch: int

    def plans(self, best: Sequence[EqualPlan], most: int) -> Iterator[EqualPlan]:
        """Plans that fit into memory and may be among the `most` best, of which `best` has those found so far."""
        work_us = float(self.problem.work_us[self.kind, -1])
        for replicas, microbatches in self._replicas():
            for ranks in self._ranks(replicas):
                # The busiest device does at least an equal share. The best of one stage is always wanted.
                if ranks > 1 and len(best) == most and microbatches * work_us / ranks > best[-1].step_us:
                    continue
                for chunks in self._chunks(ranks, microbatches):
                    plan = self._plan(ranks, chunks, replicas, microbatches)
                    if plan is not None:
                        yield plan

    def _ranks(self, replicas: int) -> Iterator[int]:
        """Possible numbers of devices of a pipeline, the largest first."""
        most = min(self.problem.layers, int(self.problem.counts[self.kind]) // replicas)
        if self.problem.is_split is not False:
            yield from range(most, 1, -1)
        if self.problem.is_split is not True:
            yield 1

    def _replicas(self) -> Iterator[tuple[int, int]]:
        """Possible numbers of replicas, and of microbatches of each."""
        shares, rest = divmod(self.batch, self.problem.microbatch)
        for replicas in range(1, int(self.problem.counts[self.kind]) + 1):
            if not rest and shares % replicas == 0 and shares // replicas <= MAX_MICROBATCHES:
                yield replicas, shares // replicas

    def _chunks(self, ranks: int, microbatches: int) -> Iterator[int]:
        """Possible numbers of stages of each device. Interleaving takes the microbatches in rounds of `ranks`."""
        yield 1
        if ranks > 1 and microbatches % ranks == 0:
            yield from range(2, min(_MAX_CHUNKS, self.problem.layers // ranks) + 1)

    def _plan(self, ranks: int, chunks: int, replicas: int, microbatches: int) -> EqualPlan | None:
        """The plan of these numbers; None if it does not fit into memory."""
        ends = self._ends(ranks * chunks)
        firsts = [0, *ends[:-1]]
        memory = self._memory_bytes(firsts, ends, ranks, replicas, microbatches)
        if memory.max() > self.problem.memory[self.kind]:
            return None
        return EqualPlan(
            step_us=self._step_us(firsts, ends, chunks, replicas, microbatches),
            ranks=ranks,
            chunks=chunks,
            replicas=replicas,
            ends=tuple(ends),
            kind=self.kind,
            problem=self.problem.on_replicas(replicas, microbatches),
        )

    def _step_us(self, firsts: list[int], ends: list[int], chunks: int, replicas: int, microbatches: int) -> float:
        """(vm − 1) max T + ΣT/v, and the part of the all-reduces that no backward pass hides."""
        problem, ranks = self.problem, len(ends) // chunks
        busy = problem.busy_us[self.kind, firsts, ends]
        backward = ranges((problem.backward_us + problem.again_us)[self.kind])[firsts, ends]
        reduce = np.array(list(map(problem.reduce_us, _stages(problem, ends, ranks, self.kind, replicas))))
        hidden = np.cumsum(backward) - backward
        passes = (chunks * microbatches - 1) * busy.max() + busy.sum() / chunks
        return float(passes + max(0.0, (reduce - hidden).max()))

    def _memory_bytes(
        self, firsts: list[int], ends: list[int], ranks: int, replicas: int, microbatches: int
    ) -> np.ndarray:
        """Memory of each device of a pipeline, float64[ranks]."""
        problem, chunks = self.problem, len(ends) // ranks

        def of_ranks(of_stages: np.ndarray) -> np.ndarray:
            return of_stages.reshape(chunks, ranks)

        state = of_ranks(ranges(problem.state)[firsts, ends]).sum(0)
        optimizer = of_ranks(ranges(problem.optimizer)[firsts, ends]).sum(0)
        held = held_by_rank(ranks, chunks, microbatches) * of_ranks(problem.held_bytes[firsts, ends]).sum(0)
        total: np.ndarray = state + optimizer / replicas + held + of_ranks(problem.live_bytes[firsts, ends]).max(0)
        return total

    def _ends(self, stages: int) -> list[int]:
        """The ends of this number of stages. The longest stage is as short as possible. With that, late stages get as many
        layers as possible, since early ones hold more activations."""
        longest, busy = self._longest_us, self.problem.busy_us[self.kind]
        end = self.problem.layers
        limit, ends = longest[stages, end], [end]
        for before in range(stages - 1, 0, -1):
            fits = np.maximum(longest[before, :end], busy[:end, end]) <= limit
            end = int(np.argmax(fits))
            ends.append(end)
        return ends[::-1]

    @cached_property
    def _longest_us(self) -> np.ndarray:
        """The least longest time of a stage, if the layers before each are divided into each number of stages, µs,
        float64[most stages + 1, L + 1]."""
        layers, busy = self.problem.layers, self.problem.busy_us[self.kind]
        most = min(layers, _MAX_CHUNKS * int(self.problem.counts[self.kind]))
        # A stage has at least one layer.
        times = np.where(np.arange(layers + 1)[None, :] > np.arange(layers)[:, None], busy, np.inf)
        longest = np.full((most + 1, layers + 1), np.inf)
        longest[0, 0] = 0
        for stages in range(1, most + 1):
            longest[stages] = np.maximum(longest[stages - 1, :layers, None], times).min(axis=0)
        return longest
