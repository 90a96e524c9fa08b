"""What a replayed step costs: its time on the CPUs, and what the GPUs fall behind meanwhile."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.replay.engine.timeline import StepEnds, Timeline
from esprof.replay.whatif.graph.selections import waits_for_device

MAX_BACKLOG_SHARE = 0.01
"""Share of a step that a GPU may lie further behind its CPU than as recorded, and count as no further behind."""


@dataclass(frozen=True)
class StepCosts:
    """Replayed durations of the steady-state steps, for replays of edits of one graph."""

    recorded: Timeline
    """The replay of the graph before any edit."""
    steady_at: np.ndarray
    """Positions of the steady-state steps in `dfg.marks.steps`."""
    step_ns: float
    """Mean measured duration of the steady-state steps, ns."""

    def changed_by(self, ends: StepEnds, least_ns: np.ndarray | None = None) -> np.ndarray:
        """How many times as long each steady-state step is in the replay `ends` as in the recorded one, float64[steps].

        No step is shorter than `least_ns`, which holds an entry for each step of `dfg.marks`.
        """
        changed: np.ndarray = self._ns(ends, least_ns) / self._recorded_ns
        return changed

    @cached_property
    def _recorded_ns(self) -> np.ndarray:
        return self._ns(self.recorded)

    def _ns(self, ends: StepEnds, least_ns: np.ndarray | None = None) -> np.ndarray:
        """Replayed duration (ns) of each steady-state step, no shorter than `least_ns`.

        On average the steps are not shorter than what the GPUs need either, but for the backlog that they build up as
        recorded: a job that never waits for its GPU leaves its steps before the GPU is done with them
        (docs/explanation/replay.md §3).
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
        nobody_waits = ends.dfg.pred_idx is not self.recorded.dfg.pred_idx and not waits_for_device(ends.dfg).any()
        is_behind = more > MAX_BACKLOG_SHARE * self.step_ns
        return float(more[-1]) if (is_behind[-1] if nobody_waits else is_behind.all()) else 0.0

    @cached_property
    def _usual_progress_ns(self) -> tuple[np.ndarray, np.ndarray]:
        """`_progress_ns` of the run as recorded."""
        return self._progress_ns(self.recorded)

    def _progress_ns(self, ends: StepEnds) -> tuple[np.ndarray, np.ndarray]:
        """(how far the GPUs get on, how far they fall behind the CPUs) from the first steady step to the end of each, ns,
        float64[steps]. 0 without a GPU."""
        progress = ends.gpu_progress_ns()[self.steady_at].astype(np.float64)
        steps = ends.step_ns()[self.steady_at] if progress.any() else 0
        return np.cumsum(progress), np.cumsum(progress - steps)
