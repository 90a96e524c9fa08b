"""Prediction of steps that the fit has not seen: the honest measure of what durations alone can tell."""

import numpy as np

from esprof.replay.answer import HeldOut, Prediction
from esprof.replay.medians import medians_of
from esprof.replay.timeline import replay
from esprof.replay.whatif import Oracle
from esprof.types import us


def predict(oracle: Oracle) -> Prediction:
    """Fit durations on the first half of the steady steps, predict the others.

    Each node of a held-out step gets the median duration (and residual) of its counterparts, the nodes of the same rank,
    lane role, name and occurrence, in the fit steps; one without counterparts keeps the median of its name on that rank.
    """
    dfg, steps = oracle.dfg, np.array(oracle.dfg.marks.steps)[oracle.kept]
    half = len(steps) // 2
    fit, held = steps[:half], steps[half:]
    if not half:
        return Prediction(fit_steps=(), held_out=(), reason="needs at least two steady steps")
    fitted, wanted = np.isin(dfg.step, fit), np.isin(dfg.step, held)
    dur, residual = dfg.dur_ns.copy(), dfg.residual_ns.copy()
    exact = dfg.rank.astype(np.int64) * (int(dfg.key.max()) + 2) + dfg.key + 1
    by_name = dfg.rank.astype(np.int64) * len(dfg.names) + dfg.name
    found = np.zeros(dfg.nodes, bool)
    for identity in (exact, by_name):
        todo = wanted & ~found
        for values, source in ((dur, dfg.dur_ns), (residual, dfg.residual_ns)):
            medians, known = medians_of(identity[fitted], source[fitted], identity[todo])
            values[np.flatnonzero(todo)[known]] = medians[known]
        found[np.flatnonzero(todo)[known]] = True
    predicted = replay(dfg, dur, residual).step_ns()[oracle.kept]
    return Prediction(
        fit_steps=tuple(int(step) for step in fit),
        held_out=tuple(
            HeldOut(
                step=int(steps[i]),
                measured_us=us(float(oracle.measured_ns[i])),
                predicted_us=us(float(predicted[i])),
                error_pct=round(100 * (float(predicted[i]) / float(oracle.measured_ns[i]) - 1), 3),
            )
            for i in range(half, len(steps))
        ),
    )
