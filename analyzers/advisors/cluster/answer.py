"""What is advised for a mix of jobs, with all that it takes to check it by arithmetic: inputs, decision, dual values."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import msgspec
import numpy as np

from esprof.analyzers.advisors.cluster.levels import fill
from esprof.analyzers.advisors.cluster.mix import DeviceType, JobId, Mix, Together
from esprof.analyzers.advisors.cluster.money import Tradeoff, break_even, frontier
from esprof.analyzers.advisors.cluster.policies import Objective, Posed, Prices, Row, has_teams, pose
from esprof.analyzers.advisors.cluster.program import Infeasible, OptimalityProof, Optimum, prove, solve, solve_integers
from esprof.core.errors import MismatchError, UsageError

SCHEMA = "esprof.advice/1"

_MIN_SHARE = 1e-9
"""Shares of time below this are rounding."""

_MAX_GAP_PROVEN = 1e-7
"""What a decision may violate, or miss the bound by, relative, and still count as proven."""


class Given(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Time that a job gets on a type of device."""

    job: JobId
    device: DeviceType
    share: float | None = None
    """Of its time, from 0 to 1."""
    hours: float | None = None
    with_: JobId | None = msgspec.field(name="with", default=None)
    """The job that shares each of the devices."""
    until_h: float | None = None
    """End of the stretch between two deadlines in which the hours lie."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing is better: by weak duality the dual values, one for each constraint, bound every decision's value.

    Of `whole` numbers there are no dual values; the bound is that of the search.
    """

    kind: Literal["duals", "search"]
    bound: float
    """No decision can reach more than this (or less, where less is better), in the objective's unit."""
    gap: float
    """By how much the decision misses the bound, relative."""
    duals: dict[str, float]


class MixAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What each of several jobs should get."""

    schema: Literal["esprof.advice/1"] = "esprof.advice/1"
    objective: Objective
    value: float
    decision: tuple[Given, ...]
    throughput_steps_per_s: dict[JobId, float]
    certificate: Certificate
    baselines: dict[str, float]
    """The objective's value with other decisions."""
    binding: dict[str, float]
    """What one unit more of each scarce thing would be worth, in the objective's unit."""
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...]
    frontier: tuple[Tradeoff, ...]
    """Of `cost`: what it costs to be done sooner."""
    break_even: dict[DeviceType, float]
    """Of `cost`: the price an hour below which a type that is not used would be."""
    mix: Mix
    prices: Prices | None


def advise(mix: Mix, objective: Objective, prices: Prices | None = None, *, whole: bool = False) -> MixAdvice:
    """The best decision. With `whole`, no job changes places: each runs on one type all the time, or not at all.

    Raises UsageError where the mix lacks what the objective needs, Infeasible where no decision meets all deadlines.
    """
    if whole and objective == "cost":
        raise UsageError("jobs that stay where they are have no hours", remedy="Leave out --whole, or choose another.")
    by_teams = objective == "fairness" and has_teams(mix) and not whole
    posed = pose(mix, objective, prices, merged=not (whole or by_teams))
    in_time = np.arange(len(posed.program.gain)) < len(posed.columns)
    found = solve_integers(posed.program, in_time) if whole else solve(posed.program)
    if whole and len(posed.program.gain) > len(posed.columns) and found.value < _MIN_SHARE:
        raise Infeasible("not all jobs run at once where each stays in its place", remedy="Leave out --whole.")
    if by_teams:  # As high a level for the last; and the others rise on.
        found = replace(found, x=np.append(fill(mix)[1].x, found.x[-1]))
    given = tuple(_given(posed, found.x))
    return MixAdvice(
        objective=objective,
        value=posed.value_of(found.value),
        decision=given,
        throughput_steps_per_s=_throughputs(posed, found.x),
        certificate=_certificate(posed, found),
        baselines=_baselines(mix, objective),
        binding=_worth(posed, found),
        warnings=tuple(_warnings(mix, given)),
        not_modelled=_not_modelled(objective, whole=whole),
        frontier=tuple(frontier(mix, prices)) if objective == "cost" else (),
        break_even=break_even(posed, found) if objective == "cost" else {},
        mix=mix,
        prices=prices,
    )


