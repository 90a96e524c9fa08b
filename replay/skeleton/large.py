"""The replay of a run that is too large for one graph: its ranks are built one by one, and only their skeletons are kept."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from esprof.core import readable
from esprof.core.errors import EsprofError, InputError
from esprof.core.types import Rank
from esprof.replay.answer import GraphSize, Timing
from esprof.replay.building.build import Built
from esprof.replay.cpu.cpu_time import NotRun, not_run, on_path_ns, warnings_of
from esprof.replay.dfg import Dfg
from esprof.replay.engine.timeline import Piece, strict
from esprof.replay.over_ranks import IN_THIS_PROCESS, RanksLost, RankWorkers
from esprof.replay.replayed import Replayed, durations
from esprof.replay.skeleton.calibrated_rank import CalibratedRank
from esprof.replay.skeleton.contract import Skeleton
from esprof.replay.skeleton.job import CalibratedJob, ForAnswers
from esprof.replay.skeleton.joined import CyclesAcrossRanks, join
from esprof.replay.skeleton.pricing import SkeletonPricer
from esprof.replay.skeleton.ranks import RanksAlone
from esprof.replay.steps import steps_of
from esprof.replay.warnings import warnings_of_replay
from esprof.replay.whatif.communication.links import RecordedLinks, Stretches, stretches, worked_ns
from esprof.replay.whatif.pricing import MAX_ERROR_PCT
from esprof.run.run import Run, RunWarning

MAX_EVENTS = 20_000_000
"""Events of a run above which its ranks are built one by one. By extrapolation, a single graph would take about 17 GB:
`benchmarks.scale` measured 4.4 GB for 5.1 million events."""

RANK_FAILED = "rank-failed"
"""Code of the warning of ranks that could not be read or built."""

_Answer = TypeVar("_Answer")


def is_large(run: Run) -> bool:
    """Whether `replayed` builds the ranks of the run one by one."""
    return sum(meta.events for meta in run.meta.ranks) > MAX_EVENTS


def answered(
    run: Run,
    answer: Callable[[Replayed], _Answer],
    read_s: float = 0.0,
    max_error_pct: float = MAX_ERROR_PCT,
    workers: RankWorkers = IN_THIS_PROCESS,
) -> _Answer:
    """The `answer` to the replayed run, as `replayed` makes it.

    Ranks of a large run that are lost, even while `answer` works, are left out with a warning, and all is done again. Their
    tasks failed twice on an executor, or their files are broken. Raises InputError if no rank is left.
    """
    while True:
        try:
            return answer(replayed(run, read_s, max_error_pct, workers))
        except RanksLost as lost:
            run = _without(run, lost.reasons)
        except InputError as error:
            if error.rank not in run.ranks or not is_large(run):
                raise
            run = _without(run, {error.rank: error})


def replayed(
    run: Run,
    read_s: float = 0.0,
    max_error_pct: float = MAX_ERROR_PCT,
    workers: RankWorkers = IN_THIS_PROCESS,
) -> Replayed:
    """`Replayed.of`; of a large run a `LargeReplay`, whose ranks `workers` build, and which declines what-ifs that need the
    graph of all ranks. Raises InputError where the run has no graph, and RanksLost, as later work on the ranks does."""
    if is_large(run):
        run.keeps_one_rank = True
        try:
            return LargeReplay.by_rank(run, read_s, workers, max_error_pct)
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
    def by_rank(
        cls,
        run: Run,
        read_s: float = 0.0,
        workers: RankWorkers = IN_THIS_PROCESS,
        max_error_pct: float = MAX_ERROR_PCT,
    ) -> "LargeReplay":
        """Build and replay `run` rank by rank. Raises what `build` raises, RanksLost, and CyclesAcrossRanks."""
        started = time.perf_counter()
        steps = steps_of(run, workers)
        run, ranks, steady_at = steps.run, RanksAlone.of(steps, workers=workers), steps.steady_at
        job = CalibratedJob.of(ranks, workers)
        during = stretches(job.meetings.dfg)
        contracted = [*job.over_ranks("Contracting the ranks", partial(_contracted, during), workers)]
        skeleton, *others = (join(of_variant) for of_variant in zip(*(one.variants for one in contracted), strict=True))
        recorded, (without_residuals, of_first_steps) = skeleton.dfg, (other.dfg for other in others)
        missing = [one for rank in contracted for one in rank.not_run]
        matched, rendezvous = ranks.matched, ranks.matched.rendezvous
        built = Built(
            recorded,
            matched.coverage + job.counts,
            matched.unmatched(run.ranks),
            rendezvous.clocks,
            rendezvous.communication,
        )
        built_at = time.perf_counter()
        measured, plain = durations(steps, rendezvous.clocks)
        pricer = SkeletonPricer(
            run,
            recorded,
            steady_at,
            measured[steady_at],
            max_error_pct,
            job=job,
            links=RecordedLinks(recorded, _with_work(during, contracted)),
            skeletons=[one.variants[0] for one in contracted],
            workers=workers,
            without_residuals=without_residuals,
            of_first_steps=of_first_steps,
        )
        path, idle_ns = [], 0.0
        for stretch in readable.stretches(steady_at.tolist()):
            pieces, graphs = job.path(skeleton, stretch[0], stretch[-1], workers)
            idle_ns += _idle_on_path_ns(missing, graphs, pieces)
            path += pieces
        replay_s = time.perf_counter() - built_at
        return cls(
            run=run,
            built=built,
            steps=steps,
            measured_ns=measured,
            plain_ns=plain,
            pricer=pricer,
            path=tuple(path),
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


@dataclass(frozen=True)
class _Contracted:
    """What is kept of a rank that was built for the answers."""

    variants: list[Skeleton]
    """Skeletons of its graph as recorded, without residuals, and with the durations of the first steps."""
    not_run: tuple[NotRun, ...]
    worked_ns: np.ndarray | None
    """How long its CPUs work during each stretch of communication between CPUs, ns; None if there is none."""


def _contracted(during: Stretches | None, rank: CalibratedRank) -> _Contracted:
    dfg = rank.graph()
    contracts = ForAnswers.of(dfg)
    variants = [contracts.skeleton(one) for one in (dfg, strict(dfg), rank.fitted(dfg))]
    return _Contracted(variants, not_run(rank.run, dfg), None if during is None else worked_ns(dfg, during))


def _with_work(during: Stretches | None, ranks: Iterable[_Contracted]) -> Stretches | None:
    worked = [one.worked_ns for one in ranks if one.worked_ns is not None]
    return None if during is None else during.with_work(np.max(worked, axis=0))


def _without(run: Run, reasons: Mapping[Rank, Exception]) -> Run:
    """The run without these ranks. Raises InputError if no other rank is left."""
    ranks, reason = sorted(reasons), next(iter(reasons.values()))
    why = str(reason).splitlines()[0] if isinstance(reason, EsprofError) else f"{type(reason).__name__}: {reason}"
    if set(ranks).issuperset(run.ranks):
        remedy = "The workers must have this version of esprof, and the run under the same path."
        raise InputError(f"no rank could be read and built: {why}", path=run.path, remedy=remedy)
    text = f"{readable.ranks(ranks)} left out: could not be read or built ({why})"
    return run.without(ranks, RunWarning(RANK_FAILED, text, tuple(ranks)))


def _idle_on_path_ns(missing: Iterable[NotRun], graphs: Mapping[Rank, Dfg], path: Sequence[Piece]) -> float:
    """`on_path_ns` over the ranks that have operations that did not run. Nodes of a path are those of its rank's graph."""
    idle = [one for one in missing if one.idle_ns.any() and any(piece.rank == one.rank for piece in path)]
    return sum(on_path_ns([one], graphs[one.rank], [piece for piece in path if piece.rank == one.rank]) for one in idle)
