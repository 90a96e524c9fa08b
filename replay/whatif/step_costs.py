"""Cost of a replayed step: its time on the CPUs, plus the growth of the GPUs' backlog."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.replay.engine.timeline import Timeline

MAX_BACKLOG_SHARE = 0.01
"""Growth of a GPU's backlog beyond the recorded one, as a share of a step, that counts as no growth."""


@dataclass(frozen=True)
class StepCosts:
    """Replayed durations of the steady-state steps, for replays of edits of one graph."""

    recorded: Timeline
    """The replay of the graph before any edit."""
    steady_at: np.ndarray
    """Positions of the steady-state steps in `dfg.marks.steps`."""
    step_ns: float
    """Mean measured duration of the steady-state steps, ns."""

    def changed_by(
        self, timeline: Timeline, least_ns: np.ndarray | None = None, *, nobody_waits: bool = False
    ) -> np.ndarray:
        """Ratio of each steady-state step in the replay `timeline` to the same step in the recorded replay, float64[steps].

        No step is shorter than `least_ns`, ns, one entry per step of `dfg.marks`. `nobody_waits` says whether the edit
        removed all waits of CPUs for GPUs.
        """
        changed: np.ndarray = self._ns(timeline, least_ns, nobody_waits=nobody_waits) / self._recorded_ns
        return changed

    @cached_property
    def _recorded_ns(self) -> np.ndarray:
        return self._ns(self.recorded)

    def _ns(self, timeline: Timeline, least_ns: np.ndarray | None = None, *, nobody_waits: bool = False) -> np.ndarray:
        """Replayed duration (ns) of each steady-state step, no shorter than `least_ns`.

        The mean also includes the time by which the GPUs fall further behind than recorded. A job that never waits for its
        GPU ends its steps before the GPU has completed them (docs/explanation/replay.md §3).
        """
        steps = timeline.step_ns()[self.steady_at]
        behind = self._behind_ns(timeline, nobody_waits=nobody_waits)
        if least_ns is not None:
            steps = np.maximum(steps, least_ns[self.steady_at])
        lengths: np.ndarray = np.maximum(steps + behind / len(steps), 1)
        return lengths

    def _behind_ns(self, timeline: Timeline, *, nobody_waits: bool) -> float:
        """Growth of the GPUs' backlog over the steady-state steps beyond its recorded growth, ns.

        The recorded growth scales with the GPUs' work. The result is 0 if the backlog returns to the recorded one in any
        step, because a CPU waits for its GPU there. If nobody waits, only the end counts.
        """
        progress, backlog = self._progress_ns(timeline)
        usual_progress, usual_backlog = self._usual_progress_ns
        allowed = np.maximum(usual_backlog, 0) * progress / np.maximum(usual_progress, 1)
        more: np.ndarray = backlog - allowed
        is_behind = more > MAX_BACKLOG_SHARE * self.step_ns
        return float(more[-1]) if (is_behind[-1] if nobody_waits else is_behind.all()) else 0.0

    @cached_property
    def _usual_progress_ns(self) -> tuple[np.ndarray, np.ndarray]:
        """`_progress_ns` of the run as recorded."""
        return self._progress_ns(self.recorded)

    def _progress_ns(self, timeline: Timeline) -> tuple[np.ndarray, np.ndarray]:
        """(progress of the GPUs, their backlog) from the first steady-state step to the end of each, ns, float64[steps].

        0 without a GPU.
        """
        progress = timeline.gpu_progress_ns()[self.steady_at].astype(np.float64)
        steps = timeline.step_ns()[self.steady_at] if progress.any() else 0
        return np.cumsum(progress), np.cumsum(progress - steps)
