"""Answers to what-if questions: each scenario is one more replay, compared with the replay of the run as it was."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.replay.answer import WhatIf
from esprof.replay.dfg import Dfg
from esprof.replay.grammar import parse
from esprof.replay.scenario import Declined, Durations, apply
from esprof.replay.timeline import Timeline, replay, strict_residuals
from esprof.trace.run import Run
from esprof.types import us


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
        return self._cost(Durations(self.dfg.dur_ns, self.dfg.residual_ns))

    @cached_property
    def strict_error(self) -> float:
        """Relative error of the steady steps' sum when residuals are dropped: what the graph alone cannot explain."""
        strict = replay(self.dfg, residual_ns=strict_residuals(self.dfg)).step_ns()[self.kept]
        return float(strict.sum() / self.measured_ns.sum() - 1)

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the steady steps."""
        return tuple(self.dfg.marks.steps[position] for position in self.kept)

    @property
    def step_ns(self) -> float:
        """Mean measured steady step."""
        return float(self.measured_ns.mean())

    def price(self, durations: Durations) -> np.ndarray:
        """Predicted duration (ns) of each steady step: measured, scaled by how replay changes.

        Where no node takes longer, no step does in the long run: a longer mean then only says that the steps before these
        gained more than they did, so it counts as no change; and the other way round.
        """
        steps: np.ndarray = self.measured_ns * (self._cost(durations) / self._base)
        change = durations.dur_ns - self.dfg.dur_ns
        against = (change <= 0).all() if steps.mean() > self.step_ns else (change >= 0).all()
        return self.measured_ns.astype(np.float64) if against else steps

    def saving_ns(self, durations: Durations) -> float:
        """Mean time that a steady step gains; negative if it loses."""
        return self.step_ns - float(self.price(durations).mean())

    def whole_window(self, durations: Durations) -> np.ndarray:
        """Replayed duration (ns) of every step of the graph, the outliers among them."""
        return replay(self.dfg, durations.dur_ns, durations.residual_ns).step_ns()

    def answer(self, spec: str) -> WhatIf:
        """Answer one scenario. Raises UsageError for a spec that is no scenario."""
        terms = parse(spec)
        try:
            durations = apply(self.run, self.dfg, terms, self.steps)
        except Declined as reason:
            return WhatIf(spec=spec, answered=False, reason=str(reason))
        steps = self.price(durations)
        predicted, margin = float(steps.mean()), self._margin(steps)
        note = durations.note
        if len(steps) == 1:
            note = "; ".join(filter(None, [note, "one step: its spread is unknown"]))
        return WhatIf(
            spec=spec,
            answered=True,
            predicted_us=us(predicted),
            speedup=round(self.step_ns / predicted, 4) if predicted else None,
            low_us=us(max(0.0, predicted - margin)),
            high_us=us(predicted + margin),
            note=note,
        )

    def _cost(self, durations: Durations) -> np.ndarray:
        """Replayed duration (ns) of each steady step, no shorter than its busiest stream needs, and no shorter on average
        than the GPUs take to get on, beyond the backlog that they build up as it is."""
        timeline = replay(self.dfg, durations.dur_ns, durations.residual_ns)
        steps = np.maximum(timeline.step_ns(), timeline.busiest_stream_ns(durations.dur_ns))[self.kept]
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
        """Two standard errors of the mean over steps, and the graph's own error, added as independent."""
        spread = float(steps.std(ddof=1) / np.sqrt(len(steps))) if len(steps) > 1 else 0.0
        return 2 * float(np.hypot(spread, self.strict_error * steps.mean() / 2))


def what_if(run: Run, dfg: Dfg, scenarios: Sequence[str]) -> list[WhatIf]:
    """Answer each scenario on `dfg`, all of whose steps count."""
    timeline = replay(dfg)
    oracle = Oracle(run, dfg, np.arange(len(dfg.marks.steps)), timeline.step_ns())
    return [oracle.answer(spec) for spec in scenarios]
