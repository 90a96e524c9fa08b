"""Advise the interval of checkpoints from the saves that a job made.

Nothing is replayed: saves lie outside of windows. Their cost is measured on all steps of the run, and computed for other
intervals by the closed forms of `SaveCost`.
"""

import math

import msgspec
import numpy as np

from esprof.analyzers.advisors.checkpoint.answer import (
    MIN_CHANGE,
    CheckpointAdvice,
    MeanTime,
    SaveInterval,
    SavesMeasured,
)
from esprof.analyzers.advisors.job.est_answer import NotRecorded
from esprof.analyzers.advisors.job.planned import plan_of
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.steps.saves import MAX_OVERHEAD_PCT, MIN_CLEAN, MIN_SAVES, Saves
from esprof.core.errors import EsprofError
from esprof.core.plan import CheckpointBody, PlanEvidence, PlanPart, PlanParts, PlanPromise
from esprof.core.save_cost import Failures, SaveCost
from esprof.core.statistics import student_quantile
from esprof.core.types import us
from esprof.run.run import Run

_DRAWS = 4_000
"""Costs drawn for the interval of an overhead."""

_BACKGROUND_FACTOR = 2.0
"""By how much the overhead of saves in the background may be off, either way: one run differs from the next in what it
shares with the writing (docs/results/checkpoints.md)."""

_MIN_SHARE_IN_CALLS = 0.67
"""Least share of what a save costs that the functions that save take, below which the rest is pointed out."""


