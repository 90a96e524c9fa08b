"""How far off replay is on one run, and the interval in which the price of a scenario lies for that."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.core.statistics import least_of_events, mean_margin
from esprof.core.types import Ns
from esprof.replay.answer import Prediction
from esprof.replay.dfg import Dfg
from esprof.replay.engine.timeline import replay, strict
from esprof.replay.whatif.error.held_out import beyond_scatter, mean_error, predict
from esprof.replay.whatif.error.model_errors import BUSY_SHARE_OF_CPUS, JobClass, model_error, underestimate
from esprof.replay.whatif.host.host_cpus import least_ns
from esprof.replay.whatif.loading.loader_evidence import has_unseen_workers
from esprof.run.run import Run

MIN_EVENT_SHARE = 0.01
"""Share of a step above which what a single step saves counts as an event."""

MIN_EVENTS = 2
"""Number of events from which on they are known to recur."""


@dataclass(frozen=True)
class Interval:
    """Where a mean over steps should lie in 19 of 20 cases, ns."""

    low_ns: float
    high_ns: float


@dataclass(frozen=True)
class KnownError:
    """The error of replay on one run, and what scenarios may be off by for it. All errors are shares of a step.

    A scenario is off by chance, since steps scatter (`mean_margin`); by what replay is off on this very run (`of_run`); and
    by what changes of its kind were off where the truth is known (`model_error`).
    """

    run: Run
    dfg: Dfg
    steady_at: np.ndarray
    """Positions of the steady-state steps in `dfg.marks.steps`."""
    measured_ns: np.ndarray
    """Recorded duration of each steady-state step, ns."""
    progress_ns: np.ndarray
    """How far the GPUs got on in each of them, ns; 0 without a GPU."""

    @cached_property
    def strict(self) -> float:
        """Error of the steady-state steps' sum when residuals are dropped: what the graph alone cannot explain. Signed."""
        replayed = replay(strict(self.dfg)).step_ns()[self.steady_at]
        return float(replayed.sum() / self.measured_ns.sum() - 1)

    @cached_property
    def prediction(self) -> Prediction:
        """What durations fitted on half of the steady-state steps say of the other half."""
        return predict(self.dfg, self.steady_at, self.measured_ns)

    @cached_property
    def of_run(self) -> float:
        """Error known for this very run, never negative: of the replay without residuals, or of the mean of the steps that a
        fit has not seen, as far as the scatter of steps does not explain that, whichever is worse."""
        unseen = mean_error(self.prediction)
        if unseen is None:
            return abs(self.strict)
        fitted = len(self.prediction.fit_steps)
        seen, others = self.measured_ns[:fitted].tolist(), self.measured_ns[fitted:].tolist()
        return max(abs(self.strict), beyond_scatter(unseen, seen, others))

    @property
    def with_scatter(self) -> float | None:
        """`of_run`, with the part that the scatter of steps explains. None where too few steps were recorded to hold any
        back."""
        unseen = mean_error(self.prediction)
        return None if unseen is None else max(abs(self.strict), abs(unseen))

    @property
    def scatter(self) -> float | None:
        """Half the width of the 95 % interval of the mean steady-state step; None for one step."""
        if len(self.measured_ns) < 2:
            return None
        return _margin(self.measured_ns, self.progress_ns) / float(self.measured_ns.mean())

    def of_terms(self, terms: Iterable[str]) -> float:
        """How far the prediction of a scenario of terms of these names may be off, beside the scatter of steps."""
        return float(np.hypot(self.of_run, model_error(self.job_class, terms)))

    def interval(
        self, step_ns: np.ndarray, progress_ns: np.ndarray, terms: Iterable[str], sampled_ns: float = 0.0
    ) -> Interval:
        """Where the mean step of a scenario of these terms should lie, which predicts `step_ns` for the steady steps and
        `progress_ns` for their GPUs; `sampled_ns` is the margin of what the terms took from samples."""
        predicted = float(step_ns.mean())
        margin = _norm(_margin(step_ns, progress_ns), self.of_terms(terms) * self._longer_ns(step_ns), sampled_ns)
        return Interval(max(0.0, predicted - margin), predicted + margin)

    def saving_interval(
        self,
        step_ns: np.ndarray,
        progress_ns: np.ndarray,
        terms: Iterable[str],
        sampled_ns: float = 0.0,
        *,
        only_saves: bool = False,
    ) -> Interval:
        """Where the saving of such a scenario should lie; with `only_saves` no step can get longer by it.

        Steps before and after the change are the same ones: of a saving, only how it differs between them is scatter. If few
        steps make a saving that is never negative, their number tells more than Student's interval (`least_of_events`).
        """
        terms = [*terms]
        saving_ns = self.measured_ns - step_ns
        saving = float(saving_ns.mean())
        below_ns = above_ns = _margin(saving_ns, self.progress_ns - progress_ns)
        if only_saves:
            below_ns = min(above_ns, saving - self._least_ns(saving_ns))
        longer_ns, beyond = self._longer_ns(step_ns), np.hypot(self.of_run, underestimate(self.job_class, terms))
        below = _norm(below_ns, sampled_ns, self.of_terms(terms) * longer_ns)
        above = _norm(above_ns, sampled_ns, beyond * longer_ns)
        return Interval(saving - below, min(saving + above, float(self.measured_ns.mean())))

    def _least_ns(self, saving_ns: np.ndarray) -> float:
        """What a mean step saves at least, as far as chance goes, if no step can get longer, ns; 0 if it is one event."""
        least_event_ns = MIN_EVENT_SHARE * float(self.measured_ns.mean())
        return least_of_events(saving_ns, least_event_ns) if (saving_ns > least_event_ns).sum() >= MIN_EVENTS else 0.0

    def _longer_ns(self, step_ns: np.ndarray) -> float:
        """The mean step as recorded or as predicted, whichever is longer, ns: model errors are shares of it."""
        return max(float(self.measured_ns.mean()), float(step_ns.mean()))

    @cached_property
    def job_class(self) -> JobClass:
        """The class of job by which it is known how far predictions may be off."""
        if self.run.missing_ranks:
            return "partial"
        if self.dfg.has_gpu():
            return "gpu"
        steps = tuple(self.dfg.marks.steps[position] for position in self.steady_at)
        least = least_ns(self.run, steps)
        return "busy" if least is not None and least.mean() >= BUSY_SHARE_OF_CPUS * self.measured_ns.mean() else "cpu"

    def caveats(self, predicted_ns: Ns | float) -> Iterator[str]:
        """What the interval of a scenario that predicts steps of `predicted_ns` (mean, ns) cannot hold."""
        if len(self.steady_at) == 1:
            yield "one step only: scatter unknown"
        elif mean_error(self.prediction) is None:
            yield "too few steps for a held-out test: error on other steps unknown"
        if self._has_unseen_workers and predicted_ns < self.measured_ns.mean():
            yield "loader workers were not recorded: assumes that they keep up"

    @cached_property
    def _has_unseen_workers(self) -> bool:
        return has_unseen_workers(self.run, self.dfg)


def _norm(*errors: float) -> float:
    """The error of a sum with these independent errors."""
    return float(np.linalg.norm(errors))


def _margin(of_cpus: np.ndarray, of_gpus: np.ndarray) -> float:
    """Half the width of the 95 % interval of a mean over steps, ns, from the values of each step on CPUs and on GPUs.

    If a script waits for its GPU every few steps only, its CPUs are ahead in the others. Their steps are then short and
    long in turn, however steady the job is, and only the GPUs' progress shows how much the mean scatters.
    """
    margins = [mean_margin(of_cpus)]
    if of_gpus.any():
        margins.append(mean_margin(of_gpus))
    return min(margins)
