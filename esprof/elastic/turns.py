"""The gradient of a step: a turn of each EST, and the mean of what they found."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from esprof.elastic.assignment import Assignment, Est
from esprof.elastic.feed import Feed
from esprof.elastic.options import Amp
from esprof.elastic.reduce.layout import Layout, Slot
from esprof.elastic.state.buffers import Buffers
from esprof.elastic.state.rng import RngState
from esprof.elastic.state.training import TrainingState
from esprof.elastic.support import to_device
from esprof.elastic.telemetry.spans import Spans
from esprof.elastic.transport import Transport
from esprof.errors import UsageError

LossFn = Callable[[nn.Module, Any], Tensor]
"""(model, batch) -> loss, a scalar: the mean over the batch's samples."""

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Turns:
    """Lets the ESTs of this process run one after the other, each with its own batches and random numbers, with the buffers
    that the step began with, and into a gradient of its own."""

    state: TrainingState
    layout: Layout
    transport: Transport
    feed: Feed
    spans: Spans
    loss_fn: LossFn
    amp: Amp

    def __post_init__(self) -> None:
        self._buffers = Buffers(self.state.model)
        self._seen: set[str] = set()
        self._hooks = self.layout.watch(self._on_gradient)

    def run(self, assignment: Assignment, told: float) -> tuple[Tensor, Tensor]:
        """Compute the next step's gradient, and attach it to the parameters.

        Returns the loss of each EST and what each rank has `told` (float64, 1-D); both stay on the device, so that nothing
        has to wait for them. Raises UsageError where a gradient is missing, comes twice, or was replaced.
        """
        state, rank = self.state, self.transport.rank
        shared = torch.zeros(assignment.n_est + assignment.world, dtype=torch.float64, device=state.device)
        losses, words = shared.split([assignment.n_est, assignment.world])
        words[rank] = told
        state.reducer.begin(
            assignment, state.begin_codec(), {est: context.codec for est, context in state.contexts.items()}
        )
        self._buffers.begin()
        for est in assignment.ests[rank]:
            with self.spans.turn(est):
                losses[est] = self._turn(est, last=est == assignment.ests[rank][-1])
        with self.spans("reduce"):
            self.layout.attach(state.reducer.finish(), clear=False)
            self._buffers.finish(self.transport, assignment.owner(0))
            self.transport.add(shared).wait()
        return losses, words

    def close(self) -> None:
        """Remove the hooks on the model's parameters."""
        for hook in self._hooks:
            hook.remove()

    def _turn(self, est: Est, *, last: bool) -> Tensor:
        """One EST's gradient, and its loss."""
        state, order, step = self.state, self.feed.order, self.state.next_step
        context, flat = state.contexts[est], state.reducer.buffer()
        with self.spans("switch"):
            self.layout.attach(flat, clear=True)
            self._buffers.enter()
            context.rng.restore(state.device)
        counts = [len(order.batch(step, est, micro)) for micro in range(order.accumulate)]
        loss = torch.zeros((), dtype=torch.float64, device=state.device)
        for micro, count in enumerate(counts):
            if last and micro == len(counts) - 1:
                state.reducer.send_last(est, flat)
            if count:
                loss += self._pass(est, count * order.n_est / order.count(step)).double() * (count / sum(counts))
        with self.spans("switch"):
            context.rng = RngState.capture(state.device)
            self._buffers.leave(est)
        if not last:
            with self.spans("stage"):
                state.reducer.fold(est, flat)
        return loss

    def _pass(self, est: Est, weight: float) -> Tensor:
        """Forward and backward of one micro-batch, whose loss counts `weight`."""
        state = self.state
        with self.spans("data"):
            batch = to_device(self.feed.next(est, state.contexts[est].loader), state.device)
        self._seen.clear()
        with self.spans("forward"), self._precision():
            loss = self.loss_fn(state.model, batch)
        with self.spans("backward"):
            state.scaler.scale(loss * weight).backward()
        if len(self._seen) < len(self.layout.slots):
            missing = [slot.name for slot in self.layout.slots if slot.name not in self._seen]
            raise UsageError(
                f"no gradient reached {', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''}",
                remedy="Freeze it (requires_grad_(False)), or let the loss depend on it: nothing finds unused parameters.",
            )
        return loss.detach()

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        if self.amp is None:
            return contextlib.nullcontext()
        return torch.autocast(self.state.device.type, _TYPES[self.amp])

    def _on_gradient(self, slot: Slot) -> None:
        if self.spans.est is None:
            return  # A backward pass of the script's own, outside any turn.
        if slot.name in self._seen:
            raise UsageError(
                f"the gradient of {slot.name} came twice in one backward pass, and the first may have been sent",
                remedy="Pass use_reentrant=False to torch.utils.checkpoint, and leave backward() to the trainer.",
            )
        if not self.layout.holds(slot):
            raise UsageError(
                f"the gradient of {slot.name} was replaced while its EST computed it",
                remedy="Leave zero_grad() to the trainer.",
            )
        self._seen.add(slot.name)
        self.state.reducer.ready(slot)
