"""Estimated saving of a scenario, for findings, advisors, `esprof replay` and reports.

The input is a text such as `network=2x,straggler=fix`. The result is the saving of the mean step with its interval, or the
reason why there is none. `grammar.parse` reads the terms, `apply.apply` edits the graph, `timeline.replay` replays it,
`step_costs.StepCosts` compares its steps with those of the recorded graph, and `error.intervals.KnownError` estimates the
error. If a probe measured communication, `slowing.Slowing` models how it slows concurrent work.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from esprof.core.types import us
from esprof.replay.answer import WhatIf
from esprof.replay.dfg import Dfg
from esprof.replay.engine.timeline import Timeline, replay
from esprof.replay.ranks.blame import Blame
from esprof.replay.whatif.apply import apply
from esprof.replay.whatif.communication.slowing import Slowing
from esprof.replay.whatif.error.intervals import Interval, KnownError
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.graph.selections import waits_for_device
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.step_costs import StepCosts
from esprof.replay.whatif.term import Term, TermPhase
from esprof.run.run import Run

MAX_ERROR_PCT = 10.0
"""A graph whose own error on the run is above this answers no what-if, unless the caller allows more."""

_MIN_NOTED_SHARE = 0.01
"""Share of a step from which on a note says that a change was ignored."""

CHANGES_COMMUNICATION = ("network", "collective", "communication", "bucket_mb", "compress", "sync_every")
"""Terms that change the duration or time of communication, and so the slowdown of concurrent work."""


@dataclass(frozen=True)
class Price:
    """What a scenario makes of the steady-state steps."""

    step_ns: np.ndarray
    """Predicted duration of each steady-state step, ns, float64[steps]."""
    saving_ns: float
    """By how much the mean steady-state step gets shorter, ns; negative if it gets longer."""
    progress_ns: np.ndarray
    """How far the GPUs get on in each of these steps, ns, float64[steps]; 0 without a GPU (`Timeline.gpu_progress_ns`)."""
    notes: tuple[str, ...] = ()
    """What should be said of the scenario."""
    margin_ns: float = 0.0
    """See `Scenario.margin_ns`."""
    only_saves: bool = False
    """Whether no step can get longer: no node does, or ranks are only made to work like their peers."""


@dataclass(frozen=True)
class Pricer:
    """Prices scenarios on one graph, each once."""

    run: Run
    dfg: Dfg
    steady_at: np.ndarray
    """Positions of the steady-state steps in `dfg.marks.steps`."""
    measured_ns: np.ndarray
    """Recorded duration of each steady-state step, ns."""
    max_error_pct: float = MAX_ERROR_PCT
    """Error known for this run, in per cent of a step, above which no scenario is priced."""
    _known: dict[tuple[str, ...], Price | Declined] = field(default_factory=dict, repr=False)
    """Price of each scenario that was asked for, by its terms in canonical spelling, sorted."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the steady-state steps."""
        return tuple(self.dfg.marks.steps[position] for position in self.steady_at)

    @property
    def step_ns(self) -> float:
        """Mean measured duration of the steady-state steps, ns."""
        return float(self.measured_ns.mean())

    @cached_property
    def baseline(self) -> Timeline:
        """The replay of the graph as recorded."""
        return replay(self.dfg)

    @cached_property
    def blame(self) -> Blame:
        """Who delays the steady-state steps. Where waits may lack in the run, gaps count only if no rank's work is slow."""
        blame = self._compared()
        if not self.run.records_waits:
            by_work = replace(blame, gaps_wait=True)
            if by_work.slow_ranks:
                return by_work
        return blame

    def _compared(self) -> Blame:
        """The work of the ranks, compared."""
        return Blame(self.dfg, self.steps)

    @cached_property
    def error(self) -> KnownError:
        """How far prices may be off."""
        return KnownError(self.run, self.dfg, self.steady_at, self.measured_ns, self._progress_ns(self.baseline))

    @cached_property
    def too_far_off(self) -> str | None:
        """Why nothing is priced on this run: its error is above `max_error_pct`; None where it is not."""
        if 100 * self.error.of_run <= self.max_error_pct:
            return None
        found, allowed = f"{100 * self.error.of_run:.1f} %", f"{self.max_error_pct:g} %"
        return f"replay is off by {found} on average on this run; the limit is {allowed}"

    def answers(self, specs: Sequence[str]) -> list[WhatIf]:
        """Each scenario's price with its interval, or the reason why it has none. Raises UsageError for a spec that is no
        scenario."""
        return [self._answer(spec, price) for spec, price in zip(specs, self.prices(specs), strict=True)]

    def saving_ns(self, spec: str) -> float | None:
        """By how much the mean steady step gets shorter, ns; negative if longer, None where the scenario is declined."""
        (price,) = self.prices([spec])
        return None if isinstance(price, Declined) else price.saving_ns

    def price(self, spec: str) -> Price:
        """The price of one scenario. Raises Declined where the run lacks the evidence, UsageError if it is no scenario."""
        (price,) = self.prices([spec])
        if isinstance(price, Declined):
            raise price
        return price

    def prices(self, specs: Iterable[str]) -> list[Price | Declined]:
        """The price of each scenario, or why it has none. A scenario that was priced before is not replayed again.

        All are declined where the error known for this run is above `max_error_pct`. Raises UsageError for what is no
        scenario.
        """
        asked = [parse(spec) for spec in specs]
        if asked and self.too_far_off:
            return [Declined(self.too_far_off) for _ in asked]
        keys = [_key(terms) for terms in asked]
        with_parts = [part for terms in asked for part in (terms, *_alone(terms))]
        new = {_key(terms): terms for terms in with_parts if _key(terms) not in self._known}
        for key, scenario in self._made_all(new):
            self._known[key] = scenario if isinstance(scenario, Declined) else self._priced(scenario)
        for key, terms in new.items():
            self._known[key] = _no_worse(self._known[key], [self._known[_key(part)] for part in _alone(terms)])
        return [self._known[key] for key in keys]

    def timeline(self, spec: str) -> Timeline:
        """The replay of one scenario's graph. What bounds its steps outside the graph, such as the supply of batches, is
        part of the price only. Raises what `price` raises."""
        terms = parse(spec)
        if self.too_far_off:
            raise Declined(self.too_far_off)
        made = self._made(terms)
        if isinstance(made, Declined):
            raise made
        return replay(made.dfg)

    def price_edited(self, dfg: Dfg) -> Price:
        """The price of a change that no term spells: of `dfg`, a graph made by hand with `edits`."""
        return self._priced(Scenario(self.run, self.blame, dfg))

    @property
    def without_slowing(self) -> Dfg:
        """The graph with CPU work as long as without concurrent communication; unchanged where that is unknown."""
        return self.dfg if self._slowing is None else self._slowing.undisturbed

    def price_slowed(self, dfg: Dfg, taken_ns: np.ndarray) -> Price:
        """The price of a change of `without_slowing` that no term spells; `taken_ns` is as in `Scenario`."""
        scenario = Scenario(self.run, self.blame, dfg, taken_ns=taken_ns)
        if self._slowing is not None:
            scenario = self._slowing.slow_down(scenario)
        return self._priced(scenario)

    def _made_all(
        self, scenarios: Mapping[tuple[str, ...], tuple[Term, ...]]
    ) -> Iterable[tuple[tuple[str, ...], Scenario | Declined]]:
        """`_made` of the terms of each scenario, one after the other: the graph of each may be large."""
        return ((key, self._made(terms)) for key, terms in scenarios.items())

    def _made(self, terms: tuple[Term, ...]) -> Scenario | Declined:
        """The graph as these terms change it, or why they cannot."""
        slowing = self._slowing if any(term.kind.name in CHANGES_COMMUNICATION for term in terms) else None
        before = Scenario(
            self.run,
            self.blame,
            self.dfg if slowing is None else slowing.undisturbed,
            only_mends=all(term.kind.phase is TermPhase.MEND for term in terms),
        )
        try:
            after = apply(before, terms)
        except Declined as reason:
            return reason
        return after if slowing is None else slowing.slow_down(after)

    def _priced(self, scenario: Scenario) -> Price:
        """The price of a scenario from its replay: each steady-state step as measured, scaled by how its replay changes.

        Where no node takes longer, its residual included, no step does in the long run. A longer mean then only says that
        the steps before the steady ones gained more than these, and counts as no change; so does a shorter mean where no
        node takes less. Ranks that would lose by working like their peers stay as they are.
        """
        timeline = replay(scenario.dfg)
        steps: np.ndarray = self.measured_ns * self._costs.changed_by(
            timeline, scenario.least_ns, nobody_waits=self._nobody_waits(scenario)
        )
        if self._is_boundary_effect(scenario, steps):
            if abs(steps.mean() - self.step_ns) > _MIN_NOTED_SHARE * self.step_ns:
                scenario = scenario.noted(
                    "the change affects only work before the steady-state steps, so they keep their duration"
                )
            steps = self.measured_ns.astype(np.float64)
        if scenario.only_mends and steps.mean() > self.step_ns:
            steps = self.measured_ns.astype(np.float64)
            scenario = scenario.noted("steps would not get shorter")
        return Price(
            steps,
            self.step_ns - float(steps.mean()),
            self._progress_ns(timeline),
            scenario.notes,
            scenario.margin_ns,
            only_saves=scenario.only_mends or self._never_longer(scenario),
        )

    def _progress_ns(self, timeline: Timeline) -> np.ndarray:
        """How far the GPUs get on in each steady-state step, ns, float64[steps]."""
        progress: np.ndarray = timeline.gpu_progress_ns()[self.steady_at].astype(np.float64)
        return progress

    def _is_boundary_effect(self, scenario: Scenario, steps: np.ndarray) -> bool:
        """Whether `steps` (ns) got longer though `scenario` lets nothing take longer, or shorter though nothing takes
        less."""
        if steps.mean() > self.step_ns:
            return self._never_longer(scenario)
        return scenario.only_changes_times and scenario.never_shorter

    def _never_longer(self, scenario: Scenario) -> bool:
        """Whether nothing takes longer: without some of the edges, or with a bound that is no longer than the steps were,
        nothing does either."""
        is_bound = scenario.least_ns is not None and (scenario.least_ns > self.baseline.step_ns()).any()
        return not is_bound and scenario.never_longer

    def _nobody_waits(self, scenario: Scenario) -> bool:
        """Whether edges were cut, and no call waits for its device any more."""
        dfg = scenario.dfg
        return dfg.pred_idx is not self.dfg.pred_idx and not waits_for_device(dfg).any()

    def interval(self, price: Price, terms: Iterable[str]) -> Interval:
        """Where the mean step should lie that a price of a scenario of these terms predicts."""
        return self.error.interval(price.step_ns, price.progress_ns, terms, price.margin_ns)

    def _answer(self, spec: str, price: Price | Declined) -> WhatIf:
        if isinstance(price, Declined):
            return WhatIf(spec=spec, answered=False, reason=str(price))
        predicted = float(price.step_ns.mean())
        terms = [term.kind.name for term in parse(spec)]
        step = self.interval(price, terms)
        saving = self.error.saving_interval(
            price.step_ns, price.progress_ns, terms, price.margin_ns, only_saves=price.only_saves
        )
        return WhatIf(
            spec=spec,
            answered=True,
            predicted_us=us(predicted),
            speedup=round(self.step_ns / predicted, 4) if predicted else None,
            low_us=us(step.low_ns),
            high_us=us(step.high_ns),
            saving_us=us(price.saving_ns),
            saving_low_us=us(saving.low_ns),
            saving_high_us=us(saving.high_ns),
            note="; ".join([*price.notes, *self.error.caveats(predicted)]) or None,
        )

    @cached_property
    def _costs(self) -> StepCosts:
        return StepCosts(self.baseline, self.steady_at, self.step_ns)

    @cached_property
    def _slowing(self) -> Slowing | None:
        return Slowing.of(self.run, self.baseline)


