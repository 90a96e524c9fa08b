"""Applies a plan to the running job, between two steps: ESTs move, the codec, the loader or the interval of checkpoints
changes, or the job leaves for another number of processes."""

from esprof.core.assignment import Assignment
from esprof.elastic.checkpoint.job_checkpoints import JobCheckpoints
from esprof.elastic.leaving.departure import Departure
from esprof.elastic.plans.adoption import Adoption
from esprof.elastic.plans.change import Change, Now
from esprof.elastic.runtime.placement import EstPlacement
from esprof.elastic.runtime.training import TrainingState


class PlanApplier:
    """Applies the changes that all ranks have agreed on in `adoption`. All ranks make the same calls."""

    def __init__(
        self,
        adoption: Adoption,
        state: TrainingState,
        placement: EstPlacement,
        departure: Departure,
        saving: JobCheckpoints,
    ) -> None:
        self.adoption = adoption
        self.has_news = False
        """Whether the ranks must agree on something before the next step; the same on all ranks."""
        self._state, self._placement, self._departure, self._saving = state, placement, departure, saving

    def apply_at_start(self) -> None:
        """Apply a plan that exists before the first step."""
        self._apply(self.adoption.at_start(self._now()))

    def apply_due(self) -> None:
        """Apply the changes that are due before the next step."""
        if self.has_news or self.adoption.is_due(self._state.next_step):
            self._apply(self.adoption.at_boundary(self._now(), news=self.has_news))

    def _now(self) -> Now:
        guard, step = self._state.guarding, self._state.next_step
        return Now(
            step,
            self._placement.assignment,
            self._state.codec_spec(step),
            guard.of if guard is not None else None,
            self._placement.loader,
            self._placement.largest_context,
            self._saving.planned_every,
        )

    def _apply(self, change: Change | None) -> None:
        if change is None:
            return
        if change.world is not None:
            self._departure.leave_for(change.world)
        if change.loader is not None and change.loader != self._placement.loader:
            self._placement.use_loader(change.loader)
        if change.ests is not None and change.ests != self._placement.assignment.ests:
            self._placement.move(Assignment.of(change.ests))
        if change.codec is not None and change.codec != self._state.codec_spec(self._state.next_step):
            self._state.set_codec(change.codec, change.guard)
        if change.every is not None:
            self._saving.set_every(change.every)
