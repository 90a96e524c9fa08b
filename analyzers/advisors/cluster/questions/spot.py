"""Which offer of a cloud to use in each hour, so that a job ends by its deadline for the least expected cost.

Exact for its model, by dynamic programming over time, work left and the offer held (after Narayanan et al., DISPA 2020,
and "Can't Be Late", NSDI 2024). Time is divided into ticks. The job saves at the end of each. An offer that may be
interrupted is lost within a tick with probability 1 - exp(-rate x tick); then the work of the tick is lost, and half of
it is paid. An offer that is taken may not be there; then the job waits for the tick. The deadline holds in every case, not
only on average.
"""

from collections.abc import Iterable, Iterator
from math import ceil, floor, inf, isfinite
from typing import Literal

import msgspec
import numpy as np

from esprof.analyzers.advisors.cluster.program import Infeasible
from esprof.analyzers.advisors.cluster.questions.answer import CheckedAnswer, ClusterAnswer, ClusterProblem, verified
from esprof.core.errors import MismatchError

_S_PER_HOUR = 3_600.0
_MAX_STATES = 2_000_000
_ROUNDING_SHARE = 1e-9

_NOT_MODELLED = (
    "prices that turn out to differ from those of the file",
    "that an offer which is away stays away for some time",
)

OfferName = str


class Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine that can be rented, and how fast the job is on it."""

    name: OfferName
    steps_per_s: float
    """Speed of the job there, with its checkpoints."""
    prices_per_h: tuple[float | None, ...]
    """Price in each tick; None if it is not offered."""
    interruptions_per_hour: float = 0.0
    available_share: float = 1.0
    """Chance that it is there if it is taken in a tick and was not held."""


class SpotProblem(ClusterProblem, frozen=True, kw_only=True):
    """A job with a deadline, and the offers to choose from."""

    steps: float
    deadline_h: float
    tick_h: float
    restore_s: float
    """Time from the start on an offer to the next step."""
    unit_steps: float
    """Steps in a unit of work. The steps of the job are rounded up to whole units, those of an offer in a tick down."""
    offers: tuple[Offer, ...]

    @property
    def ticks(self) -> int:
        return floor(self.deadline_h / self.tick_h * (1 + _ROUNDING_SHARE))

    @property
    def units(self) -> int:
        return ceil(self.steps / self.unit_steps * (1 - _ROUNDING_SHARE))

    def fault(self) -> str | None:
        above = (self.steps, self.deadline_h, self.tick_h, self.unit_steps, *(one.steps_per_s for one in self.offers))
        if not all(0 < number < inf for number in above):
            return "steps, deadline_h, tick_h, unit_steps and steps_per_s must be above 0"
        if not self.offers or len({one.name for one in self.offers}) < len(self.offers):
            return "needs at least one offer, and no name twice"
        numbers = [self.restore_s, *(one.interruptions_per_hour for one in self.offers)]
        numbers += [price for one in self.offers for price in one.prices_per_h if price is not None]
        if not all(0 <= number < inf for number in numbers):
            return "has a number that is negative or not finite"
        if not all(0 < one.available_share <= 1 for one in self.offers):
            return "available_share must be above 0, and at most 1"
        if not self.deadline_h / self.tick_h * self.steps / self.unit_steps * (1 + len(self.offers)) <= _MAX_STATES:
            return f"has more than {_MAX_STATES:,} states: choose a longer tick_h, or more unit_steps"
        if self.ticks < 1:
            return "the deadline is before the end of the first tick"
        if any(len(one.prices_per_h) != self.ticks for one in self.offers):
            return f"every offer needs a price in each of the {self.ticks} ticks"
        return None

    def units_done(self, offer: Offer, *, moves: bool) -> int:
        """Units of work in a whole tick on the offer, after a restore if the job `moves` to it."""
        left_s = self.tick_h * _S_PER_HOUR - (self.restore_s if moves else 0.0)
        return max(0, floor(offer.steps_per_s * left_s / self.unit_steps * (1 + _ROUNDING_SHARE)))

    def share_used(self, offer: Offer, units: np.ndarray, *, moves: bool) -> np.ndarray:
        """Share of a tick that the last `units`, int64[n], take, at most 1: float64[n]."""
        restore_s = self.restore_s if moves else 0.0
        used_s = restore_s + units * self.unit_steps / offer.steps_per_s
        share: np.ndarray = np.minimum(1.0, used_s / (self.tick_h * _S_PER_HOUR))
        return share


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do at the start of a tick with this much work left or more, up to the next choice of tick and offer held."""

    tick: int
    held: OfferName | None
    """The offer of the tick before; None at the start, after an interruption and after a wait."""
    units_from: int
    take: OfferName | None
    """None to wait."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive ticks on one offer."""

    from_h: float
    until_h: float
    offer: OfferName | None
    """None for a wait."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What to do in every case that can occur."""

    uninterrupted: tuple[Stretch, ...]
    """What happens if nothing is interrupted."""
    choices: tuple[Choice, ...]