def check(advice: MixAdvice) -> OptimalityProof:
    """Verify a decision by arithmetic, without a solver: it meets every constraint, its value is as stated, and its dual
    values prove it the best. Raises MismatchError where it does not."""
    posed = pose(advice.mix, advice.objective, advice.prices, merged=False)
    if advice.certificate.kind != "duals":
        raise MismatchError(
            "a decision in whole numbers has no dual values: it can be checked by solving it again alone"
        )
    names = [_name(posed, row) for row in posed.rows]
    if unknown := set(advice.certificate.duals) - set(names):
        raise MismatchError(f"the certificate names a constraint that there is not: {min(unknown)}")
    x = _vector(posed, advice.decision)
    if len(x) < len(posed.program.gain):  # The objective itself: the most that the decision leaves room for.
        x = np.append(x, _multiple(posed, x))
    proof = prove(posed.program, x, np.array([advice.certificate.duals.get(name, 0.0) for name in names]))
    if len(posed.columns) < len(x) and proof.value < _MIN_SHARE:
        raise MismatchError("the decision leaves a job without any time")
    value = posed.value_of(proof.value)
    if abs(value - advice.value) > _MAX_GAP_PROVEN * abs(advice.value):
        raise MismatchError(f"the value is {value:.10g}, and {advice.value:.10g} is stated")
    for what, amount in (
        ("the decision violates a constraint", proof.violation),
        ("the dual values are none", proof.dual_violation),
        ("the dual values leave room for a better decision", proof.gap),
    ):
        if amount > _MAX_GAP_PROVEN:
            raise MismatchError(f"{what}, by {amount:.2g} (relative)")
    return proof


def _multiple(posed: Posed, x: np.ndarray) -> float:
    """The largest last variable with which `x` meets the rows that hold it."""
    rows = posed.program.rows.tocsc()
    last = rows[:, [len(x)]].toarray().ravel()
    room = posed.program.bounds - rows[:, : len(x)] @ x
    return float((room[last > 0] / last[last > 0]).min())


def _given(posed: Posed, x: np.ndarray) -> Iterator[Given]:
    """The decision, job by job: what a class gets is shared out evenly."""
    for (at, until_h), amount in zip(posed.columns, x.tolist(), strict=False):
        if amount < _MIN_SHARE:
            continue
        mine, its, kind, _, _ = posed.sharing.columns[at]
        pairs = _pairs(posed, mine, its)
        for job, other in pairs:
            each = amount / len(pairs)
            yield Given(
                job=job,
                device=posed.sharing.kinds[kind],
                share=each if posed.unit == "share" else None,
                hours=each if posed.unit == "hours" else None,
                with_=other,
                until_h=until_h,
            )


def _pairs(posed: Posed, mine: int, its: int) -> list[tuple[JobId, JobId | None]]:
    """The jobs of a class, alone, or with each of another class."""
    jobs = posed.sharing.mix.jobs
    names = [jobs[at].name for at in posed.sharing.classes[mine]]
    if its < 0:
        return [(name, None) for name in names]
    if mine == its:
        return [(one, other) for at, one in enumerate(names) for other in names[at + 1 :]]
    return [(one, jobs[at].name) for one in names for at in posed.sharing.classes[its]]


def _vector(posed: Posed, decision: Sequence[Given]) -> np.ndarray:
    """The variables of a program, each job a class of its own, that a decision stands for."""
    column_of = {}
    for number, (at, until_h) in enumerate(posed.columns):
        mine, its, kind, _, _ = posed.sharing.columns[at]
        ((job, other),) = _pairs(posed, mine, its)
        column_of[frozenset({job, other}), posed.sharing.kinds[kind], until_h] = number
    x = np.zeros(len(posed.columns))
    for one in decision:
        key = frozenset({one.job, one.with_}), one.device, one.until_h
        if key not in column_of:
            raise MismatchError(f"job {one.job} is given {one.device}, which it cannot use")
        x[column_of[key]] += (one.share if posed.unit == "share" else one.hours) or 0.0
    return x


def _throughputs(posed: Posed, x: np.ndarray) -> dict[JobId, float]:
    """Steps a second of each job; in a plan by hours, on average till the last deadline."""
    spent = np.zeros(len(posed.sharing.columns))
    for (at, _), amount in zip(posed.columns, x.tolist(), strict=False):
        spent[at] += amount
    whole = max((until for _, until in posed.columns if until is not None), default=1.0)
    rates = posed.sharing.rates @ spent / whole
    jobs = posed.sharing.mix.jobs
    return {jobs[at].name: float(rates[number]) for number, ats in enumerate(posed.sharing.classes) for at in ats}


def _certificate(posed: Posed, found: Optimum) -> Certificate:
    return Certificate(
        kind="search" if found.duals is None else "duals",
        bound=posed.value_of(found.bound),
        gap=found.gap,
        duals=dict(_duals(posed, found)),
    )


