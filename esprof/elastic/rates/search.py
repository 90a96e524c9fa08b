"""`LearningRateSearch`: tries learning rates from the same state on the same batches, and trains with the best of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from esprof.core.errors import UsageError
from esprof.elastic.rates.forecast import MIN_STEPS, Forecast, forecast
from esprof.elastic.rates.rewind import Mark, mark, rewind, trial
from esprof.elastic.runtime.result import StepResult
from esprof.elastic.trainer import ElasticTrainer
from esprof.run.logs import JobEvent

_LONGEST = 8
"""Trials and stages double after each stage, up to this many times their first length (AutoLRS, Jin et al., ICLR 2021)."""

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class RateTrial:
    """Steps with one learning rate, which were undone."""

    rate: float
    losses: tuple[float, ...]
    """Loss of each step; the last one is not finite if the trial was stopped there."""
    forecast: Forecast | None
    """Loss at the end of the stage, if it goes on like this."""

    @property
    def score(self) -> float:
        """Mean loss of the later half of the steps; infinite for a loss that did not stay finite."""
        return float(np.mean(self.later)) if math.isfinite(self.losses[-1]) else math.inf

    @property
    def later(self) -> tuple[float, ...]:
        """Losses of the later half of the steps."""
        return self.losses[len(self.losses) // 2 :]


@dataclass(frozen=True)
class RateStage:
    """What was tried before some steps, and chosen for them."""

    step: int
    """Number of its first step."""
    rate: float
    """Learning rate chosen."""
    trials: tuple[RateTrial, ...]
    """One for each learning rate, the longest if there were several."""
    tried_steps: int
    """Steps of all trials, which were undone."""
    is_certain: bool
    """Whether no other rate is as good within the 95 % interval of the paired difference of losses."""


class LearningRateSearch:
    """Chooses the learning rate of an `ElasticTrainer` in stages.

    Before each stage every candidate trains for `trial_steps` steps from the same state on the same batches; the state in
    memory is then restored, with random numbers and loaders. The candidate with the least mean loss over the later half of
    its steps trains the stage. Candidates that differ from it by less than the noise of the paired losses are tried once
    more, for twice as long. Decisions depend on the losses of all ESTs alone, so that the bits of the training do not depend
    on the number of processes.

    Half of all steps are trials if `stage_steps` is `candidates` times `trial_steps`. All parameter groups keep the ratio of
    their rates. All ranks make the same calls.
    """

    def __init__(
        self,
        trainer: ElasticTrainer,
        *,
        low: float,
        high: float,
        candidates: int = 8,
        trial_steps: int = 50,
        stage_steps: int = 400,
    ) -> None:
        """Candidates are evenly spaced from `low` to `high` on a logarithmic scale.

        Raises UsageError for values out of range, and for a trainer with a scheduler, which sets rates itself, or with
        periodic checkpoints, which would hold trials.
        """
        if not 0 < low < high < math.inf:
            raise UsageError(f"learning rates from {low!r} to {high!r} are no range", remedy="Pass 0 < low < high.")
        if candidates < 2 or trial_steps < MIN_STEPS or stage_steps < trial_steps:
            raise UsageError(
                f"{candidates} candidates, {trial_steps} steps a trial and {stage_steps} a stage cannot be searched",
                remedy=f"Pass at least 2 candidates and {MIN_STEPS} trial_steps, and no fewer stage_steps.",
            )
        if trainer.state.schedulers:
            raise UsageError("the trainer has a scheduler", remedy="Leave it out: the search sets the learning rate.")
        if trainer.checkpoints is not None and trainer.checkpoints.every:
            raise UsageError(
                "the trainer writes checkpoints by itself, also during trials",
                remedy="Pass Checkpoint(FOLDER), and call save() between two results.",
            )
        self._trainer = trainer
        self._rates = tuple(np.geomspace(low, high, candidates).tolist())
        self._trial_steps, self._stage_steps = trial_steps, stage_steps
        groups = [group for optimizer in trainer.state.optimizers for group in optimizer.param_groups]
        self._ratios = [group["lr"] / groups[0]["lr"] for group in groups] if groups[0]["lr"] else [1.0] * len(groups)
        self.stages: tuple[RateStage, ...] = ()
        """The stages so far."""

    def fit(self, epochs: int) -> Iterator[StepResult]:
        """Train up to the end of epoch `epochs` - 1, one step at a time; steps of trials are not among them. Raises
        UsageError if the losses of all candidates become infinite."""
        end = epochs * self._trainer.order.steps_per_epoch
        while (left := end - self._trainer.next_step) > 0:
            longer = min(2 ** len(self.stages), _LONGEST)
            stage_steps = min(self._stage_steps * longer, left)
            if stage_steps >= self._trial_steps * longer:
                self._set_rate(self._search(self._trial_steps * longer, stage_steps).rate)
            for _ in range(stage_steps):
                yield self._trainer.step()
        self._trainer.flush()

    def _search(self, steps: int, stage_steps: int) -> RateStage:
        start = mark(self._trainer)
        trials = {rate: self._try(rate, steps, stage_steps, start) for rate in self._rates}
        tried = sum(len(one.losses) for one in trials.values())
        close = _close_to_best(list(trials.values()))
        if len(close) > 1 and 2 * steps <= stage_steps:
            for rate in close:
                trials[rate] = self._try(rate, 2 * steps, stage_steps, start)
                tried += len(trials[rate].losses)
            close = _close_to_best([trials[rate] for rate in close])
        if not close:
            raise UsageError(
                f"the loss became infinite with all learning rates from {self._rates[0]:g} to {self._rates[-1]:g}",
                remedy="Pass a lower `low`.",
            )
        # Machines may differ in the last bits of what they compute from the same losses.
        rate = float(self._trainer.agree(close[0]))
        stage = RateStage(start.step, rate, tuple(trials.values()), tried, len(close) == 1)
        self.stages = (*self.stages, stage)
        self._trainer._reporter.record(JobEvent(what="searched", step=start.step, reason=_text(stage)))
        return stage

    def _try(self, rate: float, steps: int, stage_steps: int, start: Mark) -> RateTrial:
        losses: list[float] = []
        with trial(self._trainer, start):
            self._set_rate(rate)
            while len(losses) < steps and all(map(math.isfinite, losses[-1:])):
                if self._trainer.is_leaving:
                    rewind(self._trainer, start)
                losses.append(self._trainer.step().loss)
        return RateTrial(rate, tuple(losses), forecast(losses, stage_steps))

    def _set_rate(self, rate: float) -> None:
        groups = (group for optimizer in self._trainer.state.optimizers for group in optimizer.param_groups)
        for group, ratio in zip(groups, self._ratios, strict=True):
            group["lr"] = rate * ratio


def _close_to_best(trials: Sequence[RateTrial]) -> list[float]:
    """Rates of the best trial and of those that are as good within the noise of the paired losses, the best one first; empty
    if no loss stayed finite."""
    best = min(trials, key=lambda one: one.score)
    if math.isinf(best.score):
        return []
    others = [one for one in trials if one is not best and math.isfinite(one.score)]
    return [best.rate, *(one.rate for one in others if _is_close(one, best))]


def _is_close(other: RateTrial, best: RateTrial) -> bool:
    """Whether the interval of the mean difference of losses on the same batches contains 0."""
    differences = np.subtract(other.later, best.later)
    error = float(stats.sem(differences))
    return bool(differences.mean() <= stats.t.ppf((1 + _CONFIDENCE) / 2, len(differences) - 1) * error)


def _text(stage: RateStage) -> str:
    """A stage in one line, for the history of the job."""
    tried = ", ".join(f"{one.rate:.3g}: {one.score:.4g}{_interval(one.forecast)}" for one in stage.trials)
    certain = "" if stage.is_certain else "; others are as good within the noise"
    return f"learning rate {stage.rate:.3g} after {stage.tried_steps} trial steps (mean loss by rate: {tried}){certain}"


def _interval(expected: Forecast | None) -> str:
    return "" if expected is None else f" (at the end {expected.low:.4g} to {expected.high:.4g})"