class SpotAnswer(ClusterAnswer, frozen=True, kw_only=True):
    """Which offers to use. The value is the expected cost, in the currency of the prices."""

    objective: Literal["spot"] = "spot"
    decision: Policy
    problem: SpotProblem


def choose_offers(problem: SpotProblem) -> SpotAnswer:
    """The policy with the least expected cost. Raises Infeasible if none meets the deadline in every case."""
    costs = _Costs(problem)
    takes, value = costs.best()
    if not isfinite(value):
        raise Infeasible(
            "no choice of offers meets the deadline in every case",
            remedy="Allow more time, or add an offer that is not interrupted.",
        )
    return SpotAnswer(
        value=value,
        unit="expected cost",
        bound=value,
        baselines=dict(_baselines(problem)),
        warnings=tuple(_warnings(problem)),
        not_modelled=_NOT_MODELLED,
        decision=Policy(uninterrupted=costs.uninterrupted(takes), choices=tuple(_choices(problem, takes))),
        problem=problem,
    )


def check_spot(answer: SpotAnswer) -> CheckedAnswer:
    """Verify the expected cost of the choices and that they meet the deadline in every case, and bound the cost of all
    others: in each state, another choice is compared with the one stated. Raises MismatchError."""
    problem = answer.problem
    costs, takes = _Costs(problem), _takes(problem, answer.decision.choices)
    value, bound = costs.of_choices(takes)
    if not isfinite(value):
        raise MismatchError("the choices do not meet the deadline in every case")
    if answer.decision.uninterrupted != costs.uninterrupted(takes):
        raise MismatchError("the choices differ from what is said to happen without interruptions")
    return verified(answer, value, bound, "by comparing every choice with the others")