def advise_checkpoints(
    job: RecordedJob, *, max_overhead_pct: float = MAX_OVERHEAD_PCT, failures: Failures | None = None
) -> CheckpointAdvice:
    """Advise how many steps a job makes between two checkpoints.

    Raises NotRecorded if the job made too few saves, EsprofError if it saves in nearly every step.
    """
    saves = _recorded(job)
    cost = saves.mean_cost
    every = saves.every
    assert every is not None, "there are several saves"
    shortest = cost.shortest_within(max_overhead_pct / 100)
    best = None if failures is None else cost.best(failures)
    advised = max(shortest, best or 0)
    if abs(advised - every) <= MIN_CHANGE * every:
        advised = every
    of_interest = sorted({every, max(1, every // 2), 2 * every, shortest, advised} | ({best} if best else set()))
    drawn = _Drawn(saves)
    intervals = tuple(_interval(cost, drawn, one, failures) for one in of_interest)
    now, then = (next(one for one in intervals if one.every == k) for k in (every, advised))
    advice = CheckpointAdvice(
        objective="overhead" if failures is None else "waste",
        measured=_measured(saves, every),
        bound_pct=max_overhead_pct,
        mtbf_us=None if failures is None else us(failures.mtbf_ns),
        restart_us=0.0 if failures is None else us(failures.restart_ns),
        advised=advised,
        shortest_within_bound=shortest,
        best=best,
        flat=None if failures is None else cost.flat_range(failures),
        intervals=intervals,
        gain_pct=100 * (1 - then.step_us / now.step_us),
        plan=None,
        warnings=tuple(_warnings(saves, then, max_overhead_pct)),
    )
    return advice if advised == every else _with_plan(advice, job.run, then)


def _recorded(job: RecordedJob) -> Saves:
    """The saves of a run, if they are enough."""
    saves, path = job.saves, job.run.path
    if saves is None:
        raise NotRecorded(
            "has no saves by torch.save, torch.distributed.checkpoint, safetensors.torch or ElasticTrainer",
            path=path,
            remedy="Record steps in which the job saves, or mark its function with esprof.stage('save').",
        )
    if saves.is_always_written:
        raise EsprofError(
            "writes a save in nearly every step, so that the cost of one is unknown",
            path=path,
            remedy="Record the job while it saves less often.",
        )
    if len(saves.clean_ns) < MIN_CLEAN:
        raise EsprofError(
            f"has only {len(saves.clean_ns)} steps without a save, of which {MIN_CLEAN} are needed",
            path=path,
            remedy="Record the job while it saves less often.",
        )
    if not saves.is_enough:
        raise NotRecorded(
            f"has {len(saves.stops_ns)} saves in steps without profiler, of which {MIN_SAVES} are needed",
            path=path,
            remedy="Record more steps.",
        )
    return saves


class _Drawn:
    """Costs drawn from what is known of the mean of a number of further saves: Student's t around the mean, as wide as the
    scatter of recorded and further saves makes it."""

    def __init__(self, saves: Saves) -> None:
        self._saves = saves
        self._steps = max(1, len(saves.begin)) * (saves.every or 1)
        self._cost = saves.mean_cost
        self._draws = np.random.default_rng(0).standard_t(max(1, len(saves.stops_ns) - 1), (3, _DRAWS))

    def overheads(self, every: int) -> np.ndarray:
        """Overheads of a run as long as the recorded one that saves every so many steps, float64[draws]."""
        further = max(1, self._steps // every)
        stops = _drawn(self._saves.stops_ns, further, self._draws[0])
        writes = _drawn(self._saves.writes_ns, further, self._draws[1])
        beside = self._saves.beside_ns
        slows = self._cost.slows_ns + _width(beside, len(beside) or 1) * self._draws[2] * (self._cost.slows_ns > 0)
        costs = zip(stops.tolist(), writes.tolist(), np.maximum(0.0, slows).tolist(), strict=True)
        return np.array(
            [
                SaveCost(step_ns=self._cost.step_ns, stops_ns=stop, writes_ns=write, slows_ns=slow).overhead(every)
                for stop, write, slow in costs
            ]
        )


def _width(values: np.ndarray, further: int) -> float:
    """Standard error of the difference between the mean of `values` and that of `further` more."""
    if len(values) < 2:
        return 0.0
    return float(np.std(values, ddof=1)) * math.sqrt(1 / len(values) + 1 / further)


def _drawn(values: np.ndarray, further: int, draws: np.ndarray) -> np.ndarray:
    """Means of `further` more values, float64[draws]; zeros if there are no values."""
    if not len(values):
        return np.zeros(len(draws))
    found: np.ndarray = np.maximum(0.0, values.mean() + _width(values, further) * draws)
    return found


def _interval(cost: SaveCost, drawn: _Drawn, every: int, failures: Failures | None) -> SaveInterval:
    low, high = np.quantile(drawn.overheads(every), (0.025, 0.975)).tolist()
    if cost.writes_ns:
        low, high = low / _BACKGROUND_FACTOR, high * _BACKGROUND_FACTOR
    overhead = cost.overhead(every)
    return SaveInterval(
        every=every,
        overhead_pct=100 * overhead,
        low_pct=100 * low,
        high_pct=100 * high,
        step_us=us(cost.step_ns * (1 + overhead)),
        worst_loss_us=us(cost.worst_loss_ns(every)),
        waste_pct=None if failures is None else 100 * cost.waste(every, failures),
    )


def _measured(saves: Saves, every: int) -> SavesMeasured:
    slower, margin = saves.slower_ns
    return SavesMeasured(
        names=saves.names,
        count=len(saves.begin),
        every=every,
        step_us=us(float(saves.clean_ns.mean())),
        stops=_mean(saves.stops_ns),
        calls_us=us(float(saves.calls_ns.mean())),
        writes=_mean(saves.writes_ns) if len(saves.writes_ns) else None,
        staging_us=us(float(saves.staging_ns.mean())) if len(saves.staging_ns) else None,
        slows=None
        if not len(saves.beside_ns)
        else MeanTime(
            mean_us=us(slower), low_us=us(slower - margin), high_us=us(slower + margin), count=len(saves.beside_ns)
        ),
    )


def _mean(values: np.ndarray) -> MeanTime:
    count = len(values)
    margin = student_quantile(count - 1) * _width(values, count) if count > 1 else 0.0
    mean = float(values.mean())
    return MeanTime(mean_us=us(mean), low_us=us(max(0.0, mean - margin)), high_us=us(mean + margin), count=count)


def _warnings(saves: Saves, advised: SaveInterval, bound_pct: float) -> list[str]:
    found = []
    stops, calls = float(saves.stops_ns.mean()), float(saves.calls_ns.mean())
    if calls < _MIN_SHARE_IN_CALLS * stops:
        found.append(
            f"only {100 * calls / stops:.0f} % of what a save costs is spent in the functions that save: the job may "
            "also do something else in these steps, such as validation"
        )
    if advised.high_pct > bound_pct * (1 + MIN_CHANGE):
        found.append(
            f"saves differ so much that their overhead may reach {advised.high_pct:.1f} %; more of them would tell"
        )
    return found


def _with_plan(advice: CheckpointAdvice, run: Run, then: SaveInterval) -> CheckpointAdvice:
    step = advice.measured.step_us
    promise = PlanPromise(
        step_us=then.step_us,
        low_us=step * (1 + then.low_pct / 100),
        high_us=step * (1 + then.high_pct / 100),
        baselines_us={"now": advice.of(advice.measured.every).step_us, "no saves": step},
    )
    section = PlanPart(
        applies="live",
        changes_bits=False,
        evidence=PlanEvidence(run=str(run.path), replay_error_pct=None),
        predicted=promise,
        body=CheckpointBody(every=advice.advised),
    )
    return msgspec.structs.replace(advice, plan=plan_of(run, PlanParts(checkpoint=section)))
