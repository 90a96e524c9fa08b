"""Prices of scenarios: each is one more replay, compared with the replay of the run as it was. There is no other way to a
price: findings, `esprof replay` and reports all ask here."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby

import numpy as np

from esprof.replay.answer import Prediction, WhatIf
from esprof.replay.dfg import Dfg
from esprof.replay.engine.batch import Batch
from esprof.replay.engine.timeline import Timeline, replay, strict
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.predict import mean_error, predict
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.speeds import sped_up
from esprof.replay.whatif.term import Edit, Phase, Term
from esprof.trace.run import Run
from esprof.types import us

MAX_ERROR_PCT = 10.0
"""A graph whose own error on the run is above this answers no what-if, unless the caller allows more."""

CARRIED_OUT = 0.05
"""Relative error that what-ifs had when they were carried out, at the 90th percentile (docs/accuracy.md): how unseen steps
come out says nothing of how well a change is modelled, so no interval of a change is narrower."""

_MOST_VALUES = 1 << 26
"""Nodes times scenarios that are replayed side by side: each takes eight bytes."""


@dataclass(frozen=True)
class Price:
    """What a scenario makes of the steady steps."""

    step_ns: np.ndarray
    """Predicted duration of each, float64."""
    saving_ns: float
    """What their mean gains; negative if it loses."""
    notes: tuple[str, ...] = ()
    """What should be said of the scenario."""


def apply(scenario: Scenario, terms: Sequence[Term]) -> Scenario:
    """`scenario` changed by all `terms` at once, in whatever order they come. Raises Declined."""
    in_order = sorted(terms, key=lambda term: (term.kind.phase, term.kind.name))
    for phase, of_phase in groupby(in_order, key=lambda term: term.kind.phase):
        if phase is Phase.SPEED:
            scenario = sped_up(scenario, tuple(of_phase))
            continue
        for kind, of_kind in groupby(of_phase, key=lambda term: term.kind):
            assert isinstance(kind.effect, Edit), "all but speed-ups are edits"
            scenario = kind.effect.apply(scenario, tuple(of_kind))
    return scenario


@dataclass(frozen=True)
class Pricer:
    """Prices scenarios on one graph, each once."""

    run: Run
    dfg: Dfg
    kept: np.ndarray
    """Positions of the steady steps in `dfg.marks.steps`."""
    measured_ns: np.ndarray
    """Recorded duration of each of them."""
    executor: Executor | None = None
    """Where the replays of several scenarios run; None runs them here."""
    _known: dict[tuple[str, ...], Price | Declined] = field(default_factory=dict, repr=False)

    @cached_property
    def baseline(self) -> Timeline:
        return replay(self.dfg)

    @cached_property
    def _base(self) -> np.ndarray:
        return self._cost(self.baseline)

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

    def price(self, spec: str) -> Price:
        """The price of one scenario. Raises Declined where the run lacks its evidence, UsageError where it is none."""
        (price,) = self.prices([spec])
        if isinstance(price, Declined):
            raise price
        return price

    def prices(self, specs: Iterable[str]) -> list[Price | Declined]:
        """The prices of several scenarios, or why they have none. What was priced before is not replayed again.

        Raises UsageError for what is no scenario.
        """
        asked = [parse(spec) for spec in specs]
        keys = [tuple(sorted(term.canonical for term in terms)) for terms in asked]
        new = {key: terms for key, terms in zip(keys, asked, strict=True) if key not in self._known}
        made = {key: self._made(terms) for key, terms in new.items()}
        self._known.update({key: reason for key, reason in made.items() if isinstance(reason, Declined)})
        scenarios = {key: scenario for key, scenario in made.items() if isinstance(scenario, Scenario)}
        timelines = self._replayed([scenario.dfg for scenario in scenarios.values()])
        for (key, scenario), timeline in zip(scenarios.items(), timelines, strict=True):
            self._known[key] = self._priced(scenario, timeline)
        return [self._known[key] for key in keys]

    def price_edited(self, dfg: Dfg) -> Price:
        """The price of a graph that was edited by hand (`edits`): of a change that no term spells."""
        return self._priced(Scenario(self.run, self.dfg, self.steps, dfg), replay(dfg))

    def saving_ns(self, spec: str) -> float | None:
        """Mean time that a steady step gains; negative if it loses, None where the scenario is declined."""
        (price,) = self.prices([spec])
        return None if isinstance(price, Declined) else price.saving_ns

    def answers(self, specs: Sequence[str], max_error_pct: float = MAX_ERROR_PCT) -> list[WhatIf]:
        """Answer scenarios; decline all where the error known for this run is above `max_error_pct`, in per cent of a step.

        Raises UsageError for a spec that is no scenario.
        """
        for spec in specs:
            parse(spec)
        if specs and 100 * self.error > max_error_pct:
            known = (
                f"replay is {100 * self.error:.1f} % off on this very run, more than the {max_error_pct:g} % allowed"
            )
            return [WhatIf(spec=spec, answered=False, reason=known) for spec in specs]
        return [self._answer(spec, price) for spec, price in zip(specs, self.prices(specs), strict=True)]

    def _answer(self, spec: str, price: Price | Declined) -> WhatIf:
        if isinstance(price, Declined):
            return WhatIf(spec=spec, answered=False, reason=str(price))
        predicted, margin = float(price.step_ns.mean()), self._margin(price.step_ns)
        return WhatIf(
            spec=spec,
            answered=True,
            predicted_us=us(predicted),
            speedup=round(self.step_ns / predicted, 4) if predicted else None,
            low_us=us(max(0.0, predicted - margin)),
            high_us=us(predicted + margin),
            note="; ".join([*price.notes, *([self._untold] if self._untold else [])]) or None,
        )

    def _made(self, terms: tuple[Term, ...]) -> Scenario | Declined:
        try:
            return apply(Scenario(self.run, self.dfg, self.steps, self.dfg), terms)
        except Declined as reason:
            return reason

    def _priced(self, scenario: Scenario, timeline: Timeline) -> Price:
        """Each steady step as it was measured, scaled by how replay changes.

        Where no node takes longer, no step does in the long run: a longer mean then only says that the steps before these
        gained more than they did, so it counts as no change; and the other way round.
        """
        steps: np.ndarray = self.measured_ns * (self._cost(timeline, scenario.least_ns) / self._base)
        if scenario.only_takes_other_times:
            change = scenario.dfg.dur_ns - self.dfg.dur_ns
            against = (change <= 0).all() if steps.mean() > self.step_ns else (change >= 0).all()
            steps = self.measured_ns.astype(np.float64) if against else steps
        return Price(steps, self.step_ns - float(steps.mean()), scenario.notes)

    def _replayed(self, dfgs: Sequence[Dfg]) -> list[Timeline]:
        """The replay of each graph, right at least where steps begin and end and on the GPUs' streams.

        Several that differ from the recorded graph in times alone are run side by side.
        """
        share_out = self.executor.map if self.executor is not None else map
        alike = [number for number, dfg in enumerate(dfgs) if dfg.pred_idx is self.dfg.pred_idx]
        at_once = max(1, _MOST_VALUES // self.dfg.nodes)
        groups = [alike[first : first + at_once] for first in range(0, len(alike), at_once)] if len(alike) > 1 else []
        side_by_side = {number for group in groups for number in group}
        rest = [number for number in range(len(dfgs)) if number not in side_by_side]
        found = dict(zip(rest, share_out(replay, [dfgs[number] for number in rest]), strict=True))
        longer = [np.stack([_longer(self.dfg, dfgs[number]) for number in group], axis=1) for group in groups]
        for group, ends in zip(groups, share_out(partial(self._batch.ends_after, self._observed), longer), strict=True):
            for number, end in zip(group, ends.T, strict=True):
                end_ns = np.zeros(self.dfg.nodes, np.int64)
                end_ns[self._observed] = end
                found[number] = Timeline(dfgs[number], end_ns, end_ns)
        return [found[number] for number in range(len(dfgs))]

    @cached_property
    def _batch(self) -> Batch:
        return Batch(self.dfg)

    @cached_property
    def _observed(self) -> np.ndarray:
        """The nodes whose ends tell the steps' durations (`_cost`)."""
        borders = np.union1d(self.dfg.marks.first, self.dfg.marks.last)
        return np.union1d(borders, np.flatnonzero(self.dfg.on("stream")))

    @cached_property
    def _untold(self) -> str | None:
        """What the interval should hold and cannot, for want of steps."""
        if len(self.kept) == 1:
            return "one step: its spread is unknown"
        too_few = mean_error(self.prediction) is None
        return "too few steps: the error of unseen ones is unknown" if too_few else None

    def _cost(self, timeline: Timeline, least_ns: np.ndarray | None = None) -> np.ndarray:
        """Replayed duration (ns) of each steady step, no shorter than `least_ns` or than its busiest stream needs, and no
        shorter on average than the GPUs take to get on, beyond the backlog that they build up as it is."""
        steps = np.maximum(timeline.step_ns(), timeline.busiest_stream_ns())[self.kept]
        if least_ns is not None:
            steps = np.maximum(steps, least_ns[self.kept])
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


def _longer(recorded: Dfg, changed: Dfg) -> np.ndarray:
    """By how much each node takes longer than it did, unexplained delays included, ns, float64[N]."""
    longer: np.ndarray = (changed.dur_ns + changed.residual_ns - recorded.dur_ns - recorded.residual_ns).astype(
        np.float64
    )
    return longer


def what_if(run: Run, dfg: Dfg, scenarios: Sequence[str]) -> list[WhatIf]:
    """Answer each scenario on `dfg`, all of whose steps count."""
    timeline = replay(dfg)
    pricer = Pricer(run, dfg, np.arange(len(dfg.marks.steps)), timeline.step_ns())
    return pricer.answers(scenarios)
