"""`esprof replay` as a function: from a Run to its ReplayAnswer, and the pieces that diagnosis builds on."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from esprof.core import readable
from esprof.core.types import us
from esprof.replay.answer import (
    Coverage,
    CriticalPath,
    GraphSize,
    HostClockAnswer,
    RankShare,
    ReplayAnswer,
    StepLeftOut,
    StepTime,
    Timing,
    WhatIf,
)
from esprof.replay.building.build import Built, build_counted
from esprof.replay.cpu.cpu_time import NotRun, not_run, on_path_ns, warnings_of
from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import Piece, Timeline, class_totals, rank_totals, steady_path
from esprof.replay.ranks.blame import Blame
from esprof.replay.rules import ALL_RULES, Rules
from esprof.replay.steps import RecordedSteps, steps_of
from esprof.replay.warnings import warnings_of_replay
from esprof.replay.whatif.communication.saturation import with_limit
from esprof.replay.whatif.memory.answer import JobMemory, with_peak
from esprof.replay.whatif.pricing import MAX_ERROR_PCT, Pricer
from esprof.run.clocks.by_collectives import Clocks
from esprof.run.overhead import Overhead, overhead
from esprof.run.run import Run, RunWarning


@dataclass(frozen=True)
class Replayed:
    """A run, its graph, and its replay: what every analysis starts from."""

    run: Run
    built: Built
    steps: RecordedSteps
    measured_ns: np.ndarray
    """Recorded duration of each step of the graph (`steps.all`), ns, int64[steps]."""
    plain_ns: np.ndarray
    """Recorded duration of each step without profiler next to the window, ns; empty where they are too few."""
    pricer: Pricer
    path: tuple[Piece, ...]
    """Critical path over the steady-state steps."""
    not_run: tuple[NotRun, ...]
    """What did not run of the operations of ranks that compute on CPUs."""
    timing: Timing
    warnings: tuple[RunWarning, ...]

    @classmethod
    def of(
        cls, run: Run, read_s: float = 0.0, rules: Rules = ALL_RULES, max_error_pct: float = MAX_ERROR_PCT
    ) -> "Replayed":
        """Build and replay `run`. `read_s` is how long opening the run took; `rules` are those by which the graph is built.

        What-ifs are declined where replay's own error on the run is above `max_error_pct`.

        Raises InputError where the run has no graph (`build`).
        """
        started = time.perf_counter()
        steps = steps_of(run)
        run = steps.run
        built = build_counted(run, steps, rules=rules)
        built_at = time.perf_counter()
        measured, plain = durations(steps, built.clocks)
        steady_at = steps.steady_at
        pricer = Pricer(run, built.dfg, steady_at, measured[steady_at], max_error_pct)
        path = steady_path(pricer.baseline, steady_at)
        missing = not_run(run, built.dfg)
        replay_s = time.perf_counter() - built_at
        return cls(
            run=run,
            built=built,
            steps=steps,
            measured_ns=measured,
            plain_ns=plain,
            pricer=pricer,
            path=tuple(path),
            not_run=missing,
            timing=Timing(read=round(read_s, 4), build=round(built_at - started, 4), replay=round(replay_s, 4)),
            warnings=warnings_of_replay(steps, built) + warnings_of(missing, steady_at, pricer.step_ns),
        )

    @property
    def timeline(self) -> Timeline:
        return self.pricer.baseline

    @property
    def blame(self) -> Blame:
        """Who delays the steady-state steps."""
        return self.pricer.blame

    @property
    def graph(self) -> GraphSize:
        return GraphSize(nodes=self.built.dfg.nodes, edges=self.built.dfg.edges)

    @property
    def unprofiled_ns(self) -> float | None:
        """Median duration of the steps without profiler next to the window, ns; None where they are too few."""
        return float(np.median(self.plain_ns)) if len(self.plain_ns) else None

    @cached_property
    def overhead(self) -> Overhead | None:
        """By how much the median steady-state step is longer than the median plain one; None where unknown."""
        return overhead([self.pricer.measured_ns], self.plain_ns)

    @property
    def explained_pct(self) -> float:
        """Share of the critical path that is no residual, no contention, and no operation that did not run, in per cent."""
        return self.explained_of(self.path)

    def explained_of(self, path: Sequence[Piece]) -> float:
        """The same of another path through the replayed graph."""
        totals = class_totals(list(path))
        span = sum(totals.values())
        unexplained = totals[Cls.RESIDUAL.label] + totals[Cls.CONTENTION.label] + self.idle_ns(path)
        return float(100 * (1 - unexplained / span)) if span else 100.0

    def idle_ns(self, path: Sequence[Piece]) -> float:
        """Time on a path in operations that did not run, ns."""
        return on_path_ns(self.not_run, self.built.dfg, path)

    @property
    def error_pct(self) -> np.ndarray:
        """Error of each steady-state step, replayed with residuals, in per cent."""
        steady_at = self.pricer.steady_at
        errors: np.ndarray = 100 * (self.pricer.baseline.step_ns()[steady_at] / self.measured_ns[steady_at] - 1)
        return errors


def answer(of: Run | Replayed, what_if: Sequence[str] = ()) -> ReplayAnswer:
    """Everything that `esprof replay` answers about a run, which is built and replayed unless it is already.

    Raises InputError (`Replayed.of`), and UsageError for a spec that is no scenario.
    """
    replayed = of if isinstance(of, Replayed) else Replayed.of(of)
    steps, pricer = replayed.steps, replayed.pricer
    memory = JobMemory(replayed.run, steps.all)
    limited = [with_limit(pricer, scenario) for scenario in pricer.answers(what_if)]
    scenarios = tuple(with_peak(_noted(replayed, scenario), memory) for scenario in limited)
    replayed_ns = replayed.timeline.step_ns()[pricer.steady_at]
    return ReplayAnswer(
        world_size=replayed.run.world_size,
        unit=replayed.run.unit,
        steps=tuple(
            StepTime(
                step=step,
                measured_us=us(float(pricer.measured_ns[i])),
                replayed_us=us(float(replayed_ns[i])),
                error_pct=round(float(replayed.error_pct[i]), 4),
            )
            for i, step in enumerate(steps.steady)
        ),
        left_out=tuple(
            StepLeftOut(
                step=step, measured_us=us(float(replayed.measured_ns[steps.all.index(step)])), reason=str(reason)
            )
            for step, reason in sorted(steps.left_out.items())
        ),
        step_us=us(pricer.step_ns),
        scatter_pct=None if pricer.error.scatter is None else round(100 * pricer.error.scatter, 3),
        unprofiled_step_us=None if replayed.unprofiled_ns is None else us(replayed.unprofiled_ns),
        overhead=replayed.overhead,
        strict_error_pct=round(100 * pricer.error.strict, 4),
        explained_pct=round(replayed.explained_pct, 3),
        known_error_pct=None if pricer.error.with_scatter is None else round(100 * pricer.error.with_scatter, 3),
        prediction=pricer.error.prediction,
        critical_path=_critical_path(replayed),
        what_if=scenarios,
        memory=memory.peaks,
        coverage=_coverage(replayed),
        clocks=_clocks(replayed),
        graph=replayed.graph,
        timing_s=replayed.timing,
        warnings=replayed.warnings,
    )


def _noted(replayed: Replayed, scenario: WhatIf) -> WhatIf:
    """The scenario with a note of what no scenario can tell, where ranks are missing."""
    missing = replayed.run.missing_ranks
    if not (scenario.answered and missing and replayed.built.counts.collectives_partial):
        return scenario
    note = f"waiting for {readable.ranks(missing)} cannot be separated from communication"
    return msgspec.structs.replace(scenario, note="; ".join(filter(None, (scenario.note, note))))


def _critical_path(replayed: Replayed) -> CriticalPath:
    path = list(replayed.path)
    classes, ranks = class_totals(path), rank_totals(path)
    span = sum(classes.values())
    return CriticalPath(
        span_us=us(span),
        classes={name: us(total) for name, total in classes.items()},
        by_rank=tuple(
            RankShare(rank=rank, us=us(total), pct=round(float(100 * total / span), 2))
            for rank, total in sorted(ranks.items())
        ),
    )


def _coverage(replayed: Replayed) -> Coverage:
    counts, run = replayed.built.counts, replayed.run
    return Coverage(
        collectives=counts.collectives,
        collectives_matched=counts.collectives_matched,
        collectives_partial=counts.collectives_partial,
        p2p=counts.p2p,
        p2p_matched=counts.p2p_matched,
        kernels=counts.kernels,
        kernels_without_launch=counts.kernels_without_launch,
        launches_without_kernel=counts.launches_without_kernel,
        waits=counts.waits,
        waits_recorded=counts.waits_recorded,
        waits_inferred=counts.waits_inferred,
        waits_rejected=counts.waits_rejected,
        collectives_ended_early=counts.collectives_ended_early,
        unmatched_by_rank=replayed.built.unmatched,
        edges_dropped=counts.edges_dropped,
        lags_clamped=counts.lags_clamped,
        missing_ranks=run.missing_ranks,
    )


def durations(steps: RecordedSteps, clocks: Clocks) -> tuple[np.ndarray, np.ndarray]:
    """(`Replayed.measured_ns`, `Replayed.plain_ns`) of a run with these steps and clocks."""
    correction_ns = {rank: clocks.correction_ns(rank) for rank in steps.run.ranks}
    return steps.measured_ns(correction_ns), steps.plain_ns(correction_ns)


def _clocks(replayed: Replayed) -> tuple[HostClockAnswer, ...]:
    residuals = replayed.built.communication.residuals
    found = []
    for clock in replayed.built.clocks.hosts:
        mine = [residuals[rank] for rank in clock.ranks if rank in residuals]
        found.append(
            HostClockAnswer(
                host=clock.host,
                ranks=clock.ranks,
                offset_us=us(clock.offset_ns),
                drift_ppm=round(clock.drift_ppm, 3),
                moved=clock.moved,
                residual_p50_us=us(max(residual.p50_ns for residual in mine)) if mine else None,
                residual_p99_us=us(max(residual.p99_ns for residual in mine)) if mine else None,
            )
        )
    return tuple(found)
