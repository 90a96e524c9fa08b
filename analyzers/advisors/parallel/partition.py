"""The exact split of a chain of layers into pipeline stages on replicated devices of several types.

A stage is a range of layers on some devices of one type, which share each microbatch evenly. With T the time of a stage
for a microbatch and m microbatches, the search minimises ΣT + (m − 1) max T, an upper bound of the time of 1F1B with unequal
stages. T includes transfers, and the stage's all-reduce divided by m.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from esprof.analyzers.advisors.parallel.profile import Devices, DeviceType, LayerProfile
from esprof.core.compiled import compiled
from esprof.core.errors import UsageError

_MAX_TRIED = 1_000_000_000
"""Most stages that one pass of the search may try: a few seconds. A search makes up to some hundred passes."""

_STEP_DOWN = 1e-12
"""How far the limit of T goes below the last one, relative: more than rounding."""


class Stage(NamedTuple):
    """Layers `first` to before `end` on `replicas` devices of one type."""

    first: int
    end: int
    kind: int
    """Number of the type of device."""
    replicas: int


Split = tuple[Stage, ...]
"""The stages of a plan in order."""


@dataclass(frozen=True)
class Problem:
    """Layers, devices and microbatches. L layers, T types; times in µs, sizes in bytes."""

    kinds: tuple[DeviceType, ...]
    counts: np.ndarray
    """int64[T], devices of each type."""
    memory: np.ndarray
    """float64[T], bytes of a device; infinite if that is no limit."""
    microbatches: int
    work_us: np.ndarray
    """float64[T, L + 1], sums over the layers before each of forward and backward of a microbatch."""
    state: np.ndarray
    """float64[L + 1], sums of weights, gradients and optimizer state, bytes."""
    kept: np.ndarray
    """float64[L + 1], sums of activations kept of a microbatch, bytes."""
    parameters: np.ndarray
    """float64[L + 1], sums of parameters, bytes."""
    receive_us: np.ndarray
    """float64[L], transfer of the input of each layer of a microbatch from the layer before, one way."""
    us_per_byte: np.ndarray
    """float64[T], time of a byte among devices of a type."""

    @classmethod
    def of(cls, profile: LayerProfile, devices: Devices, microbatches: int) -> "Problem":
        """The problem of `profile`, which has times on all types of `devices`."""
        kinds, layers = tuple(devices.devices), profile.layers
        work = [[one.times[kind].forward_us + one.times[kind].backward_us for one in layers] for kind in kinds]
        parameters = np.cumsum([0.0, *(one.parameter_bytes for one in layers)])
        sent = [0.0, *(one.output_bytes for one in layers[:-1])]
        return cls(
            kinds=kinds,
            counts=np.array([devices.counts[kind] for kind in kinds], np.int64),
            memory=np.array([devices.memory_bytes(kind) for kind in kinds]),
            microbatches=microbatches,
            work_us=np.array([np.cumsum([0.0, *row]) for row in work]),
            state=parameters * profile.state_factor,
            kept=np.cumsum([0.0, *(float(one.kept) for one in layers)]),
            parameters=parameters,
            receive_us=np.array(sent) * devices.us_per_byte_between(),
            us_per_byte=np.array([devices.us_per_byte(kind) for kind in kinds]),
        )

    @property
    def layers(self) -> int:
        return len(self.receive_us)

    @property
    def most_stages(self) -> int:
        return min(self.layers, int(self.counts.sum()))

    @cached_property
    def _reductions_us(self) -> np.ndarray:
        """Time of the ring all-reduce of the gradients of each stage, µs, float64[T, most replicas, L, L + 1]: 2 (r − 1)/r
        of its bytes pass each link."""
        replicas = np.arange(1, int(self.counts.max()) + 1)
        per_byte = np.outer(self.us_per_byte, 2 * (replicas - 1) / replicas)
        times: np.ndarray = per_byte[:, :, None, None] * _ranges(self.parameters)[: self.layers]
        return times

    @cached_property
    def stages_us(self) -> np.ndarray:
        """T of each stage, µs, float64[T, most replicas, L, L + 1]: its work, its transfers with the stage before, and its
        share of the all-reduce."""
        replicas = np.arange(1, int(self.counts.max()) + 1)[None, :, None, None]
        work = np.stack([_ranges(one)[: self.layers] for one in self.work_us])
        busy = work + 2 * self.receive_us[:, None]
        times: np.ndarray = busy[:, None] / replicas + self._reductions_us / self.microbatches
        return times

    def reduce_us(self, stage: Stage) -> float:
        """Time of the all-reduce of a stage's gradients, µs."""
        return float(self._reductions_us[stage.kind, stage.replicas - 1, stage.first, stage.end])

    def stage_us(self, stage: Stage) -> float:
        """T of a stage, µs."""
        return float(self.stages_us[stage.kind, stage.replicas - 1, stage.first, stage.end])

    def memory_bytes(self, stage: Stage, held: float) -> float:
        """Memory of one device of a stage that holds activations of `held` microbatches."""
        state = self.state[stage.end] - self.state[stage.first]
        kept = self.kept[stage.end] - self.kept[stage.first]
        return float(state + held * kept / stage.replicas)

    def bound_us(self, split: Split) -> float:
        """ΣT + (m − 1) max T, the objective."""
        times = [self.stage_us(stage) for stage in split]
        return sum(times) + (self.microbatches - 1) * max(times)


