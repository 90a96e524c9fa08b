"""Advise an assignment of the ESTs of one elastic job to ranks, from its Run and its own replay."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from esprof.analyzers.advisors.job.est_answer import CountCertificate, EstAdvice, EstDecision, NotRecorded, RankPlan
from esprof.analyzers.advisors.job.growth import Inventory, growth
from esprof.analyzers.advisors.job.makespan import (
    Device,
    EstCounts,
    ends_within,
    fewest_seconds,
    in_ranges,
    step_s,
    waste,
)
from esprof.analyzers.advisors.job.planned import plan_of, section_of
from esprof.analyzers.advisors.step_advice import MIN_GAIN_IN_ERRORS
from esprof.core import readable
from esprof.core.assignment import Assignment
from esprof.core.errors import EsprofError, MismatchError, UsageError
from esprof.core.plan import AssignmentBody, DeviceCost, Plan, PlanParts, PlanPromise
from esprof.core.types import NS_PER_S, NS_PER_US, us
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.error.intervals import Interval
from esprof.replay.whatif.graph.est_load import EstLoad
from esprof.replay.whatif.pricing import Price
from esprof.replay.whatif.scenario import Declined
from esprof.run.run import Exchange

_TERM = "assign"

_MAX_ROUNDS = 3
"""Most rounds in which the best assignment so far is varied."""

_ROUNDING_SHARE = 1e-6
"""Relative tolerance for the rounding of times in a plan."""

_MAX_MEASURED = 4
"""Most assignments, in addition to the present one, whose exchange is measured."""
_MAX_LONGER_SHARE = 0.25
"""Largest relative increase of the predicted step at which an assignment is still worth a measurement."""

_MAX_RANKS_VARIED = 6
"""Number of slowest ranks that give up an EST, and of fastest ranks that receive one, in each round."""


@dataclass(frozen=True)
class _Tried:
    """An assignment with its predicted steps."""

    assignment: Assignment
    price: Price

    @property
    def step_ns(self) -> float:
        return float(self.price.step_ns.mean())


class _AssignmentPrices:
    """Prices assignments on one graph, each once."""

    def __init__(self, replayed: Replayed, est_load: EstLoad, exchanges: Sequence[Exchange]) -> None:
        self._pricer, self._est_load = replayed.pricer, est_load
        self._took = {Assignment.of(one.ests): fmean(one.samples_ns) for one in exchanges}
        self._known: dict[Assignment, _Tried] = {}

    @property
    def measured(self) -> list[Assignment]:
        """The assignments whose exchange was measured; none unless the present one and another were measured."""
        return list(self._took) if self._est_load.assignment in self._took and len(self._took) > 1 else []

    @property
    def known(self) -> list[_Tried]:
        """All priced assignments, the shortest step first."""
        return sorted(self._known.values(), key=lambda one: one.step_ns)

    def of(self, assignment: Assignment) -> _Tried:
        if assignment not in self._known:
            longer = None
            if assignment in self.measured:
                longer = self._took[assignment] / self._took[self._est_load.assignment]
            price = self._pricer.price_edited(self._est_load.moved(assignment, longer))
            self._known[assignment] = _Tried(assignment, price)
        return self._known[assignment]


@dataclass(frozen=True)
class _Job:
    """An elastic job: its load, its devices, and the prices of assignments."""

    est_load: EstLoad
    devices: list[Device]
    optimum: EstCounts
    prices: _AssignmentPrices

    @classmethod
    def of(cls, replayed: Replayed, exchanges: Sequence[Exchange] = ()) -> "_Job":
        """Raises EsprofError if the run lacks necessary data."""
        pricer = replayed.pricer
        if pricer.too_far_off:
            raise EsprofError(pricer.too_far_off, path=replayed.run.path)
        try:
            est_load = EstLoad.of(replayed.run, pricer.dfg, pricer.steps)
            devices = _devices(replayed, est_load)
        except Declined as reason:
            raise NotRecorded(str(reason), path=replayed.run.path) from reason
        prices = _AssignmentPrices(replayed, est_load, exchanges)
        return cls(est_load, devices, fewest_seconds(devices, est_load.assignment.n_est), prices)

    @property
    def even(self) -> Assignment:
        return Assignment.even(self.est_load.assignment.n_est, self.est_load.assignment.world)

    def best(self) -> _Tried:
        """The assignment with the shortest step found, among the measured ones if there are any."""
        now = self.est_load.assignment
        if self.prices.measured:
            return min(map(self.prices.of, (now, *self.prices.measured)), key=lambda one: one.step_ns)
        fewer = _on_fewer(self.devices, now.n_est)
        tried = [self.prices.of(one) for one in (now, self.even, Assignment.of(in_ranges(self.optimum.ests)), *fewer)]
        return _varied(min(tried, key=lambda one: one.step_ns), self.devices, self.prices)


def shortlist(replayed: Replayed) -> tuple[Assignment, ...]:
    """The assignments whose exchange is worth a measurement: the present one, then those with the shortest predicted steps.
    Raises EsprofError as `advise_ests` does."""
    job = _Job.of(replayed)
    job.best()
    now, most_ns = job.est_load.assignment, (1 + _MAX_LONGER_SHARE) * replayed.pricer.step_ns
    others = [one.assignment for one in job.prices.known if one.assignment != now and one.step_ns < most_ns]
    return now, *others[:_MAX_MEASURED]


def advise_ests(
    replayed: Replayed,
    inventory: Inventory | None = None,
    *,
    known_error: float | None = None,
    exchanges: Sequence[Exchange] = (),
) -> EstAdvice:
    """Advise the assignment with the shortest predicted step.

    Candidates are the exact optimum of the slowest rank's computation, the present assignment, an even split, and neighbours
    of the best; replay, which includes communication, decides. If the job has measured the `exchanges` of some assignments
    (`shortlist`), the advised one is among these, and the measurements give its communication time.

    `inventory` has the devices that the job could use, by type: a substring of a device's name in the run, or `rank 3` for
    one like that rank's. `known_error` is the error of predictions for this job, as a share of a step; by default that of
    predictions for other jobs.

    Raises EsprofError if the run lacks necessary data, UsageError for a type on which the job has not run.
    """
    job, pricer = _Job.of(replayed, exchanges), replayed.pricer
    est_load, devices, optimum = job.est_load, job.devices, job.optimum
    now, best = est_load.assignment, job.best()
    error = pricer.error.of_terms([_TERM]) if known_error is None else known_error
    gain = 1 - best.step_ns / pricer.step_ns
    interval = pricer.interval(best.price, [_TERM])
    counts = [len(ests) for ests in best.assignment.ests]
    certificate = CountCertificate(
        compute_us=optimum.step_s * NS_PER_S / NS_PER_US,
        n_est=now.n_est,
        ests_below=optimum.ests_below,
        advised_compute_us=max(device.step_s(count) for device, count in zip(devices, counts, strict=True))
        * NS_PER_S
        / NS_PER_US,
    )
    baselines = {"now": us(pricer.step_ns), "even split": us(job.prices.of(job.even).step_ns)}
    ranks = tuple(_rank_plans(replayed, est_load, devices, best.assignment))
    advice = EstAdvice(
        value=us(best.step_ns),
        low_us=us(interval.low_ns),
        high_us=us(interval.high_ns),
        baselines=baselines,
        gain_pct=round(100 * gain, 3),
        error_pct=round(100 * error, 3),
        decision=EstDecision(ests=best.assignment.ests, ranks=ranks),
        waste_pct=round(100 * waste(devices, counts), 3),
        certificate=certificate,
        growth=None
        if inventory is None
        else growth(devices, _kinds(replayed, devices, inventory), inventory, now.n_est),
        plan=None,
        warnings=tuple(_warnings(ranks, best.assignment)),
    )
    if gain < MIN_GAIN_IN_ERRORS * error or best.assignment == now:
        return advice
    return msgspec.structs.replace(advice, plan=_plan(replayed, advice, interval))


def _devices(replayed: Replayed, est_load: EstLoad) -> list[Device]:
    costs = est_load.costs
    return [
        Device(
            name=f"rank {rank}",
            kind=replayed.run.rank(rank).device or "unknown",
            est_s=costs[rank].est_ns / NS_PER_S,
            last_s=costs[rank].last_ns / NS_PER_S,
            update_s=costs[rank].update_ns / NS_PER_S,
        )
        for rank in est_load.dfg.marks.ranks
    ]


def _kinds(replayed: Replayed, devices: Sequence[Device], inventory: Inventory) -> dict[str, Device]:
    """Mean cost of an EST on each type, over the ranks with such a device. ESTs of a device share the memory of one."""
    found = {}
    needed = max((meta.peak_memory for meta in replayed.run.meta.ranks if meta.peak_memory is not None), default=None)
    for kind in inventory.devices:
        like = [device for device in devices if device.name == kind] or [one for one in devices if kind in one.kind]
        if not like:
            known = ", ".join(sorted({device.kind for device in devices}))
            raise UsageError(
                f"the cost of an EST on {kind} is unknown: no rank of this run has such a device",
                remedy=f"Its ranks have: {known}. A name such as 'rank 0' means a device like that rank's.",
            )
        found[kind] = Device(
            name=kind,
            kind=kind,
            est_s=fmean(device.est_s for device in like),
            last_s=fmean(device.last_s for device in like),
            update_s=fmean(device.update_s for device in like),
            most=None if inventory.has_room(kind, needed) else 0,
        )
    return found


def _on_fewer(devices: Sequence[Device], n_est: int) -> Iterator[Assignment]:
    """The optima of only the fastest ranks: all but one, half, a quarter, and so on down to one. Moves of single ESTs do not
    reach them: a rank sends its gradient until it has no EST left."""
    order = sorted(range(len(devices)), key=lambda at: devices[at].est_s)
    sizes = {len(devices) - 1} | {len(devices) >> halvings for halvings in range(1, len(devices).bit_length())}
    for size in sorted(sizes - {0}):
        chosen = sorted(order[:size])
        found = fewest_seconds([devices[at] for at in chosen], n_est)
        counts = dict(zip(chosen, found.ests, strict=True))
        yield Assignment.of(in_ranges([counts.get(at, 0) for at in range(len(devices))]))


def _varied(best: _Tried, devices: Sequence[Device], prices: _AssignmentPrices) -> _Tried:
    """The best assignment reached from `best` by moving single ESTs from slow ranks to fast ones."""
    for _ in range(_MAX_ROUNDS):
        neighbours = [prices.of(one) for one in _neighbours(best.assignment, devices)]
        better = min([best, *neighbours], key=lambda one: one.step_ns)
        if better is best:
            return best
        best = better
    return best


def _neighbours(assignment: Assignment, devices: Sequence[Device]) -> Iterator[Assignment]:
    counts = [len(ests) for ests in assignment.ests]
    order = sorted(range(len(devices)), key=lambda at: -devices[at].step_s(counts[at]))
    for slow in order[:_MAX_RANKS_VARIED]:
        for fast in order[::-1][:_MAX_RANKS_VARIED]:
            if slow != fast and counts[slow]:
                changed = [count - (at == slow) + (at == fast) for at, count in enumerate(counts)]
                yield Assignment.of(in_ranges(changed))


def _rank_plans(
    replayed: Replayed, est_load: EstLoad, devices: Sequence[Device], advised: Assignment
) -> Iterator[RankPlan]:
    for at, rank in enumerate(est_load.dfg.marks.ranks):
        device, now, then = devices[at], est_load.assignment.ests[at], advised.ests[at]
        yield RankPlan(
            rank=rank,
            device=replayed.run.rank(rank).device,
            now=now,
            advised=then,
            est_us=_us(device.est_s),
            last_us=_us(device.last_s),
            update_us=_us(device.update_s),
            est_from="measured" if est_load.costs[rank].is_measured else "assumed",
            now_us=_us(device.step_s(len(now))),
            advised_us=_us(device.step_s(len(then))),
        )


def _warnings(ranks: Sequence[RankPlan], advised: Assignment) -> Iterator[str]:
    unknown = [plan.rank for plan in ranks if not plan.now and plan.advised]
    if unknown:
        yield f"{readable.ranks(unknown)} ran no EST: the cost of one there is estimated from the update"
    assumed = [plan.rank for plan in ranks if plan.est_from == "assumed" and plan.now and len(plan.advised) > 1]
    if assumed:
        yield f"{readable.ranks(assumed)} ran one EST: the cost of a second one there is estimated from the other ranks"
    idle = [plan.rank for plan in ranks if not plan.advised]
    kinds = sorted({plan.device or "unknown" for plan in ranks})
    if len(kinds) > 1:
        yield f"{', '.join(kinds)} may round differently: an EST that moves between them may compute other bits"
    if idle:
        yield f"{readable.ranks(idle)} {readable.verb('are', idle)} left without ESTs, which makes the step shorter"


def _plan(replayed: Replayed, advice: EstAdvice, interval: Interval) -> Plan:
    ranks = advice.decision.ranks
    body = AssignmentBody(
        ests=advice.decision.ests,
        devices=tuple(
            DeviceCost(
                rank=plan.rank,
                kind=plan.device or "unknown",
                est_us=plan.est_us,
                last_us=plan.last_us,
                update_us=plan.update_us,
                est_from=plan.est_from,
            )
            for plan in ranks
        ),
        compute_us=advice.certificate.compute_us,
        ests_below=advice.certificate.ests_below,
    )
    promise = PlanPromise(
        step_us=advice.value,
        low_us=us(interval.low_ns),
        high_us=us(interval.high_ns),
        baselines_us=advice.baselines,
    )
    changes_bits = len({plan.device for plan in ranks}) > 1
    section = section_of(replayed, body, promise, applies="live", changes_bits=changes_bits)
    return plan_of(replayed.run, PlanParts(assignment=section))


def check_plan(plan: Plan) -> None:
    """Verify by arithmetic that no counts make the slowest rank faster than the optimum that the plan states. Raises
    MismatchError otherwise."""
    section = plan.parts.assignment
    if section is None:
        return
    body = section.body
    if sorted(cost.rank for cost in body.devices) != list(range(len(body.ests))):
        raise MismatchError(f"the plan has {len(body.ests)} ranks, but the costs of others")
    devices = [
        Device(
            name=f"rank {cost.rank}",
            kind=cost.kind,
            est_s=cost.est_us * NS_PER_US / NS_PER_S,
            last_s=cost.last_us * NS_PER_US / NS_PER_S,
            update_s=cost.update_us * NS_PER_US / NS_PER_S,
        )
        for cost in body.devices
    ]
    shorter_s = body.compute_us * NS_PER_US / NS_PER_S * (1 - _ROUNDING_SHARE)
    below = ends_within(devices, plan.job.n_est, shorter_s)
    if below >= plan.job.n_est:
        raise MismatchError(
            f"the ranks complete {below} ESTs in less than {body.compute_us / 1000:g} ms, the optimum that the plan states"
        )
    if body.ests_below != below:
        raise MismatchError(
            f"the ranks complete {below} ESTs in any shorter time, but the plan states {body.ests_below}"
        )
    longest = step_s(devices, [len(ests) for ests in body.ests])
    if longest * NS_PER_S / NS_PER_US < body.compute_us * (1 - _ROUNDING_SHARE):
        raise MismatchError("the counts of the plan take less time than the optimum that it states")


def _us(seconds: float) -> float:
    return round(seconds * NS_PER_S / NS_PER_US, 3)
