"""Advice for a mix of jobs, with everything needed to verify it by arithmetic: inputs, decision, dual values."""

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
"""Largest violation of a proven decision, and its largest distance from the bound, relative."""


class Given(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Time that a job gets on a type of device."""

    job: JobId
    device: DeviceType
    share: float | None = None
    """Share of the job's time, from 0 to 1."""
    hours: float | None = None
    with_: JobId | None = msgspec.field(name="with", default=None)
    """The job that shares each of the devices."""
    until_h: float | None = None
    """End of the interval between two deadlines in which the hours lie."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """Proof of optimality: by weak duality the dual values, one per constraint, bound the value of every decision.

    A decision in integers has no dual values; its bound is that of the search.
    """

    kind: Literal["duals", "search"]
    bound: float
    """Bound of the value of all decisions, in the objective's unit: upper, or lower where less is better."""
    gap: float
    """Distance of the decision's value from the bound, relative."""
    duals: dict[str, float]


class MixAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that each of several jobs should get."""

    schema: Literal["esprof.advice/1"] = "esprof.advice/1"
    objective: Objective
    value: float
    decision: tuple[Given, ...]
    throughput_steps_per_s: dict[JobId, float]
    certificate: Certificate
    baselines: dict[str, float]
    """The objective's value under other decisions."""
    binding: dict[str, float]
    """Value of one more device of each scarce type, in the objective's unit, linear estimate."""
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...]
    frontier: tuple[Tradeoff, ...]
    """Objective `cost`: the cost of earlier deadlines."""
    break_even: dict[DeviceType, float]
    """Objective `cost`: price per hour below which an unused type would be used."""
    mix: Mix
    prices: Prices | None


def advise(mix: Mix, objective: Objective, prices: Prices | None = None, *, one_type: bool = False) -> MixAdvice:
    """Find the best decision. With `one_type`, each job runs on one type all the time, or not at all.

    Raises UsageError if the mix lacks a field that the objective needs, Infeasible if no decision meets all deadlines.
    """
    if one_type and objective == "cost":
        raise UsageError(
            "--whole assigns no hours, which --objective cost needs",
            remedy="Leave out --whole, or choose another objective.",
        )
    by_teams = objective == "fairness" and has_teams(mix) and not one_type
    posed = pose(mix, objective, prices, merged=not (one_type or by_teams))
    is_share = np.arange(len(posed.program.gain)) < len(posed.columns)
    found = solve_integers(posed.program, is_share) if one_type else solve(posed.program)
    if one_type and len(posed.program.gain) > len(posed.columns) and found.value < _MIN_SHARE:
        raise Infeasible("not all jobs can run at once if each stays on one type", remedy="Leave out --whole.")
    if by_teams:  # The minimum stays the same; `fill` raises the others further.
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
        not_modelled=_not_modelled(objective, one_type=one_type),
        frontier=tuple(frontier(mix, prices)) if objective == "cost" else (),
        break_even=break_even(posed, found) if objective == "cost" else {},
        mix=mix,
        prices=prices,
    )


def check(advice: MixAdvice) -> OptimalityProof:
    """Verify a decision by arithmetic, without a solver: it meets every constraint, its value is as stated, and its dual
    values prove that it is optimal. Raises MismatchError otherwise."""
    posed = pose(advice.mix, advice.objective, advice.prices, merged=False)
    if advice.certificate.kind != "duals":
        raise MismatchError(
            "a decision in integers has no dual values: it can only be checked by solving the problem again"
        )
    names = [_name(posed, row) for row in posed.rows]
    if unknown := set(advice.certificate.duals) - set(names):
        raise MismatchError(f"the certificate has an unknown constraint: {min(unknown)}")
    x = _vector(posed, advice.decision)
    if len(x) < len(
        posed.program.gain
    ):  # The last variable is the objective: the largest value that the decision allows.
        x = np.append(x, _multiple(posed, x))
    proof = prove(posed.program, x, np.array([advice.certificate.duals.get(name, 0.0) for name in names]))
    if len(posed.columns) < len(x) and proof.value < _MIN_SHARE:
        raise MismatchError("the decision gives a job no time")
    value = posed.value_of(proof.value)
    if abs(value - advice.value) > _MAX_GAP_PROVEN * abs(advice.value):
        raise MismatchError(f"the advice states the value {advice.value:.10g}, but it is {value:.10g}")
    for fault, amount in (
        ("the decision violates a constraint", proof.violation),
        ("the dual values are infeasible", proof.dual_violation),
        ("the dual values allow a better decision", proof.gap),
    ):
        if amount > _MAX_GAP_PROVEN:
            raise MismatchError(f"{fault}, by {amount:.2g} (relative)")
    return proof