def _key(terms: Iterable[Term]) -> tuple[str, ...]:
    return tuple(sorted(term.canonical for term in terms))


def _alone(terms: tuple[Term, ...]) -> list[tuple[Term, ...]]:
    """Each term of a scenario of several as a scenario of its own."""
    return [(term,) for term in terms] if len(terms) > 1 else []


def _no_worse(price: Price | Declined, parts: Sequence[Price | Declined]) -> Price | Declined:
    """The price of a scenario, which is no worse than that of any of its `parts` where none of them can make a step longer.

    Replay of a short window may find it worse: without a wait, its CPUs enter or leave it further ahead.
    """
    saving = [part for part in parts if isinstance(part, Price) and part.only_saves]
    if not isinstance(price, Price) or not saving or len(saving) < len(parts):
        return price
    best = max(saving, key=lambda part: part.saving_ns)
    return price if best.saving_ns <= price.saving_ns else replace(best, notes=price.notes)


def what_if(run: Run, dfg: Dfg, scenarios: Sequence[str]) -> list[WhatIf]:
    """Answer each scenario on `dfg`, all of whose steps count as steady. Raises UsageError for what is no scenario."""
    timeline = replay(dfg)
    pricer = Pricer(run, dfg, np.arange(len(dfg.marks.steps)), timeline.step_ns())
    return pricer.answers(scenarios)
