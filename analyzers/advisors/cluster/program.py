"""Linear programs, and the proof that a solution is optimal."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp
from scipy.sparse import csr_array, vstack

from esprof.core.errors import EsprofError

TOLERANCE = 1e-9
"""Largest violation of a row, relative to its largest term."""

_MAX_PARTS = 500
"""Parts of a split search for a bound; each is a linear program."""

_MAX_OFF_INTEGER = 1e-6
"""Distance from an integer up to which a number is rounded to it."""

_SEARCH_S = 10.0
"""Time limit of an integer search; the best solution so far is returned with its bound."""


class Infeasible(EsprofError):
    """No solution meets all constraints."""


@dataclass(frozen=True)
class Program:
    """Maximise `gain @ x` subject to `rows @ x <= bounds` and x >= 0."""

    gain: np.ndarray
    """float64[variables]"""
    rows: csr_array
    """float64[constraints, variables]"""
    bounds: np.ndarray
    """float64[constraints]"""


@dataclass(frozen=True)
class Optimum:
    """A solution, and an upper bound of the gain of any solution."""

    x: np.ndarray
    duals: np.ndarray | None
    """Gain from one more unit of each bound, float64[constraints]; None for integer programs."""
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """Relative gap between the value and the bound."""
        return abs(self.bound - self.value) / max(abs(self.value), TOLERANCE)


@dataclass(frozen=True)
class OptimalityProof:
    """Proof from a solution and its dual values by weak duality: for duals y >= 0 with `y @ rows >= gain`, no feasible x
    gains more than `y @ bounds`."""

    violation: float
    """Largest violation of a row, relative to the row's terms; 0 for none."""
    dual_violation: float
    """Largest violation of dual feasibility, relative to the largest sum of a column's terms."""
    value: float
    bound: float

    @property
    def gap(self) -> float:
        return abs(self.bound - self.value) / max(abs(self.value), TOLERANCE)


def solve(program: Program) -> Optimum:
    """The optimum, by HiGHS. Raises Infeasible if there is none."""
    found = linprog(
        -program.gain,
        A_ub=program.rows,
        b_ub=program.bounds,
        method="highs-ipm" if program.rows.shape[1] > 2_000 else "highs-ds",
        options={"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE},
    )
    if found.status == 2:
        raise Infeasible("no answer meets all constraints")
    if found.status != 0:
        raise EsprofError(f"the linear program was not solved: {found.message}")
    x, duals = np.maximum(found.x, 0), np.maximum(-found.ineqlin.marginals, 0)
    return Optimum(x, duals, float(program.gain @ x), float(program.bounds @ duals))


def solve_integers(program: Program, is_integer: np.ndarray) -> Optimum:
    """The best x whose variables in the mask `is_integer`, bool[variables], are integers. Raises Infeasible."""
    found = milp(
        -program.gain,
        constraints=LinearConstraint(program.rows, ub=program.bounds),
        integrality=is_integer.astype(int),
        options={"time_limit": _SEARCH_S, "mip_rel_gap": 0.0},
    )
    if found.x is None and found.status == 2:
        raise Infeasible("no decision in integers meets all constraints")
    if found.x is None:
        raise EsprofError(f"no decision in integers was found within {_SEARCH_S:g} s: {found.message}")
    x = np.where(is_integer, np.rint(found.x), np.maximum(found.x, 0))
    return Optimum(x, None, float(program.gain @ x), max(float(program.gain @ x), -float(found.mip_dual_bound)))


def bound_in_integers(program: Program, reached: float) -> float:
    """An upper bound of the gain of all x in integers, if every such gain is an integer and `reached` is one of them.

    The search is split at the last fractional variable until no part can gain more than `reached`. The dual values of its
    linear program bound what a part can gain. A search that needs too many parts ends with the bound of those left.
    """
    parts, tried = [program], 0
    while parts and tried < _MAX_PARTS:
        part = parts.pop()
        tried += 1
        if (found := _relaxed(part)) is None or _whole(found.bound) <= reached:
            continue
        fractional = np.flatnonzero(np.abs(found.x - np.rint(found.x)) > _MAX_OFF_INTEGER)
        if not len(fractional):
            reached = _whole(found.bound)
            continue
        at = int(fractional[-1])
        row = np.zeros((1, len(found.x)))
        row[0, at] = 1
        below = float(np.floor(found.x[at]))
        parts += [_with_row(part, -row, -below - 1), _with_row(part, row, below)]
    return max([reached, *(_whole(found.bound) for part in parts if (found := _relaxed(part)) is not None)])


def _relaxed(program: Program) -> Optimum | None:
    """The optimum without regard to integers; None if there is none."""
    try:
        return solve(program)
    except Infeasible:
        return None


def _whole(gain: float) -> float:
    """The largest integer up to `gain`, which may be rounded."""
    return float(np.floor(gain + _MAX_OFF_INTEGER))


def _with_row(program: Program, row: np.ndarray, bound: float) -> Program:
    return Program(program.gain, vstack([program.rows, csr_array(row)], format="csr"), np.append(program.bounds, bound))


def prove(program: Program, x: np.ndarray, duals: np.ndarray) -> OptimalityProof:
    """Verify `x` and `duals` for this program."""
    beyond = program.rows @ x - program.bounds
    terms = abs(program.rows) @ np.abs(x) + np.abs(program.bounds)
    missing = program.gain - program.rows.T @ duals
    worth = abs(program.rows).T @ np.abs(duals) + np.abs(program.gain)
    return OptimalityProof(
        violation=max(_largest(beyond / np.maximum(terms, TOLERANCE)), _largest(-x)),
        dual_violation=max(_largest(missing), _largest(-duals)) / max(float(worth.max(initial=0)), TOLERANCE),
        value=float(program.gain @ x),
        bound=float(program.bounds @ duals),
    )


def _largest(values: np.ndarray) -> float:
    return max(0.0, float(values.max(initial=0.0)))
