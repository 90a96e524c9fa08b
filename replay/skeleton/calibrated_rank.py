"""A rank that is built alone as it is in the graph of the whole job."""

from dataclasses import dataclass, replace

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.replay.dfg import JOIN_LANE, Dfg
from esprof.replay.engine import longest_path
from esprof.replay.engine.timeline import Timeline
from esprof.replay.skeleton.ranks import RankAlone, by_number
from esprof.replay.whatif.error.held_out import fitted
from esprof.run.run import Run


@dataclass(frozen=True)
class CalibratedJoins:
    """What the job tells of the joins of C collectives, for a graph of some ranks."""

    t0_ns: Ns
    collectives: np.ndarray
    """Numbers of the collectives, ascending, int64[C]."""
    join_end_ns: np.ndarray
    """End of each join in the replay of the job, ns since `t0_ns`, int64[C]."""
    join_residual_ns: np.ndarray
    """Residual of each join, ns, int64[C]."""

    def calibrated(self, dfg: Dfg) -> Dfg:
        """The graph of some ranks, as it was built, with the times of the job; residuals are those of the whole job."""
        dfg = replace(dfg, t0_ns=self.t0_ns, recorded_ns=dfg.recorded_ns + dfg.t0_ns - self.t0_ns)
        joins, at = self.at(dfg)
        # That a join starts no earlier than all ranks have met has the effect of the ranks that the graph lacks.
        start = dfg.recorded_ns.copy()
        start[joins] = self.join_end_ns[at]
        residual = longest_path.residuals(dfg.dur_ns, start, dfg.pred_ptr, dfg.pred_idx, dfg.pred_lag)
        residual[joins] = self.join_residual_ns[at]
        return replace(dfg, residual_ns=residual)

    def timeline(self, dfg: Dfg) -> Timeline:
        """The replay of a `calibrated` graph."""
        joins, at = self.at(dfg)
        recorded, residual, of_join = dfg.recorded_ns.copy(), dfg.residual_ns.copy(), dfg.lane == JOIN_LANE
        recorded[joins], residual[joins] = self.join_end_ns[at], 0
        # A join without predecessors starts at its recorded start.
        kept = ~of_join[dfg.pred_target]
        alone = replace(
            dfg,
            recorded_ns=recorded,
            pred_ptr=np.append(0, np.cumsum(kept))[dfg.pred_ptr].astype(dfg.pred_ptr.dtype),
            pred_idx=dfg.pred_idx[kept],
            pred_lag=dfg.pred_lag[kept],
            pred_kind=dfg.pred_kind[kept],
        )
        start, end = longest_path.run(alone, dfg.dur_ns, residual)
        return Timeline(dfg=dfg, start_ns=start, end_ns=end)

    def at(self, dfg: Dfg) -> tuple[np.ndarray, np.ndarray]:
        """(the joins of a graph, the position of each in `collectives`)."""
        joins = np.flatnonzero(dfg.lane == JOIN_LANE)
        return joins, np.searchsorted(self.collectives, dfg.collective[joins])


@dataclass(frozen=True)
class CalibratedRank:
    """A rank, and what the job tells of the joins of its C collectives. It travels to other processes."""

    alone: RankAlone
    joins: CalibratedJoins
    steady_at: np.ndarray
    """`RecordedSteps.steady_at`."""
    fitted_residual_ns: np.ndarray
    """Residual of each join in the job with the durations of its first steps (`fitted`), ns, int64[C]."""
    place: np.ndarray
    """`held_out.places` of the collectives, int64[C]."""

    @property
    def rank(self) -> Rank:
        return self.alone.recorded.rank

    @property
    def run(self) -> Run:
        return self.alone.recorded.source.run

    def graph(self) -> Dfg:
        """The graph of the rank with the joins of its collectives; residuals are those of the whole job."""
        return self.joins.calibrated(self.alone.dfg())

    def fitted(self, dfg: Dfg) -> Dfg:
        """`graph` with the durations of the first half of the steady-state steps (`held_out.fitted`)."""
        found = fitted(dfg, self.steady_at, by_number(self.joins.collectives, self.place))
        joins, at = self.joins.at(dfg)
        # The counterpart of a join may be a join of other ranks.
        residual = found.residual_ns.copy()
        residual[joins] = self.fitted_residual_ns[at]
        return replace(found, residual_ns=residual)

    def timeline(self, dfg: Dfg) -> Timeline:
        """The replay of `graph`."""
        return self.joins.timeline(dfg)
