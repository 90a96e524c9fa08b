"""Prediction of steps that were held out from the fit: the error of the replay's durations."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from esprof.core.statistics import mean_margin, means_of
from esprof.core.types import us
from esprof.replay.answer import HeldOut, Prediction
from esprof.replay.dfg import Dfg
from esprof.replay.engine.timeline import replay

MIN_STEPS_TO_CALIBRATE = 3
"""Least number of fitted steps for a slope of their differences."""

MIN_STEPS_HELD_OUT = 2
"""Least number of held-out steps whose mean measures the model and not the scatter of steps."""


def predict(dfg: Dfg, steady_at: np.ndarray, measured_ns: np.ndarray) -> Prediction:
    """Fit durations on the first half of the steady-state steps, predict the others.

    `steady_at` are the positions of the steady-state steps in `dfg.marks.steps`, `measured_ns` their recorded durations, ns.
    """
    predicted = replay(fitted(dfg, steady_at, places(*first_arrivals(dfg)))).step_ns()[steady_at]
    return prediction_of(np.array(dfg.marks.steps)[steady_at], predicted, measured_ns)


def fitted(dfg: Dfg, steady_at: np.ndarray, place: np.ndarray) -> Dfg:
    """`dfg` with the durations that its nodes have on average in the first half of the steady-state steps.

    Each node gets the mean duration (and residual) of its counterparts in the fit steps, the nodes of the same rank, lane
    role, name and occurrence; a node without counterparts gets the mean of its name on that rank. Means are used because a
    step is a sum: the median of an operation that is preempted occasionally does not include the preemptions. `place` holds
    the `places` of collectives.
    """
    steps = np.array(dfg.marks.steps)[steady_at]
    fit_steps = steps[: len(steps) // 2]
    fit, wanted = np.isin(dfg.step, fit_steps), np.isin(dfg.step, steps)
    dur, residual = dfg.dur_ns.copy(), dfg.residual_ns.copy()
    # Key of rank and `dfg.key`; nodes of collectives get separate, higher numbers.
    exact = dfg.rank.astype(np.int64) * (int(dfg.key.max()) + 2) + dfg.key + 1
    in_collective = dfg.collective >= 0
    exact[in_collective] = int(exact.max()) + 1 + _collective_identity(dfg, place)[in_collective]
    by_name = dfg.rank.astype(np.int64) * len(dfg.names) + dfg.name
    times = np.stack([dfg.dur_ns[fit], dfg.residual_ns[fit]])
    todo = np.flatnonzero(wanted)
    for identity in (exact, by_name) if len(fit_steps) else ():
        means, known = means_of(identity[fit], times, identity[todo])
        dur[todo[known]], residual[todo[known]] = means[:, known]
        todo = todo[~known]
    return replace(dfg, dur_ns=dur, residual_ns=residual)


def prediction_of(steps: np.ndarray, replayed_ns: np.ndarray, measured_ns: np.ndarray) -> Prediction:
    """The prediction of the second half of `steps` from the durations (ns) of all of them in the replay of a `fitted` graph,
    calibrated by the measured first half (`_calibrated`)."""
    half = len(steps) // 2
    if not half:
        return Prediction(fit_steps=(), held_out=(), reason="needs at least two steady-state steps")
    predicted = _calibrated(replayed_ns, measured_ns[:half])
    return Prediction(
        fit_steps=tuple(steps[:half].tolist()),
        held_out=tuple(
            HeldOut(
                step=int(steps[i]),
                measured_us=us(float(measured_ns[i])),
                predicted_us=us(float(predicted[i])),
                error_pct=round(100 * (float(predicted[i]) / float(measured_ns[i]) - 1), 3),
            )
            for i in range(half, len(steps))
        ),
    )


def first_arrivals(dfg: Dfg) -> tuple[np.ndarray, np.ndarray]:
    """(recorded start of the first node of each collective, ns since `t0_ns`; its step), int64[collectives]. Of a
    collective without nodes in `dfg` the step is -1."""
    nodes = np.flatnonzero((dfg.collective >= 0) & (dfg.rank >= 0))
    count = int(dfg.collective.max(initial=-1)) + 1
    arrival, step = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    np.minimum.at(arrival, dfg.collective[nodes], dfg.recorded_ns[nodes])
    np.maximum.at(step, dfg.collective[nodes], dfg.step[nodes])
    return arrival, step


def places(arrival_ns: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Position of each collective among those of its step, in order of first arrival, int64[collectives]."""
    # Sorted by step and arrival, the position within the step is the overall position minus that of the step's first.
    order = np.lexsort((arrival_ns, step))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.searchsorted(step[order], step[order])
    return place


def _collective_identity(dfg: Dfg, place: np.ndarray) -> np.ndarray:
    """Key of each node that its counterparts in other steps share, int64[N]: rank, name, place of its collective.

    The lane does not count: which of several communication threads runs a collective is random.
    """
    rank = dfg.rank.astype(np.int64) + 1
    if not len(place):
        return rank
    count = int(place.max()) + 1  # In the graph of some ranks, places may exceed the number of collectives.
    identity: np.ndarray = (rank * len(dfg.names) + dfg.name) * count + place[np.maximum(dfg.collective, 0)]
    return identity


def _calibrated(replayed_ns: np.ndarray, measured_ns: np.ndarray) -> np.ndarray:
    """The replayed steps (ns), calibrated by the fitted ones, which are the first; `measured_ns` are their durations, ns.

    With mean durations, ranks wait less for the slowest one, and a hiccup of one fitted step affects all steps. The
    difference between the medians of the fitted steps, measured and replayed, corrects that. Differences between replayed
    steps are scaled by the least-squares slope of the fitted steps, from 0 to 1.
    """
    fitted = replayed_ns[: len(measured_ns)]
    apart, real = fitted - fitted.mean(), measured_ns - measured_ns.mean()
    slope = 1.0
    if len(fitted) >= MIN_STEPS_TO_CALIBRATE and apart.any():
        slope = float(np.clip((apart * real).sum() / (apart * apart).sum(), 0, 1))
    calibrated: np.ndarray = np.median(measured_ns) + slope * (replayed_ns - np.median(fitted))
    return calibrated


def mean_error(prediction: Prediction) -> float | None:
    """Signed relative error of the mean of the held-out steps; None for fewer than `MIN_STEPS_HELD_OUT`.

    What-ifs predict the mean, so the scatter of single steps is no error of the model.
    """
    if len(prediction.held_out) < MIN_STEPS_HELD_OUT:
        return None
    measured = sum(step.measured_us for step in prediction.held_out)
    return sum(step.predicted_us for step in prediction.held_out) / measured - 1


def beyond_scatter(relative_error: float, seen: Sequence[float], unseen: Sequence[float]) -> float:
    """Relative error of the mean of the `unseen` steps beyond what the scatter of steps explains, never negative.

    `seen` are the fitted durations, `unseen` the held-out ones, in the same unit.
    """
    together = np.array([*seen, *unseen], float)
    scatter = mean_margin(together) * np.sqrt(len(together)) * np.sqrt(1 / len(seen) + 1 / len(unseen))
    return max(0.0, abs(relative_error) - float(scatter / np.mean(unseen)))
