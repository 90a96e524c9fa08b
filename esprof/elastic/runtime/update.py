"""The update of a step: unscaling, clipping, and the steps of optimizers and schedulers."""

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from esprof.elastic.options import Gradients, Updates
from esprof.elastic.reduce.layout import Layout, Slot
from esprof.elastic.runtime.rng import derived_seed, seed_all
from esprof.elastic.runtime.training import TrainingState


@dataclass(frozen=True)
class Update:
    """Lets optimizers and schedulers step. All ranks have the same gradients, and do the same."""

    state: TrainingState
    layout: Layout
    seed: int
    gradients: Gradients
    asked: Updates

    def run(self, optimizers: Collection[Optimizer], unused: Collection[Slot], *, epoch_ends: bool) -> bool:
        """Update by these optimizers, and count the step. Parameters of `unused` have no gradient, as under DDP.

        Returns whether fp16's scaler skipped the optimizers.
        """
        state, scaler = self.state, self.state.scaler
        seed_all(derived_seed(self.seed, "update", state.next_step))  # A noisy optimizer does the same on all ranks.
        scale = scaler.get_scale()
        for slot in unused:
            slot.parameter.grad = None
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        if self.gradients.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._updated(optimizers), self.gradients.clip_norm)
        if self.asked.before_update is not None:
            self.asked.before_update(state.next_step)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        state.next_step += 1
        if self.asked.scheduler_by == "step" or epoch_ends:
            for scheduler in state.schedulers:
                if scheduler.optimizer in optimizers:
                    scheduler.step()
        return scaler.get_scale() < scale

    def _updated(self, optimizers: Collection[Optimizer]) -> list[nn.Parameter]:
        """The parameters of the optimizers, in the order of the model, as a script under DDP passes them to be clipped: the
        norm's bits depend on it."""
        held = {id(parameter) for one in optimizers for group in one.param_groups for parameter in group["params"]}
        return [slot.parameter for slot in reversed(self.layout.slots) if id(slot.parameter) in held]
