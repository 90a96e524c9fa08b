"""Prices of scenarios: each is one more replay, compared with the replay of the run as it was. There is no other way to the
price of a scenario: findings, `esprof replay` and reports all ask here."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby

import numpy as np

from esprof.core.types import us
from esprof.replay.answer import Prediction, WhatIf
from esprof.replay.dfg import Dfg, LaneKind
from esprof.replay.engine.batch import Batch
from esprof.replay.engine.timeline import StepEnds, Timeline, replay, strict
from esprof.replay.ranks.blame import Blame
from esprof.replay.whatif.error.margins import BUSY, beyond_scatter, mean_margin, model_error
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.graph.host_cpus import least_ns
from esprof.replay.whatif.graph.loaders import has_unseen_workers
from esprof.replay.whatif.graph.work import waits_for_device
from esprof.replay.whatif.predict import mean_error, predict
from esprof.replay.whatif.probed import ProbedTransfers, Slowing, undisturbed
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.speeds import sped_up
from esprof.replay.whatif.term import Edit, Term, TermPhase
from esprof.run.run import Run

MAX_ERROR_PCT = 10.0
"""A graph whose own error on the run is above this answers no what-if, unless the caller allows more."""

_CAUGHT_UP = 0.01
"""Share of a step that a GPU may lie further behind its CPU than as recorded, and count as no further behind."""

_NOTABLE = 0.01
"""Share of a step from which on it is told that a change was left out."""

_MOVES_TRANSFERS = ("network", "collective", "communication", "bucket_mb", "compress")
"""Terms that change how long transfers last or where they lie, and so what they cost the work beside them."""

_ROUNDS = 3
"""How often work and the transfers beside it are laid out anew: where transfers lie depends on the work, and the other way
round."""

_MOST_VALUES = 1 << 26
"""Most nodes times scenarios that are replayed side by side: each such pair takes eight bytes."""


@dataclass(frozen=True)
class Price:
    """What a scenario makes of the steady steps."""

    step_ns: np.ndarray
    """Predicted duration of each steady step, ns, float64[steps]."""
    saving_ns: float
    """By how much the mean steady step gets shorter, ns; negative if it gets longer."""
    notes: tuple[str, ...] = ()
    """What should be said of the scenario."""


@dataclass(frozen=True)
class Interval:
    """Where a mean step time should lie, ns."""

    low_ns: float
    high_ns: float


def apply(scenario: Scenario, terms: Sequence[Term]) -> Scenario:
    """`scenario` changed by all `terms` at once, in whatever order they come. Raises Declined where one has no evidence."""
    in_order = sorted(terms, key=lambda term: (term.kind.phase, term.kind.name))
    for phase, of_phase in groupby(in_order, key=lambda term: term.kind.phase):
        if phase is TermPhase.SPEED:
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
    steady_at: np.ndarray
    """Positions of the steady steps in `dfg.marks.steps`."""
    measured_ns: np.ndarray
    """Recorded duration of each steady step, ns."""
    max_error_pct: float = MAX_ERROR_PCT
    """Error known for this run, in per cent of a step, above which no scenario is priced."""
    executor: Executor | None = None
    """What runs the replays of several scenarios; None runs them in this thread."""
    _known: dict[tuple[str, ...], Price | Declined] = field(default_factory=dict, repr=False)
    """Price of each scenario that was asked for, by its terms in canonical spelling, sorted."""

    @cached_property
    def baseline(self) -> Timeline:
        return replay(self.dfg)

    @cached_property
    def blame(self) -> Blame:
        """Who delays the steady steps."""
        return Blame(self.dfg, self.steps)

    @cached_property
    def _base(self) -> np.ndarray:
        """Replayed duration (ns) of each steady step as recorded (`_cost`)."""
        return self._cost(self.baseline)

    @cached_property
    def strict_error(self) -> float:
        """Relative error of the steady steps' sum when residuals are dropped: what the graph alone cannot explain."""
        replayed = replay(strict(self.dfg)).step_ns()[self.steady_at]
        return float(replayed.sum() / self.measured_ns.sum() - 1)

    @cached_property
    def prediction(self) -> Prediction:
        """What durations fitted on half of the steady steps say of the other half."""
        return predict(self.dfg, self.steady_at, self.measured_ns)

    @cached_property
    def error(self) -> float:
        """Relative error known for this very run, never negative: of the replay without residuals, or of the mean of the
        steps that a fit has not seen, as far as the scatter of steps does not explain that, whichever is worse."""
        unseen = mean_error(self.prediction)
        if unseen is None:
            return abs(self.strict_error)
        fitted = len(self.prediction.fit_steps)
        seen, others = self.measured_ns[:fitted].tolist(), self.measured_ns[fitted:].tolist()
        return max(abs(self.strict_error), beyond_scatter(unseen, seen, others))

    @property
    def known_error(self) -> float | None:
        """How far off replay is on this very run: on its steps without residuals, or on steps that a fit has not seen,
        whichever is worse, relative. None where too few steps were recorded to hold any back."""
        unseen = mean_error(self.prediction)
        return None if unseen is None else max(abs(self.strict_error), abs(unseen))

    @cached_property
    def too_far_off(self) -> str | None:
        """Why nothing is priced on this run: its `error` is above `max_error_pct`; None where it is not."""
        if 100 * self.error <= self.max_error_pct:
            return None
        return (
            f"replay is {100 * self.error:.1f} % off on this very run, more than the {self.max_error_pct:g} % allowed"
        )

    @property
    def steps(self) -> tuple[int, ...]:
        """Numbers of the steady steps."""
        return tuple(self.dfg.marks.steps[position] for position in self.steady_at)

    @property
    def step_ns(self) -> float:
        """Mean measured duration of the steady steps, ns."""
        return float(self.measured_ns.mean())

    @property
    def scatter(self) -> float | None:
        """Half the width of the 95 % interval of the mean steady step, as a share of it; None for one step."""
        return mean_margin(self.measured_ns) / self.step_ns if len(self.measured_ns) > 1 else None

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
        keys = [tuple(sorted(term.canonical for term in terms)) for terms in asked]
        new = {key: terms for key, terms in zip(keys, asked, strict=True) if key not in self._known}
        made = {key: self._made(terms) for key, terms in new.items()}
        self._known.update({key: reason for key, reason in made.items() if isinstance(reason, Declined)})
        scenarios = {key: scenario for key, scenario in made.items() if isinstance(scenario, Scenario)}
        replays = self._replayed([scenario.dfg for scenario in scenarios.values()])
        for (key, scenario), ends in zip(scenarios.items(), replays, strict=True):
            self._known[key] = self._priced(scenario, ends)
        return [self._known[key] for key in keys]

    def price_edited(self, dfg: Dfg) -> Price:
        """The price of a change that no term spells: of `dfg`, a graph made by hand with `edits`."""
        return self._priced(Scenario(self.run, self.blame, dfg), replay(dfg))

    @property
    def without_slowing(self) -> Dfg:
        """The graph with CPU work as long as it would be without transfers beside it; as it is, where that is not known."""
        return self.dfg if self._slowing is None else self._undisturbed

    def price_slowed(self, dfg: Dfg, taken_ns: np.ndarray) -> Price:
        """The price of a change of `without_slowing` that no term spells; `taken_ns` is as in `Scenario`."""
        scenario = Scenario(self.run, self.blame, dfg, taken_ns=taken_ns)
        if self._slowing is not None:
            scenario = self._slowed(scenario)
        return self._priced(scenario, replay(scenario.dfg))

    def saving_ns(self, spec: str) -> float | None:
        """By how much the mean steady step gets shorter, ns; negative if longer, None where the scenario is declined."""
        (price,) = self.prices([spec])
        return None if isinstance(price, Declined) else price.saving_ns

    def answers(self, specs: Sequence[str]) -> list[WhatIf]:
        """Answer scenarios. Raises UsageError for a spec that is no scenario."""
        return [self._answer(spec, price) for spec, price in zip(specs, self.prices(specs), strict=True)]

    def _answer(self, spec: str, price: Price | Declined) -> WhatIf:
        if isinstance(price, Declined):
            return WhatIf(spec=spec, answered=False, reason=str(price))
        predicted = float(price.step_ns.mean())
        terms = [term.kind.name for term in parse(spec)]
        model, interval = self._model_margin(terms, predicted), self.interval(price, terms)
        # Steps before and after the change are the same ones: of a gain, only how it differs between them is scatter.
        gain = float(np.hypot(mean_margin(self.measured_ns - price.step_ns), model))
        return WhatIf(
            spec=spec,
            answered=True,
            predicted_us=us(predicted),
            speedup=round(self.step_ns / predicted, 4) if predicted else None,
            low_us=us(interval.low_ns),
            high_us=us(interval.high_ns),
            saving_us=us(price.saving_ns),
            saving_low_us=us(price.saving_ns - gain),
            saving_high_us=us(price.saving_ns + gain),
            note="; ".join([*price.notes, *self._caveats(predicted)]) or None,
        )

    def interval(self, price: Price, terms: Iterable[str]) -> "Interval":
        """Where the mean step of a scenario of terms of these names should lie, in 19 of 20 cases."""
        predicted = float(price.step_ns.mean())
        margin = float(np.hypot(mean_margin(price.step_ns), self._model_margin(terms, predicted)))
        return Interval(max(0.0, predicted - margin), predicted + margin)

    def prediction_error(self, terms: Iterable[str]) -> float:
        """How far the prediction of a scenario of terms of these names may be off, as a share of a step."""
        return float(np.hypot(self.error, model_error(self._class, terms)))

    @cached_property
    def _class(self) -> str:
        """The class of job by which it is known how far predictions may be off (`MODEL_ERROR`)."""
        if self.run.missing_ranks:
            return "partial"
        if self.dfg.has_gpu():
            return "gpu"
        least = least_ns(self.run, self.steps)
        return "busy" if least is not None and least.mean() >= BUSY * self.measured_ns.mean() else "cpu"

    def _model_margin(self, terms: Iterable[str], predicted_ns: float) -> float:
        """How far the prediction may be off for what the graph does not hold, ns: known of this run, and of such changes."""
        return self.prediction_error(terms) * max(self.step_ns, predicted_ns)

    def _made(self, terms: tuple[Term, ...]) -> Scenario | Declined:
        try:
            only_mends = all(term.kind.phase is TermPhase.MEND for term in terms)
            if self._slowing is None or not any(term.kind.name in _MOVES_TRANSFERS for term in terms):
                return apply(Scenario(self.run, self.blame, self.dfg, only_mends=only_mends), terms)
            return self._slowed(apply(Scenario(self.run, self.blame, self._undisturbed, only_mends=only_mends), terms))
        except Declined as reason:
            return reason

    @cached_property
    def _slowing(self) -> Slowing | None:
        """By how much transfers slow down the work beside them; None where that was not measured."""
        return Slowing.of(self.run) if ProbedTransfers.of(self.run) is not None else None

    @cached_property
    def _undisturbed(self) -> Dfg:
        """The graph with CPU work as long as it would be without transfers beside it."""
        assert self._slowing is not None, "asked only where it is known"
        return replace(self.dfg, dur_ns=undisturbed(self.dfg, self._slowing.slowed_ns(self.baseline)))

    def _slowed(self, scenario: Scenario) -> Scenario:
        """A scenario made of the undisturbed graph, its CPU work slowed by the transfers that are beside it now."""
        assert self._slowing is not None, "asked only where it is known"
        alone = scenario.dfg
        # Work that got faster loses as much less to the transfers.
        pace = alone.dur_ns / np.maximum(self._undisturbed.dur_ns, 1) if scenario.has_recorded_nodes else 1.0
        dfg = alone
        for _ in range(_ROUNDS):
            slowed = self._slowing.slowed_ns(replay(dfg), scenario.taken_ns) * pace
            dfg = replace(alone, dur_ns=alone.dur_ns + np.rint(slowed).astype(np.int64))
        return replace(scenario, dfg=dfg)

    def _priced(self, scenario: Scenario, ends: StepEnds) -> Price:
        """The price of a scenario from its replay: each steady step as measured, scaled by how its replay changes.

        Where no node takes longer, its residual included, no step does in the long run. A longer mean then only says that
        the steps before the steady ones gained more than these, and counts as no change; so does a shorter mean where no
        node takes less. Ranks that would lose by working like their peers stay as they are.
        """
        steps: np.ndarray = self.measured_ns * (self._cost(ends, scenario.least_ns) / self._base)
        if self._is_border_effect(scenario, steps):
            if abs(steps.mean() - self.step_ns) > _NOTABLE * self.step_ns:
                scenario = scenario.noted(
                    "what changes lies before the steady steps: in the long run they stay as they are"
                )
            steps = self.measured_ns.astype(np.float64)
        if scenario.only_mends and steps.mean() > self.step_ns:
            steps = self.measured_ns.astype(np.float64)
            scenario = scenario.noted("the steps would take no less")
        return Price(steps, self.step_ns - float(steps.mean()), scenario.notes)

    def _is_border_effect(self, scenario: Scenario, steps: np.ndarray) -> bool:
        """Whether `steps` (ns) got longer though `scenario` lets nothing take longer, or shorter though nothing takes less.

        Without some of the edges, or with a bound that is no longer than the steps were, nothing takes longer either.
        """
        if not scenario.has_recorded_nodes:
            return False
        longer = _longer(self.dfg, scenario.dfg)
        if steps.mean() > self.step_ns:
            is_bound = scenario.least_ns is not None and (scenario.least_ns > self.baseline.step_ns()).any()
            return not is_bound and bool((longer <= 0).all())
        return scenario.only_changes_times and bool((longer >= 0).all())

    def _replayed(self, dfgs: Sequence[Dfg]) -> list[StepEnds]:
        """What a replay of each graph tells of its steps.

        Graphs that differ from the recorded one in times alone are replayed side by side, where there are several.
        """
        share_out = self.executor.map if self.executor is not None else map
        alike = [number for number, dfg in enumerate(dfgs) if dfg.pred_idx is self.dfg.pred_idx]
        at_once = max(1, _MOST_VALUES // self.dfg.nodes)
        groups = [alike[first : first + at_once] for first in range(0, len(alike), at_once)] if len(alike) > 1 else []
        side_by_side = {number for group in groups for number in group}
        rest = [number for number in range(len(dfgs)) if number not in side_by_side]
        found: dict[int, StepEnds] = dict(zip(rest, share_out(replay, [dfgs[number] for number in rest]), strict=True))
        longer = [np.stack([_longer(self.dfg, dfgs[number]) for number in group], axis=1) for group in groups]
        for group, columns in zip(
            groups, share_out(partial(self._batch.ends_after, self._observed), longer), strict=True
        ):
            for number, end in zip(group, columns.T, strict=True):
                end_ns = np.zeros(self.dfg.nodes, np.int64)
                end_ns[self._observed] = end
                found[number] = StepEnds(dfg=dfgs[number], end_ns=end_ns)
        return [found[number] for number in range(len(dfgs))]

    @cached_property
    def _batch(self) -> Batch:
        return Batch(self.dfg)

    @cached_property
    def _observed(self) -> np.ndarray:
        """Ids of the nodes whose ends tell the steps' durations (`_cost`), ascending."""
        borders = np.union1d(self.dfg.marks.first, self.dfg.marks.last)
        return np.union1d(borders, np.flatnonzero(self.dfg.on(LaneKind.STREAM)))

    def _caveats(self, predicted_ns: float) -> Iterator[str]:
        """What the interval of a prediction cannot hold."""
        if self._untold:
            yield self._untold
        if self._has_unseen_workers and predicted_ns < self.step_ns:
            yield "the loader's workers were not recorded: they are taken to keep up"

    @cached_property
    def _has_unseen_workers(self) -> bool:
        return has_unseen_workers(self.run, self.dfg)

    @cached_property
    def _untold(self) -> str | None:
        """Which error the interval should hold and cannot, since too few steps were recorded; None where it holds all."""
        if len(self.steady_at) == 1:
            return "one step: its spread is unknown"
        too_few = mean_error(self.prediction) is None
        return "too few steps: the error of unseen ones is unknown" if too_few else None

    def _cost(self, ends: StepEnds, least_ns: np.ndarray | None = None) -> np.ndarray:
        """Replayed duration (ns) of each steady step, no shorter than `least_ns`.

        On average the steps are not shorter than what the GPUs need either, but for the backlog that they build up as
        recorded: a job that never waits for its GPU leaves its steps before the GPU is done with them (docs/replay.md §3).
        """
        steps = ends.step_ns()[self.steady_at]
        behind = self._behind_ns(ends)
        if least_ns is not None:
            steps = np.maximum(steps, least_ns[self.steady_at])
        lengths: np.ndarray = np.maximum(steps + behind / len(steps), 1)
        return lengths

    def _behind_ns(self, ends: StepEnds) -> float:
        """How much further the GPUs fall behind the CPUs over the steady steps than they would with the backlog that they
        build up as recorded, ns.

        That backlog is work, and takes longer where the work does. 0 where the GPUs catch up in between, since a CPU waits
        for them: then they fall behind no further. Where an edit lets no CPU wait for its GPU any more, none catches up.
        """
        progress, backlog = self._progress_ns(ends)
        usual_progress, usual_backlog = self._usual_progress_ns
        allowed = np.maximum(usual_backlog, 0) * progress / np.maximum(usual_progress, 1)
        more: np.ndarray = backlog - allowed
        nobody_waits = ends.dfg.pred_idx is not self.dfg.pred_idx and not waits_for_device(ends.dfg).any()
        is_behind = more > _CAUGHT_UP * self.step_ns
        return float(more[-1]) if (is_behind[-1] if nobody_waits else is_behind.all()) else 0.0

    @cached_property
    def _usual_progress_ns(self) -> tuple[np.ndarray, np.ndarray]:
        """`_progress_ns` of the run as recorded."""
        return self._progress_ns(self.baseline)

    def _progress_ns(self, ends: StepEnds) -> tuple[np.ndarray, np.ndarray]:
        """(how far the GPUs get on, how far they fall behind the CPUs) from the first steady step to the end of each, ns,
        float64[steps]. 0 without a GPU."""
        progress = ends.gpu_progress_ns()[self.steady_at].astype(np.float64)
        steps = ends.step_ns()[self.steady_at] if progress.any() else 0
        return np.cumsum(progress), np.cumsum(progress - steps)


def _longer(recorded: Dfg, changed: Dfg) -> np.ndarray:
    """By how much each node takes longer in `changed` than in `recorded`, its residual included, ns, float64[N]."""
    longer: np.ndarray = (changed.dur_ns + changed.residual_ns - recorded.dur_ns - recorded.residual_ns).astype(
        np.float64
    )
    return longer


def what_if(run: Run, dfg: Dfg, scenarios: Sequence[str]) -> list[WhatIf]:
    """Answer each scenario on `dfg`, all of whose steps count as steady. Raises UsageError for what is no scenario."""
    timeline = replay(dfg)
    pricer = Pricer(run, dfg, np.arange(len(dfg.marks.steps)), timeline.step_ns())
    return pricer.answers(scenarios)
