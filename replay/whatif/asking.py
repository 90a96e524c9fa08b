"""Answers to what-if questions: each scenario is one more replay, compared with the replay of the run as it was."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.replay.answer import Prediction, WhatIf
from esprof.replay.dfg import Dfg
from esprof.replay.engine.timeline import Timeline, replay, strict
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.predict import mean_error, predict
from esprof.replay.whatif.scenario import Declined, Scenario, apply
from esprof.trace.run import Run
from esprof.types import us

MAX_ERROR_PCT = 10.0
"""A graph whose own error on the run is above this answers no what-if, unless the caller allows more."""


CARRIED_OUT = 0.05
"""Relative error that what-ifs had when they were carried out, at the 90th percentile (docs/accuracy.md): how unseen steps
come out says nothing of how well a change is modelled, so no interval of a change is narrower."""


@dataclass(frozen=True)
class Oracle:
    """Prices scenarios on one graph. `kept` are the positions of the steady steps in `dfg.marks.steps`; `measured_ns` is
    the recorded duration of each of them."""

    run: Run
    dfg: Dfg
    kept: np.ndarray
    measured_ns: np.ndarray

    @cached_property
    def baseline(self) -> Timeline:
        return replay(self.dfg)

    @cached_property
    def _base(self) -> np.ndarray:
        return self._cost(Scenario(self.dfg))

    @cached_property
    def strict_error(self) -> float:
        """Relative error of the steady steps' sum when residuals are dropped: what the graph alone cannot explain."""
        replayed = replay(strict(self.dfg)).step_ns()[self.kept]
        return float(replayed.sum() / self.measured_ns.sum() - 1)

    @cached_property
    def prediction(self) -> Prediction:
        """What durations fitted on half of the steady steps say of the other half."""
        return predict(self.dfg, self.kept, self.measured_ns)

    @cached_property
    def error(self) -> float:
        """Relative error known for this very run, never negative: of the mean of the steps that a fit has not seen, or of
        the replay without residuals, whichever is worse."""
        return max(abs(self.strict_error), abs(mean_error(self.prediction) or 0.0))

    @property
    def known_error(self) -> float | None:
        """`error`, or None where too few steps were recorded to hold any back: nothing but self-replay is known then."""
        return None if mean_error(self.prediction) is None else self.error

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the steady steps."""
        return tuple(self.dfg.marks.steps[position] for position in self.kept)

    @property
    def step_ns(self) -> float:
        """Mean measured steady step."""
        return float(self.measured_ns.mean())

    def price(self, scenario: Scenario) -> np.ndarray:
        """Predicted duration (ns) of each steady step: measured, scaled by how replay changes.

        Where no node takes longer, no step does in the long run: a longer mean then only says that the steps before these
        gained more than they did, so it counts as no change; and the other way round.
        """
        steps: np.ndarray = self.measured_ns * (self._cost(scenario) / self._base)
        if scenario.least_ns is None and scenario.dfg.pred_idx is self.dfg.pred_idx:
            change = scenario.dfg.dur_ns - self.dfg.dur_ns
            against = (change <= 0).all() if steps.mean() > self.step_ns else (change >= 0).all()
            return self.measured_ns.astype(np.float64) if against else steps
        return steps

    def saving_ns(self, altered: Dfg) -> float:
        """Mean time that a steady step gains on this graph; negative if it loses."""
        return self.step_ns - float(self.price(Scenario(altered)).mean())

    def answer(self, spec: str, max_error_pct: float = MAX_ERROR_PCT) -> WhatIf:
        """Answer one scenario; decline where the error known for this run is above `max_error_pct`, in per cent of a step.

        Raises UsageError for a spec that is no scenario.
        """
        terms = parse(spec)
        try:
            if 100 * self.error > max_error_pct:
                raise Declined(
                    f"replay is {100 * self.error:.1f} % off on this very run, more than the {max_error_pct:g} % allowed"
                )
            scenario = apply(self.run, self.dfg, terms, self.steps)
        except Declined as reason:
            return WhatIf(spec=spec, answered=False, reason=str(reason))
        steps = self.price(scenario)
        predicted, margin = float(steps.mean()), self._margin(steps)
        return WhatIf(
            spec=spec,
            answered=True,
            predicted_us=us(predicted),
            speedup=round(self.step_ns / predicted, 4) if predicted else None,
            low_us=us(max(0.0, predicted - margin)),
            high_us=us(predicted + margin),
            note="; ".join(filter(None, [scenario.note, self._untold])) or None,
        )

    @cached_property
    def _untold(self) -> str | None:
        """What the interval should hold and cannot, for want of steps."""
        if len(self.kept) == 1:
            return "one step: its spread is unknown"
        too_few = mean_error(self.prediction) is None
        return "too few steps: the error of unseen ones is unknown" if too_few else None

    def _cost(self, scenario: Scenario) -> np.ndarray:
        """Replayed duration (ns) of each steady step, no shorter than its busiest stream needs, and no shorter on average
        than the GPUs take to get on, beyond the backlog that they build up as it is."""
        timeline = replay(scenario.dfg)
        steps = np.maximum(timeline.step_ns(), timeline.busiest_stream_ns())[self.kept]
        if scenario.least_ns is not None:
            steps = np.maximum(steps, scenario.least_ns[self.kept])
        behind = self._backlog_ns(timeline) - max(0.0, self._usual_backlog_ns)
        missing = behind - float((steps - timeline.step_ns()[self.kept]).sum())
        lengths: np.ndarray = np.maximum(steps + max(0.0, missing) / len(steps), 1)
        return lengths

    @cached_property
    def _usual_backlog_ns(self) -> float:
        return self._backlog_ns(self.baseline)

    def _backlog_ns(self, timeline: Timeline) -> float:
        """By how much the GPUs fall behind the CPUs over the steady steps, ns; 0 without a GPU."""
        progress = timeline.gpu_progress_ns()
        return float(progress[self.kept].sum() - timeline.step_ns()[self.kept].sum()) if progress.any() else 0.0

    def _margin(self, steps: np.ndarray) -> float:
        """Two standard errors of the mean over steps, and the error known for this run or for changes as such, whichever
        is more, added as independent."""
        spread = float(steps.std(ddof=1) / np.sqrt(len(steps))) if len(steps) > 1 else 0.0
        changed = not np.array_equal(steps, self.measured_ns)
        error = max(self.error, CARRIED_OUT if changed else 0.0)
        return 2 * float(np.hypot(spread, error * steps.mean() / 2))


def what_if(run: Run, dfg: Dfg, scenarios: Sequence[str]) -> list[WhatIf]:
    """Answer each scenario on `dfg`, all of whose steps count."""
    timeline = replay(dfg)
    oracle = Oracle(run, dfg, np.arange(len(dfg.marks.steps)), timeline.step_ns())
    return [oracle.answer(spec) for spec in scenarios]