class _Costs:
    """Expected costs from each state on: float64[offer held, units left]. The last `held` is none."""

    def __init__(self, problem: SpotProblem) -> None:
        self.problem = problem
        self.none = len(problem.offers)
        self.late = np.full((self.none + 1, problem.units + 1), inf)
        self.late[:, 0] = 0

    def best(self) -> tuple[np.ndarray, float]:
        """The best offers to take, int16[tick, held, units left], and their cost from the start."""
        cost, takes = self.late, np.full((self.problem.ticks, *self.late.shape), self.none, np.int16)
        for tick in range(self.problem.ticks - 1, -1, -1):
            ways = self.ways(tick, cost)
            # Of equal costs the first offer, and a wait last.
            takes[tick] = np.argmin(ways, axis=0)
            cost = ways.min(axis=0)
        return takes, float(cost[self.none, self.problem.units])

    def of_choices(self, takes: np.ndarray) -> tuple[float, float]:
        """The cost of these choices from the start, and a lower bound of that of all others.

        By induction from the deadline: what any others save from a tick on is at most the sum, over the ticks left, of what
        one other choice in that tick would save in any state.
        """
        cost, saved = self.late, 0.0
        for tick in range(self.problem.ticks - 1, -1, -1):
            ways = self.ways(tick, cost)
            cost = np.take_along_axis(ways, takes[tick][None].astype(int), axis=0)[0]
            better = ways.min(axis=0)
            saved += float(np.subtract(cost, better, out=np.zeros_like(cost), where=np.isfinite(better)).max())
        value = float(cost[self.none, self.problem.units])
        return value, value - saved

    def ways(self, tick: int, after: np.ndarray) -> np.ndarray:
        """The cost of each offer, and of a wait, in each state: float64[offer or wait, held, units left]."""
        ways = np.full((self.none + 1, *after.shape), inf)
        ways[self.none] = after[self.none]
        for at, offer in enumerate(self.problem.offers):
            if (price := offer.prices_per_h[tick]) is not None:
                ways[at] = self._taking(offer, price, after[at], after[self.none], moves=True)
                ways[at, at] = self._taking(offer, price, after[at], after[self.none], moves=False)
        ways[:, :, 0] = 0
        return ways

    def _taking(self, offer: Offer, price: float, kept: np.ndarray, lost: np.ndarray, *, moves: bool) -> np.ndarray:
        """The cost of an offer for a tick, float64[units left], from the costs after it if it is kept, and if it is lost."""
        left, problem = np.arange(len(kept)), self.problem
        done = problem.units_done(offer, moves=moves)
        used = np.where(left <= done, problem.share_used(offer, left, moves=moves), 1.0)
        chance = -np.expm1(-offer.interruptions_per_hour * problem.tick_h * used)
        paid = price * problem.tick_h * used
        cost: np.ndarray = (1 - chance) * (paid + kept[np.maximum(left - done, 0)])
        if offer.interruptions_per_hour:  # Zero times an infinite cost is no number.
            cost += chance * (paid / 2 + lost)
        if moves and offer.available_share < 1:
            cost = offer.available_share * cost + (1 - offer.available_share) * lost
        return cost

    def uninterrupted(self, takes: np.ndarray) -> tuple[Stretch, ...]:
        """What these choices lead to if nothing is interrupted."""
        problem, held, left = self.problem, self.none, self.problem.units
        found: list[Stretch] = []
        for tick in range(problem.ticks):
            if not left:
                break
            take = int(takes[tick, held, left])
            offer = problem.offers[take] if take != self.none else None
            if offer is not None:
                left = max(0, left - problem.units_done(offer, moves=take != held))
            start_h = tick * problem.tick_h
            if found and take == held:
                start_h = found.pop().from_h
            found.append(
                Stretch(from_h=start_h, until_h=(tick + 1) * problem.tick_h, offer=offer.name if offer else None)
            )
            held = take
        return tuple(found)


def _names(problem: SpotProblem) -> list[OfferName | None]:
    return [*(offer.name for offer in problem.offers), None]


def _choices(problem: SpotProblem, takes: np.ndarray) -> Iterator[Choice]:
    """The choices as ranges of work left."""
    names = _names(problem)
    for tick in range(problem.ticks):
        for held, name in enumerate(names):
            taken = takes[tick, held, 1:]
            for at in (0, *(np.flatnonzero(np.diff(taken)) + 1).tolist()):
                yield Choice(tick=tick, held=name, units_from=at + 1, take=names[taken[at]])


def _takes(problem: SpotProblem, choices: Iterable[Choice]) -> np.ndarray:
    """The offers to take, int16[tick, held, units left]. Raises MismatchError if a choice is missing or unknown."""
    names = _names(problem)
    takes = np.full((problem.ticks, len(names), problem.units + 1), -1, np.int16)
    takes[:, :, 0] = len(names) - 1
    for one in sorted(choices, key=lambda one: one.units_from):
        known = one.held in names and one.take in names
        if not known or not 0 <= one.tick < problem.ticks or one.units_from < 1:
            raise MismatchError(f"a choice of tick {one.tick} is not one of the problem")
        takes[one.tick, names.index(one.held), one.units_from :] = names.index(one.take)
    if (takes < 0).any():
        raise MismatchError("the choices do not say what to do in every case")
    return takes


def _baselines(problem: SpotProblem) -> Iterator[tuple[str, float]]:
    """The cost of the best single offer, and what certainty would save."""
    replace = msgspec.structs.replace
    alone = [(_Costs(replace(problem, offers=(one,))).best()[1], one.name) for one in problem.offers]
    if isfinite(min(alone)[0]):
        yield f"only {min(alone)[1]}", min(alone)[0]
    certain = tuple(replace(one, interruptions_per_hour=0.0, available_share=1.0) for one in problem.offers)
    yield "if every offer were there and none interrupted", _Costs(replace(problem, offers=certain)).best()[1]


def _warnings(problem: SpotProblem) -> Iterator[str]:
    for one in problem.offers:
        if not problem.units_done(one, moves=True):
            yield f"{one.name} does less than a unit of work in its first tick: choose less unit_steps or a longer tick_h"
