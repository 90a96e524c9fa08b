"""The exact search for a pipeline whose stages mix types of devices.

A cut says how many devices of each type share a layer, how large a microbatch is, and how many pipelines run side by side.
For each cut, dynamic programming over the layers, the replicas left and the stages behind minimises ΣT + (m − 1) max T.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations_with_replacement, islice, product
from math import comb, prod

import numpy as np

from esprof.analyzers.advisors.parallel.limits import by_falling_limits
from esprof.analyzers.advisors.parallel.mixed.pricing import MAX_MICROBATCHES, LayerRanges, MixedPricing
from esprof.analyzers.advisors.parallel.mixed.profile import MixedPlan, MixedStage, Replica
from esprof.analyzers.advisors.parallel.profile import DeviceType
from esprof.core.compiled import compiled
from esprof.core.errors import UsageError

_MAX_TRIED = 100_000_000
"""Most stages that one pass over a cut may try: about a second. A cut needs some passes."""

_MAX_CUTS = 20_000
"""Most cuts that are compared: about ten seconds."""


@dataclass(frozen=True)
class Cut:
    """How the devices are used."""

    pricing: MixedPricing
    microbatch: int
    pipelines: int
    batch: int
    units: dict[Replica, int]
    """Kinds of replicas, one for each type of device at most, and how many there can be."""

    @property
    def microbatches(self) -> int:
        return self.batch // (self.microbatch * self.pipelines)

    @property
    def layers(self) -> int:
        return self.pricing.profile.layers

    @property
    def most_stages(self) -> int:
        return min(self.layers, sum(self.units.values()) // self.pipelines)

    @cached_property
    def bound_us(self) -> float:
        """A time that no plan of this cut is below: dual solution y = 1/(whole model on a replica) of the linear programme
        that divides all layers, each with its all-reduce and optimizer, among all replicas at will."""
        once = np.array([self._sums(kind).update_us + self._least_reduce_us for kind in self.units])
        ranges = np.array([self._sums(kind).work_us for kind in self.units]) + once / self.microbatches
        times = np.diagonal(ranges, 1, axis1=1, axis2=2)
        weights = 1 / np.maximum(times.sum(axis=1), np.finfo(float).tiny)
        least = (times * weights[:, None]).min(axis=0).sum()
        return float(self.microbatches * self.pipelines * least / (weights @ np.array(list(self.units.values()))))

    @property
    def _least_reduce_us(self) -> np.ndarray:
        """What the all-reduce of a stage takes at least, float64[L + 1, L + 1]."""
        every = [self.pricing.reduce_us([kind] * self.pipelines, self.microbatch) for kind in self.units]
        least: np.ndarray = np.min(every, axis=0)
        return least

    @property
    def tried(self) -> int:
        """How many stages a pass tries at most."""
        mixes = comb(self.pipelines + len(self.units) - 1, self.pipelines)
        lefts = prod(count + 1 for count in self.units.values())
        return mixes * lefts * self.most_stages * self.layers**2 // 2

    def mixes(self) -> list[tuple[int, ...]]:
        """The kinds that the replicas of one stage may have, by number."""
        counts = list(self.units.values())
        every = combinations_with_replacement(range(len(counts)), self.pipelines)
        return [mix for mix in every if all(times <= counts[kind] for kind, times in Counter(mix).items())]

    def replicas(self, mix: Sequence[int]) -> tuple[Replica, ...]:
        kinds = list(self.units)
        return tuple(kinds[kind] for kind in mix)

    def held(self, kind: Replica) -> np.ndarray:
        """Of how many microbatches a stage may hold activations, int64[L + 1, L + 1]; −1 if its state does not fit."""
        left = self.pricing.devices.memory_bytes(kind.device) - self.pricing.memory_bytes(kind, self.microbatch, 0)
        kept = self._sums(kind).kept
        most = np.where(left < 0, -1.0, np.where(kept > 0, left / np.where(kept > 0, kept, 1), np.inf))
        return np.minimum(most, self.microbatches).astype(np.int64)

    def _sums(self, kind: Replica) -> LayerRanges:
        return self.pricing.ranges(kind, self.microbatch)


def cuts(pricing: MixedPricing, batch: int) -> Iterator[Cut]:
    """All cuts of the devices that the profile has times for. No replica spans servers."""
    devices, times = pricing.devices, pricing.profile.times
    for microbatch in sorted({size for kind in devices.devices for size in times.get(kind, {})}):
        degrees = [_kinds(pricing, kind, microbatch) for kind in devices.devices]
        for kinds in product(*degrees):
            units = {kind: devices.counts[kind.device] // kind.tensor for kind in kinds if kind is not None}
            for pipelines in range(1, sum(units.values()) + 1):
                if batch % (microbatch * pipelines) == 0 and batch // (microbatch * pipelines) <= MAX_MICROBATCHES:
                    yield Cut(pricing, microbatch, pipelines, batch, units)


def _kinds(pricing: MixedPricing, device: DeviceType, microbatch: int) -> list[Replica | None]:
    """What replicas on this type can be; None if it has no times of the microbatch."""
    most = min(pricing.devices.per_server, pricing.devices.counts[device])
    measured = pricing.profile.times.get(device, {}).get(microbatch, {})
    return [Replica(device, tensor) for tensor in sorted(measured) if tensor <= most] or [None]


@dataclass
class MixedSearch:
    """A search, and what came of it."""

    pricing: MixedPricing
    batch: int
    max_tried: int = _MAX_TRIED

    def __post_init__(self) -> None:
        self.found = dict[MixedPlan, float]()
        """Plans with their objective, µs."""
        self.lower_bound_us = np.inf
        """No plan is below this."""
        self.left_out = list[Cut]()
        """Cuts that would take too long, and may have a better plan."""

    def run(self) -> list[MixedPlan]:
        """The plans found, by rising objective: the first is the best of all cuts but those left out. Raises UsageError if
        there are too many cuts."""
        every = list(islice(cuts(self.pricing, self.batch), _MAX_CUTS + 1))
        if len(every) > _MAX_CUTS:
            raise UsageError(
                f"there are more than {_MAX_CUTS:,} ways to use these devices: too many to compare",
                remedy="Leave types out of the inventory, or tensor degrees and microbatches out of the profile.",
            )
        by_bound = sorted(every, key=lambda cut: cut.bound_us)
        self.lower_bound_us = by_bound[0].bound_us if by_bound else np.inf
        best = np.inf
        for cut in by_bound:
            if cut.bound_us >= best:
                break
            if cut.tried > self.max_tried:
                self.left_out.append(cut)
                continue
            for plan in splits(cut, best):
                self.found[plan] = self.pricing.bound_us(plan, cut.microbatches)
            best = min(self.found.values(), default=best)
        self.left_out = [cut for cut in self.left_out if cut.bound_us < best]
        return sorted(self.found, key=lambda plan: (self.found[plan], len(plan.stages), plan.stages))


def splits(cut: Cut, best_us: float = np.inf) -> Iterator[MixedPlan]:
    """Plans of one cut, with the best of them unless none is below `best_us`."""
    mixes = cut.mixes()
    costs = np.array([cut.pricing.stage_us(cut.replicas(mix), cut.microbatch, cut.microbatches) for mix in mixes])
    holds = np.array([np.min([cut.held(kind) for kind in set(cut.replicas(mix))], axis=0) for mix in mixes])
    return by_falling_limits(partial(_least_sums, cut, mixes, costs, holds), cut.microbatches, best_us)


def _least_sums(
    cut: Cut, mixes: list[tuple[int, ...]], costs: np.ndarray, holds: np.ndarray, limit_us: float
) -> Iterator[tuple[MixedPlan, list[float]]]:
    """For each number of stages that is possible, the plan of least ΣT with no T above the limit, and its T."""
    counts = np.array(list(cut.units.values()), np.int64)
    radix = np.concatenate([[1], np.cumprod(counts + 1)]).astype(np.int64)
    used = np.array([np.bincount(mix, minlength=len(counts)) for mix in mixes], np.int64)
    shape = (cut.most_stages + 1, int(radix[-1]), cut.layers + 1)
    least = np.full(shape, np.inf)
    least[0, :, cut.layers] = 0
    choice = np.full(shape, -1, np.int64)
    _fill(costs, holds, used, counts, radix, cut.microbatches, limit_us, least, choice)
    for behind in range(1, cut.most_stages + 1):
        if least[behind, -1, 0] == np.inf:
            continue
        first, left, stages, times = 0, shape[1] - 1, list[MixedStage](), list[float]()
        for rest in range(behind, 0, -1):
            end, mix = divmod(int(choice[rest, left, first]), len(mixes))
            stages.append(MixedStage(first, end, cut.replicas(mixes[mix])))
            times.append(float(costs[mix, first, end]))
            first, left = end, left - int(used[mix] @ radix[:-1])
        yield MixedPlan(cut.microbatch, tuple(stages)), times


@compiled
def _fill(
    cost: np.ndarray,
    holds: np.ndarray,
    used: np.ndarray,
    counts: np.ndarray,
    radix: np.ndarray,
    microbatches: int,
    limit: float,
    least: np.ndarray,
    choice: np.ndarray,
) -> None:
    """Fill `least[k, left, i]`, the least ΣT of layers from i on in exactly k stages on the replicas `left` (a number whose
    digits by `radix` count each kind), and `choice`, the first of these stages."""
    layers, mixes = least.shape[2] - 1, len(used)
    for stages in range(1, least.shape[0]):
        held = min(microbatches, stages)
        for left in range(least.shape[1]):
            for mix in range(mixes):
                rest, there = left, True
                for kind in range(len(counts)):
                    there = there and used[mix, kind] <= left // radix[kind] % (counts[kind] + 1)
                    rest -= used[mix, kind] * radix[kind]
                if not there:
                    continue
                for first in range(layers):
                    for end in range(first + 1, layers + 1):
                        # T grows, and memory shrinks, with each layer.
                        if cost[mix, first, end] > limit or holds[mix, first, end] < held:
                            break
                        whole = cost[mix, first, end] + least[stages - 1, rest, end]
                        if whole < least[stages, left, first]:
                            least[stages, left, first] = whole
                            choice[stages, left, first] = end * mixes + mix
