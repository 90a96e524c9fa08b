"""The replay of a run that is too large for one graph: its ranks are built one by one, and only their skeletons are kept."""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.core import readable
from esprof.replay.answer import GraphSize, Prediction, Timing
from esprof.replay.building.build import Built
from esprof.replay.cpu.cpu_time import NotRun, not_run, on_path_ns, warnings_of
from esprof.replay.dfg import Dfg
from esprof.replay.engine.timeline import Piece, replay, strict
from esprof.replay.replayed import Replayed, warnings_of_replay
from esprof.replay.skeleton.job import CalibratedJob
from esprof.replay.skeleton.joined import CyclesAcrossRanks
from esprof.replay.skeleton.ranks import RanksAlone
from esprof.replay.steps import steps_of
from esprof.replay.whatif.error.held_out import prediction_of
from esprof.replay.whatif.error.intervals import KnownError
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import MAX_ERROR_PCT, Price, Pricer
from esprof.replay.whatif.scenario import Declined
from esprof.run.run import Run

MAX_EVENTS = 20_000_000
"""Events of a run above which its ranks are built one by one. By extrapolation, a single graph would take about 17 GB:
`benchmarks.scale` measured 4.4 GB for 5.1 million events."""

_TOO_LARGE = (
    f"the run has more than {MAX_EVENTS // 1_000_000} million events: its ranks were replayed one by one, which answers "
    "no what-if"
)


def replayed(run: Run, read_s: float = 0.0, max_error_pct: float = MAX_ERROR_PCT) -> Replayed:
    """`Replayed.of`; of a large run a `LargeReplay`, which answers no what-if."""
    if sum(meta.events for meta in run.meta.ranks) > MAX_EVENTS:
        run.keeps_one_rank = True
        try:
            return LargeReplay.by_rank(run, read_s)
        except CyclesAcrossRanks:  # The whole graph shows which edges are wrong.
            pass
    return Replayed.of(run, read_s, max_error_pct=max_error_pct)


@dataclass(frozen=True, kw_only=True)
class LargeReplay(Replayed):
    """A replayed run whose `built.dfg` is a skeleton. Nodes of `path` and lanes of `not_run` are those of graphs of single
    ranks, which are not kept."""

    graph_size: GraphSize
    """Size of the graph of the whole job, which was never built."""
    idle_on_path_ns: float
    """Time on `path` in operations that did not run, ns."""

    @classmethod
    def by_rank(cls, run: Run, read_s: float = 0.0, executor: Executor | None = None) -> "LargeReplay":
        """Build and replay `run` rank by rank; an `executor` of threads takes several ranks at a time.

        Raises InputError where the run has no graph (`build`), and CyclesAcrossRanks."""
        started = time.perf_counter()
        steps = steps_of(run)
        run, ranks = steps.run, RanksAlone.of(steps)
        job = CalibratedJob.of(ranks, executor)
        missing: list[NotRun] = []

        steady_at = np.array([steps.all.index(step) for step in steps.steady])
        fit = job.fit(steady_at)

        def variants(dfg: Dfg) -> Iterable[Dfg]:
            missing.extend(not_run(run, dfg))
            return dfg, strict(dfg), fit(dfg)

        recorded, without_residuals, of_first_steps = (one.dfg for one in job.skeletons(variants, executor))
        matched = ranks.matched
        rendezvous = matched.rendezvous
        built = Built(
            recorded,
            matched.coverage + job.counts,
            matched.unmatched(run.ranks),
            rendezvous.clocks,
            rendezvous.communication,
        )
        built_at = time.perf_counter()
        correction_ns = {rank: rendezvous.clocks.correction_ns(rank) for rank in run.ranks}
        measured = steps.measured_ns(correction_ns)
        pricer = _LargePricer(
            run,
            recorded,
            steady_at,
            measured[steady_at],
            without_residuals=without_residuals,
            of_first_steps=of_first_steps,
        )
        stretches = readable.stretches(steady_at.tolist())
        path = tuple(piece for steady in stretches for piece in job.path(steady[0], steady[-1]))
        missing.sort(key=lambda one: one.rank)
        idle_ns = _idle_on_path_ns(job, missing, path)
        replay_s = time.perf_counter() - built_at
        return cls(
            run=run,
            built=built,
            steps=steps,
            measured_ns=measured,
            plain_ns=steps.plain_ns(correction_ns),
            pricer=pricer,
            path=path,
            not_run=tuple(missing),
            timing=Timing(read=round(read_s, 4), build=round(built_at - started, 4), replay=round(replay_s, 4)),
            warnings=warnings_of_replay(steps, built) + warnings_of(missing, steady_at, pricer.step_ns),
            graph_size=GraphSize(nodes=job.nodes, edges=job.edges),
            idle_on_path_ns=idle_ns,
        )

    @property
    def graph(self) -> GraphSize:
        return self.graph_size

    def idle_ns(self, path: Sequence[Piece]) -> float:
        assert path is self.path, "operations that did not run are known of the path of the run only"
        return self.idle_on_path_ns


def _idle_on_path_ns(job: CalibratedJob, missing: Iterable[NotRun], path: Sequence[Piece]) -> float:
    """`on_path_ns` over the ranks that have operations that did not run."""
    idle = [one for one in missing if one.idle_ns.any() and any(piece.rank == one.rank for piece in path)]
    return sum(
        on_path_ns([one], job.graph(one.rank), [piece for piece in path if piece.rank == one.rank]) for one in idle
    )


@dataclass(frozen=True, kw_only=True)
class _LargePricer(Pricer):
    """Declines all scenarios."""

    without_residuals: Dfg
    """The skeleton of the job without unexplained delays."""
    of_first_steps: Dfg
    """The skeleton of the job with the durations of its first steps (`CalibratedJob.fit`)."""

    @cached_property
    def error(self) -> KnownError:
        progress_ns = self._progress_ns(self.baseline)
        return _LargeError(
            self.run,
            self.dfg,
            self.steady_at,
            self.measured_ns,
            progress_ns,
            without_residuals=self.without_residuals,
            of_first_steps=self.of_first_steps,
        )

    def prices(self, specs: Iterable[str]) -> list[Price | Declined]:
        return [Declined(_TOO_LARGE) for _ in map(parse, specs)]


@dataclass(frozen=True, kw_only=True)
class _LargeError(KnownError):
    """The error of a replay by skeletons, which are as in `_LargePricer`."""

    without_residuals: Dfg
    of_first_steps: Dfg

    @cached_property
    def strict(self) -> float:
        replayed_ns = replay(self.without_residuals).step_ns()[self.steady_at]
        return float(replayed_ns.sum() / self.measured_ns.sum() - 1)

    @cached_property
    def prediction(self) -> Prediction:
        replayed_ns = replay(self.of_first_steps).step_ns()[self.steady_at]
        return prediction_of(np.array(self.dfg.marks.steps)[self.steady_at], replayed_ns, self.measured_ns)
