"""The exact split of a chain of layers into pipeline stages on replicated devices of several types.

A stage is a range of layers on some devices of one type, which share each microbatch evenly. With T the time of a stage
for a microbatch and m microbatches, the search minimises ΣT + (m − 1) max T, an upper bound of the time of 1F1B with unequal
stages. T includes transfers, and the stage's all-reduce divided by m.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from esprof.analyzers.advisors.parallel.limits import by_falling_limits
from esprof.analyzers.advisors.parallel.problem import Problem, Split, Stage, ranges
from esprof.analyzers.advisors.parallel.profile import DeviceType
from esprof.core.compiled import compiled
from esprof.core.errors import UsageError

_MAX_TRIED = 1_000_000_000
"""Most stages that one pass of the search may try: a few seconds. A search makes up to some hundred passes."""


def search(problem: Problem) -> list[Split]:
    """Splits by rising objective, the first of them the best of all; among the rest is the best in one stage. Each stage has
    the memory that 1F1B needs. Empty if nothing fits.

    For each limit of max T (`by_falling_limits`) it finds the least ΣT by dynamic programming from the last stage, so that
    the number of stages behind is that of the microbatches held. Raises UsageError if that would take too long.
    """
    if (tried := _tried(problem)) > _MAX_TRIED:
        raise UsageError(
            f"each pass of the search would try up to {tried:,} stages: at most {_MAX_TRIED:,} are allowed",
            remedy="Join layers of the profile, or treat the devices of a server as one.",
        )
    found = set(by_falling_limits(partial(_least_sums, problem), problem.microbatches))
    return sorted(found, key=lambda split: (problem.bound_us(split), len(split), split))


def lower_bound_us(problems: Sequence[Problem], counts: Mapping[DeviceType, int], batch: int) -> float:
    """A time that no plan and no schedule is below: that of all work of the step, divided among all `counts` devices at
    will, by linear programming. Each layer has the best of its times in the problems."""
    alike = dict[tuple[str, ...], list[Problem]]()
    for one in problems:
        alike.setdefault(one.names, []).append(one)
    return batch * min(_least_share_us(some, counts) for some in alike.values())


def _least_share_us(problems: Sequence[Problem], counts: Mapping[DeviceType, int]) -> float:
    """The least time for a sample of all layers, divided among all devices at will."""
    # Those who plan nothing do not pay for importing scipy.
    from scipy.optimize import linprog

    kinds, layers = len(counts), problems[0].layers
    work = np.full((kinds, layers), np.inf)
    for one in problems:
        for row, name in zip(np.diff(one.work_us, axis=1), one.kinds, strict=True):
            at = list(counts).index(name)
            work[at] = np.minimum(work[at], row * one.tensor / one.microbatch)
    # Variables: the share of each layer on each type, then the time.
    possible = np.isfinite(work)
    busy = np.zeros((kinds, kinds * layers + 1))
    for kind in range(kinds):
        busy[kind, kind * layers : (kind + 1) * layers] = np.where(possible[kind], work[kind], 0)
    busy[:, -1] = [-count for count in counts.values()]
    whole = np.hstack([np.tile(np.eye(layers), kinds), np.zeros((layers, 1))])
    gain = np.zeros(kinds * layers + 1)
    gain[-1] = 1
    bounds = [(0, 1 if one else 0) for one in possible.ravel()] + [(0, None)]
    solved = linprog(gain, busy, np.zeros(kinds), whole, np.ones(layers), bounds=bounds, method="highs")
    return float(solved.fun)


def _tried(problem: Problem) -> int:
    """How many stages a pass of the search tries at most."""
    counts: list[int] = problem.counts.tolist()
    # Python's integers do not overflow, however many devices there are.
    lefts: int = prod(count + 1 for count in counts)
    return lefts * problem.most_stages * sum(counts) * problem.layers**2 // 4


def _least_sums(problem: Problem, limit_us: float) -> Iterator[tuple[Split, list[float]]]:
    """For each number of stages that is possible, the split of least ΣT with no T above the limit, and its T."""
    radix = np.concatenate([[1], np.cumprod(problem.counts + 1)]).astype(np.int64)
    shape = (problem.most_stages + 1, int(radix[-1]), problem.layers + 1)
    least = np.full(shape, np.inf)
    least[0, :, problem.layers] = 0
    choice = np.full(shape, -1, np.int64)
    widest = int(problem.counts.max()) + 1
    _fill(problem.stages_us, ranges(problem.state), problem.shared_bytes, problem.held_bytes, problem.memory,
          problem.counts, problem.per_server, radix, problem.microbatches, limit_us, widest, least, choice)  # fmt: skip
    for stages in range(1, problem.most_stages + 1):
        if least[stages, -1, 0] < np.inf:
            split = _traced(problem, choice, radix, widest, stages)
            yield split, [problem.stage_us(stage) for stage in split]


def _traced(problem: Problem, choice: np.ndarray, radix: np.ndarray, widest: int, stages: int) -> Split:
    """The split into this number of stages that `choice` records."""
    first, left, split = 0, choice.shape[1] - 1, list[Stage]()
    used = [0] * len(problem.kinds)
    for behind in range(stages, 0, -1):
        rest, replicas = divmod(int(choice[behind, left, first]), widest)
        end, kind = divmod(rest, len(radix) - 1)
        split.append(Stage(first, end, kind, replicas, problem.is_local(used[kind], replicas)))
        first, left = end, left - replicas * int(radix[kind])
        used[kind] += replicas
    return tuple(split)


@compiled
def _fill(
    cost: np.ndarray,
    state: np.ndarray,
    shared: np.ndarray,
    kept: np.ndarray,
    memory: np.ndarray,
    counts: np.ndarray,
    per_server: int,
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
                    used = counts[kind] - there
                    for replicas in range(1, there + 1):
                        rest = left - replicas * radix[kind]
                        local = 1 if used // per_server == (used + replicas - 1) // per_server else 0
                        for end in range(first + 1, layers + 1):
                            took = cost[local, kind, replicas - 1, first, end]
                            needed = state[first, end] + (shared[first, end] + held * kept[first, end]) / replicas
                            # Both grow with each layer.
                            if took > limit or needed > memory[kind]:
                                break
                            if took + least[stages - 1, rest, end] < least[stages, left, first]:
                                least[stages, left, first] = took + least[stages - 1, rest, end]
                                choice[stages, left, first] = (end * kinds + kind) * widest + replicas