def search(problem: Problem) -> list[Split]:
    """Splits by rising objective, the first of them the best of all; among the rest is the best in one stage. Each stage has
    the memory that 1F1B needs. Empty if nothing fits.

    The search goes down the possible values of max T (Alpa, OSDI 2022, §5.2): for each, it finds the least ΣT by dynamic
    programming from the last stage, so that the number of stages behind is that of the microbatches held. Raises
    UsageError if that would take too long.
    """
    if (tried := _tried(problem)) > _MAX_TRIED:
        raise UsageError(
            f"each pass of the search would try up to {tried:,} stages: at most {_MAX_TRIED:,} are allowed",
            remedy="Join layers of the profile, or treat the devices of a server as one.",
        )
    found, limit = set[Split](), np.inf
    while splits := list(_least_sums(problem, limit)):
        found.update(splits)
        best = min(map(problem.bound_us, found))
        if problem.microbatches == 1:
            break
        times = [[problem.stage_us(stage) for stage in split] for split in splits]
        # A better split has a smaller max T than this: no later ΣT is less than the least so far.
        room = (best - min(map(sum, times))) / (problem.microbatches - 1)
        limit = min(max(map(max, times)) * (1 - _STEP_DOWN), room)
    return sorted(found, key=lambda split: (problem.bound_us(split), len(split), split))


def lower_bound_us(problem: Problem) -> float:
    """A time that no plan and no schedule is below: that of all work of the step, divided among all devices at will, by
    linear programming."""
    # Those who plan nothing do not pay for importing scipy.
    from scipy.optimize import linprog

    kinds, layers = len(problem.kinds), problem.layers
    work = np.diff(problem.work_us, axis=1)
    # Variables: the share of each layer on each type, then the time.
    busy = np.zeros((kinds, kinds * layers + 1))
    for kind in range(kinds):
        busy[kind, kind * layers : (kind + 1) * layers] = work[kind]
    busy[:, -1] = -problem.counts
    whole = np.hstack([np.tile(np.eye(layers), kinds), np.zeros((layers, 1))])
    gain = np.zeros(kinds * layers + 1)
    gain[-1] = 1
    solved = linprog(gain, A_ub=busy, b_ub=np.zeros(kinds), A_eq=whole, b_eq=np.ones(layers), method="highs")
    return float(solved.fun) * problem.microbatches


def _tried(problem: Problem) -> int:
    """How many stages a pass of the search tries at most."""
    counts: list[int] = problem.counts.tolist()
    # Python's integers do not overflow, however many devices there are.
    lefts: int = prod(count + 1 for count in counts)
    return lefts * problem.most_stages * sum(counts) * problem.layers**2 // 4


def _least_sums(problem: Problem, limit_us: float) -> Iterator[Split]:
    """For each number of stages that is possible, the split of least ΣT with no T above the limit."""
    radix = np.concatenate([[1], np.cumprod(problem.counts + 1)]).astype(np.int64)
    shape = (problem.most_stages + 1, int(radix[-1]), problem.layers + 1)
    least = np.full(shape, np.inf)
    least[0, :, problem.layers] = 0
    choice = np.full(shape, -1, np.int64)
    widest = int(problem.counts.max()) + 1
    _fill(problem.stages_us, _ranges(problem.state), _ranges(problem.kept), problem.memory, problem.counts, radix,
          problem.microbatches, limit_us, widest, least, choice)  # fmt: skip
    for stages in range(1, problem.most_stages + 1):
        if least[stages, -1, 0] < np.inf:
            yield _traced(choice, radix, widest, stages)


def _traced(choice: np.ndarray, radix: np.ndarray, widest: int, stages: int) -> Split:
    """The split into this number of stages that `choice` records."""
    first, left, split = 0, choice.shape[1] - 1, list[Stage]()
    for behind in range(stages, 0, -1):
        rest, replicas = divmod(int(choice[behind, left, first]), widest)
        end, kind = divmod(rest, len(radix) - 1)
        split.append(Stage(first, end, kind, replicas))
        first, left = end, left - replicas * int(radix[kind])
    return tuple(split)


def _ranges(sums: np.ndarray) -> np.ndarray:
    """The sum from each layer to before each other one, from sums over all layers before."""
    between: np.ndarray = sums[None, :] - sums[:, None]
    return between


@compiled
def _fill(
    cost: np.ndarray,
    state: np.ndarray,
    kept: np.ndarray,
    memory: np.ndarray,
    counts: np.ndarray,
    radix: np.ndarray,
    microbatches: int,
    limit: float,
    widest: int,
    least: np.ndarray,
    choice: np.ndarray,
) -> None:
    """Fill `least[k, left, i]`, the least ΣT of layers from i on in exactly k stages on the devices `left` (a number whose
    digits by `radix` count each type), and `choice`, the first of these stages."""
    layers, kinds = least.shape[2] - 1, len(counts)
    for stages in range(1, least.shape[0]):
        held = min(microbatches, stages)
        for left in range(least.shape[1]):
            for first in range(layers):
                for kind in range(kinds):
                    there = left // radix[kind] % (counts[kind] + 1)
                    for replicas in range(1, there + 1):
                        rest = left - replicas * radix[kind]
                        for end in range(first + 1, layers + 1):
                            took = cost[kind, replicas - 1, first, end]
                            needed = state[first, end] + held * kept[first, end] / replicas
                            # Both grow with each layer.
                            if took > limit or needed > memory[kind]:
                                break
                            if took + least[stages - 1, rest, end] < least[stages, left, first]:
                                least[stages, left, first] = took + least[stages - 1, rest, end]
                                choice[stages, left, first] = (end * kinds + kind) * widest + replicas