def _duals(posed: Posed, found: Optimum) -> Iterator[tuple[str, float]]:
    """The dual values of the program in which each job is a class of its own: of what a class needs, each has its part."""
    for row, value in zip(posed.rows, found.duals.tolist() if found.duals is not None else (), strict=False):
        if value > 0 and row.what == "devices":
            yield _name(posed, row), value
        elif value > 0:
            jobs = posed.sharing.classes[row.number]
            for at in jobs:
                yield _name(posed, row, at), value / (len(jobs) if row.what == "needs" else 1)


def _name(posed: Posed, row: Row, job: int | None = None) -> str:
    """Name of a constraint, of one job of the class."""
    until = f" until {row.until_h:g} h" if row.until_h is not None else ""
    if row.what == "devices":
        return f"devices {posed.sharing.kinds[row.number]}{until}"
    at = posed.sharing.classes[row.number][0] if job is None else job
    return f"{row.what} {posed.sharing.mix.jobs[at].name}{until}"


def _worth(posed: Posed, found: Optimum) -> dict[str, float]:
    """By how much the objective changes with one device more of each scarce type, to first order."""
    if found.duals is None:
        return {}
    worth: dict[str, float] = {}
    now = posed.value_of(found.value)
    for row, dual in zip(posed.rows, found.duals.tolist(), strict=True):
        if row.what == "devices" and dual > 0:
            more = dual * (1.0 if posed.unit == "share" else _length_h(posed, row))
            kind = posed.sharing.kinds[row.number]
            worth[kind] = worth.get(kind, 0.0) + posed.value_of(found.value + more) - now
    return worth


def _length_h(posed: Posed, row: Row) -> float:
    ends = sorted({end for _, end in posed.columns if end is not None})
    assert row.until_h is not None
    return row.until_h - max((end for end in ends if end < row.until_h), default=0.0)


def _baselines(mix: Mix, objective: Objective) -> dict[str, float]:
    """The objective where every job gets its share of all types alike, and where the policy takes all types for equal."""
    if objective == "cost":
        return {}
    posed = pose(mix, objective, merged=False)
    alike = np.zeros(len(posed.columns))
    asked = max(sum(job.scale_factor for job in mix.jobs), sum(mix.cluster.values()))
    for number, (at, _) in enumerate(posed.columns):
        _, its, kind, _, _ = posed.sharing.columns[at]
        alike[number] = 0.0 if its >= 0 else mix.cluster[posed.sharing.kinds[kind]] / asked
    blind = solve(pose(_blind(mix), objective, merged=False).program).x[: len(alike)]
    return {
        "every type alike": posed.value_of(_gain(posed, alike)),
        "heterogeneity-agnostic": posed.value_of(_gain(posed, blind)),
    }


def _gain(posed: Posed, x: np.ndarray) -> float:
    return _multiple(posed, x) if len(posed.program.gain) > len(x) else float(posed.program.gain @ x)


def _blind(mix: Mix) -> Mix:
    """The mix to one who takes all types for equal: Gavel's heterogeneity-agnostic policies."""
    jobs = []
    for job in mix.jobs:
        rates = {kind: 1.0 for kind, rate in job.throughput_steps_per_s.items() if rate}
        pairs = tuple(
            Together(
                with_=pair.with_,
                throughput_steps_per_s={
                    kind: (0.5, 0.5) for kind, both in pair.throughput_steps_per_s.items() if all(both)
                },
            )
            for pair in job.together
        )
        jobs.append(msgspec.structs.replace(job, throughput_steps_per_s=rates, together=pairs))
    return msgspec.structs.replace(mix, jobs=tuple(jobs))


def _warnings(mix: Mix, given: Sequence[Given]) -> Iterator[str]:
    needed = {job.name: job.scale_factor for job in mix.jobs}
    for one in given:
        if needed[one.job] > mix.cluster[one.device]:
            yield (
                f"job {one.job} holds {needed[one.job]} devices at once, and there are {mix.cluster[one.device]} of "
                f"{one.device}: that share is of time alone, as Gavel counts"
            )


def _not_modelled(objective: Objective, *, whole: bool) -> tuple[str, ...]:
    always = ["throughputs that depend on which devices a job gets together", "jobs that come or end on the way"]
    switching = [] if whole else ["what it takes a job to change devices"]
    rounding = ["whole devices: shares are of time"] if not whole and objective != "cost" else []
    return (*always, *switching, *rounding)
