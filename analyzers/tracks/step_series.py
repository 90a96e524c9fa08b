"""Series over the steps of the job, one number a step, for tools that plot series."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.diagnosis import diagnose
from esprof.analyzers.finding import ACTIVITIES
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.analyzers.views.breakdown import shares_of_steps
from esprof.core.types import NS_PER_MS, NS_PER_S, Ns
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.pricing import MAX_ERROR_PCT
from esprof.run.run import Run, RunWarning

_PREFIX = "esprof/"
"""Plotting tools put series with the same prefix in one section."""


@dataclass(frozen=True)
class StepFigures:
    """What is known of one step."""

    step: int
    end_ns: Ns
    """When the last rank ended it, ns since the epoch."""
    figures: Mapping[str, float]
    """Name of the series -> its value in this step. Series without a value are left out."""


@dataclass(frozen=True)
class StepSeries:
    """Series over all steps that all ranks have."""

    start_ns: Ns
    """When the first step began, ns since the epoch; 0 without steps."""
    steps: np.ndarray
    """Numbers of the steps, ascending, int64[steps]."""
    end_ns: np.ndarray
    """When the last rank ended each, ns since the epoch, int64[steps]."""
    series: Mapping[str, np.ndarray]
    """Name of each series -> its values, NaN where unknown, float64[steps] (docs/how-to/export.md)."""
    verdict: str
    """That of `esprof diagnose`; empty if redacted, since it may name functions."""
    warnings: tuple[RunWarning, ...]

    @classmethod
    def of(cls, run: Run, max_error_pct: float = MAX_ERROR_PCT, *, redact: bool = False) -> "StepSeries":
        """The series of a run: shares of a step for the steps that are replayed, the rest for every step.

        Raises InputError where windows were recorded that cannot be replayed (`Replayed.of`).
        """
        is_recorded = any(len(run.events(rank)) for rank in run.ranks)
        replayed = Replayed.of(run, max_error_pct=max_error_pct) if is_recorded else None
        job = JobSteps(replayed.run if replayed else run)
        steps = job.on_all_ranks
        series = _of_all_steps(job, steps) | (_shares(replayed, steps) if replayed else {})
        starts, took = job.over_ranks(steps, "start_ns"), job.over_ranks(steps, "dur_ns")
        return cls(
            start_ns=int(starts[:, 0].max()) if len(steps) else 0,
            steps=steps,
            end_ns=(starts + took).max(axis=0),
            series={_PREFIX + name: values for name, values in series.items() if not np.isnan(values).all()},
            verdict="" if redact else diagnose(replayed or run).verdict,
            warnings=replayed.warnings if replayed else run.warnings,
        )

    def by_step(self) -> Iterator[StepFigures]:
        """The figures of each step."""
        for at, (step, end_ns) in enumerate(zip(self.steps.tolist(), self.end_ns.tolist(), strict=True)):
            values = {name: float(values[at]) for name, values in self.series.items()}
            known = {name: round(value, 4) for name, value in values.items() if not np.isnan(value)}
            yield StepFigures(step, end_ns, known)


def _of_all_steps(job: JobSteps, steps: np.ndarray) -> dict[str, np.ndarray]:
    """Series that need no replay, by name without prefix."""
    took_ns = np.where((took := job.durations_ns(steps)) > 0, took, np.nan)
    own_ns, waits_ns = (job.over_ranks(steps, column) for column in ("dur_ns", "loader_wait_ns"))
    is_plain = [job.rows(rank, steps).matches("phase", "plain".__eq__) for rank in job.run.ranks]
    found = {"step_time_ms": took_ns / NS_PER_MS, "is_profiled": (~np.all(is_plain, axis=0)).astype(float)}
    for amount in ("samples", "tokens"):
        counts = job.over_ranks(steps, amount)
        found[f"{amount}_per_s"] = np.where((counts > 0).all(axis=0), counts.sum(axis=0), np.nan) * NS_PER_S / took_ns
    shares = 100 * waits_ns / np.maximum(own_ns, 1)
    return found | _over_ranks("loader_wait", np.where((waits_ns >= 0).all(axis=0), shares, np.nan))


def _shares(replayed: Replayed, steps: np.ndarray) -> dict[str, np.ndarray]:
    """Share of each activity in the steps that are replayed, by name without prefix."""
    of_ranks = np.stack(list(shares_of_steps(replayed).values()))
    pct = 100 * of_ranks / np.maximum(of_ranks.sum(axis=-1, keepdims=True), 1)
    of_all = np.full((len(of_ranks), len(steps), len(ACTIVITIES)), np.nan)
    steady = np.array(replayed.steps.steady)
    is_known = np.isin(steady, steps)
    of_all[:, np.searchsorted(steps, steady[is_known])] = pct[:, is_known]
    found: dict[str, np.ndarray] = {}
    for at, activity in enumerate(ACTIVITIES):
        found |= _over_ranks(activity, of_all[:, :, at])
    return found


def _over_ranks(name: str, pct: np.ndarray) -> dict[str, np.ndarray]:
    """Mean and maximum over ranks of float64[ranks, steps]."""
    return {f"{name}_pct": pct.mean(axis=0), f"{name}_pct_max": pct.max(axis=0)}