def _multiple(posed: Posed, x: np.ndarray) -> float:
    """The largest value of the last variable with which `x` meets all constraints on it."""
    rows = posed.program.rows.tocsc()
    last = rows[:, [len(x)]].toarray().ravel()
    room = posed.program.bounds - rows[:, : len(x)] @ x
    return float((room[last > 0] / last[last > 0]).min())


def _given(posed: Posed, x: np.ndarray) -> Iterator[Given]:
    """The decision for each job: the jobs of a class share its time evenly."""
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
    """The jobs of class `mine`, each alone if `its` is negative, else paired with each job of class `its`."""
    jobs = posed.sharing.mix.jobs
    names = [jobs[at].name for at in posed.sharing.classes[mine]]
    if its < 0:
        return [(name, None) for name in names]
    if mine == its:
        return [(one, other) for at, one in enumerate(names) for other in names[at + 1 :]]
    return [(one, jobs[at].name) for one in names for at in posed.sharing.classes[its]]


def _vector(posed: Posed, decision: Sequence[Given]) -> np.ndarray:
    """The variables of a decision, in a program with one class per job."""
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
    """Steps per second of each job; for a decision in hours, the mean until the last deadline."""
    spent = np.zeros(len(posed.sharing.columns))
    for (at, _), amount in zip(posed.columns, x.tolist(), strict=False):
        spent[at] += amount
    horizon_h = max((until for _, until in posed.columns if until is not None), default=1.0)
    rates = posed.sharing.rates @ spent / horizon_h
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
    """The dual values of the program with one class per job: the jobs of a class divide its values for `needs`."""
    for row, value in zip(posed.rows, found.duals.tolist() if found.duals is not None else (), strict=False):
        if value > 0 and row.what == "devices":
            yield _name(posed, row), value
        elif value > 0:
            jobs = posed.sharing.classes[row.number]
            for at in jobs:
                yield _name(posed, row, at), value / (len(jobs) if row.what == "needs" else 1)


def _name(posed: Posed, row: Row, job: int | None = None) -> str:
    """Name of a constraint, for one job of a class."""
    until = f" until {row.until_h:g} h" if row.until_h is not None else ""
    if row.what == "devices":
        return f"devices {posed.sharing.kinds[row.number]}{until}"
    at = posed.sharing.classes[row.number][0] if job is None else job
    return f"{row.what} {posed.sharing.mix.jobs[at].name}{until}"


def _worth(posed: Posed, found: Optimum) -> dict[str, float]:
    """Change of the objective with one more device of each scarce type, linear estimate."""
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
    """The objective if every job gets the same share of each type, and if the policy ignores differences between types."""
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
    """The mix with equal throughputs on all types, as seen by Gavel's heterogeneity-agnostic policies."""
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
                f"job {one.job} needs {needed[one.job]} devices at once, but the cluster has {mix.cluster[one.device]} of "
                f"type {one.device}: its share counts time only, as in Gavel"
            )


def _not_modelled(objective: Objective, *, one_type: bool) -> tuple[str, ...]:
    always = ["throughputs that depend on the placement of a job's devices", "jobs that arrive or end in the meantime"]
    switching = [] if one_type else ["the cost of moving a job to other devices"]
    rounding = ["integer numbers of devices: shares are of time"] if not one_type and objective != "cost" else []
    return (*always, *switching, *rounding)
