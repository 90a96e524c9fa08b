"""The gradient of a step: one EST step for each EST, and the mean of their gradients."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from esprof.core.assignment import Assignment, Est
from esprof.core.errors import UsageError
from esprof.elastic.data.feed import Feed
from esprof.elastic.leaving.drain import Leaver
from esprof.elastic.options import Gradients
from esprof.elastic.proof.reruns import Reruns
from esprof.elastic.reach.turns import Own
from esprof.elastic.reduce.layout import Layout, Slot
from esprof.elastic.reduce.stash import Stash
from esprof.elastic.reduce.tree_reducer import TreeReducer
from esprof.elastic.runtime.buffers import Buffers
from esprof.elastic.runtime.phases import LossPhase
from esprof.elastic.runtime.rng import RngState
from esprof.elastic.runtime.support import check_loss, to_device
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.telemetry.spans import StepSpans
from esprof.elastic.verify import collectives
from esprof.elastic.verify.edits import Edits
from esprof.elastic.verify.second_run import FirstRun, of_batches, outcome

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class EstStepsOutcome:
    """Values that the ranks exchange in a step in addition to the gradient; on the device, so that nothing waits for
    them."""

    losses: Tensor
    """Loss of each EST, float64, shape (n_est,)."""
    terms: Tensor
    """Digest of the terms of each rank, float64, shape (world,)."""
    news: Tensor
    """Number of ranks with something to agree on before the next step, float64, shape (1,)."""
    asked: Tensor
    """Number of ranks that were asked to leave, float64, shape (1,)."""
    write: Tensor
    """Number of ranks with a request to write the telemetry before the next step, float64, shape (1,)."""
    busy: Tensor
    """Time until each rank only waited for gradients, us, float64, shape (world,)."""
    updated: Tensor
    """Time of the previous update on each rank, us, float64, shape (world,)."""
    used: Tensor
    """Number of ESTs whose loss reached each parameter, float64, shape (parameters,); empty unless `find_unused`."""
    proof: Tensor
    """Numbers by which `Reruns` are judged, float64, shape (`Reruns.size`,); empty where nothing runs again."""
    inspection: "CodecInspection | None" = None
    """Input of the codec's guard; None in a step that it does not inspect."""


@dataclass(frozen=True)
class CodecInspection:
    """The error of a codec in the gradients of a step."""

    lost: float
    """`Layout.lost` of the mean."""
    squares: dict[Est, float]
    """Squared norm of the gradient of each EST of this rank."""


@dataclass(frozen=True)
class RankReport:
    """What this rank reports to the others in a step."""

    terms: float
    """Digest of the values that must be the same on all ranks."""
    has_news: bool
    """Whether all ranks have to agree on something before the next step."""
    is_wanted: bool
    """Whether there is a request to write the telemetry."""
    updated_us: float
    """Time of the previous update on this rank; 0 if there was none."""


@dataclass
class _ExactMean:
    """The exact mean of a step's gradients, computed in addition to the one that uses a codec."""

    layout: Layout
    reducer: TreeReducer
    squares: dict[Est, float] = field(default_factory=dict)

    @classmethod
    def started(cls, layout: Layout, transport: Transport, assignment: Assignment) -> "_ExactMean":
        reducer = TreeReducer(layout, transport, assignment.n_est, Stash.on(layout.device))
        reducer.begin(assignment, None, {})
        return cls(layout, reducer)

    def take(self, est: Est, flat: Tensor, *, last: bool) -> None:
        """Add the gradient of an EST before it is encoded."""
        self.squares[est] = float(sum(slot.of(flat).double().square().sum() for slot in self.layout.slots))
        own = self.reducer.buffer().copy_(flat)
        if last:
            self.reducer.send_last(est, own)
        else:
            self.reducer.fold(est, own)

    def compared_with(self, mean: Tensor) -> CodecInspection:
        """All ranks call this."""
        return CodecInspection(self.layout.lost(mean, self.reducer.finish()), self.squares)


@dataclass
class EstSteps:
    """Runs the ESTs of this process one after the other. Each has its own batches, random numbers and gradient, and
    starts from the buffers at the start of the step."""

    state: TrainingState
    layout: Layout
    transport: Transport
    feed: Feed
    spans: StepSpans
    gradients: Gradients
    edits: Edits
    leaver: Leaver | None = None
    """Knows whether this rank was asked to leave."""

    def __post_init__(self) -> None:
        self._buffers = Buffers({"": self.state.model} | self.state.reached.modules)
        self._reached: set[str] = set()
        """Parameters that a gradient of the running backward pass has reached."""
        self._reached_in_est_step: set[str] = set()
        self._into: Tensor | None = None
        """Where the running pass puts gradients; None while there is none."""
        self._earlier: Tensor | None = None
        """The sum to which the running EST step adds its gradient."""
        self._runs_again = False
        self._exact: _ExactMean | None = None
        parameters = [slot.parameter for slot in self.layout.slots]
        self._has_hooks = any(parameter._post_accumulate_grad_hooks for parameter in parameters)
        """Whether the script has hooks that see each gradient."""
        self._hooks = self.layout.watch(self._on_gradient)

    def run(
        self, assignment: Assignment, phase: LossPhase, report: RankReport, reruns: Reruns | None, *, inspects: bool
    ) -> EstStepsOutcome:
        """Compute the next step's gradient, and attach it to the parameters.

        If the guard of a codec `inspects` the step, the result includes the error of the codec.

        `reruns` are the EST steps that run a second time. Raises UsageError if a gradient is missing, computed twice or
        replaced, and for forbidden operations in an EST step.
        """
        state, rank, started_ns = self.state, self.transport.rank, time.perf_counter_ns()
        mine = assignment.ests[rank]
        found, shared = self._outcome(assignment, reruns.size if reruns is not None else 0)
        found.terms[rank] = report.terms
        found.news.fill_(float(report.has_news))
        found.write.fill_(float(report.is_wanted))
        found.updated[rank] = report.updated_us
        state.reducer.begin(
            assignment, state.begin_codec(), {est: context.codec for est, context in state.contexts.items()}
        )
        self._exact = _ExactMean.started(self.layout, self.transport, assignment) if inspects else None
        self._buffers.begin()
        state.values.begin(state.values_of_ests)
        if reruns is not None:
            reruns.begin()
        for est in mine:
            with self.spans.est_step(est):
                first_run = reruns.first_run(est) if reruns is not None else None
                found.losses[est] = self._est_step(est, phase, first_run, last=est == mine[-1])
            if self.gradients.find_unused:
                found.used.add_(self._mask())
        if reruns is not None:
            with self.spans.silent():
                found.proof.copy_(
                    torch.tensor(reruns.run(lambda first: self._run_again(first, phase)), dtype=torch.float64)
                )
        state.values.finish(state.contexts[mine[0]].values if mine else {})
        found.busy[rank] = (time.perf_counter_ns() - started_ns) / 1e3
        with self.spans("reduce"):
            mean = state.reducer.finish()
            self.layout.attach(mean)
            self._buffers.finish(self.transport, assignment.owner(0))
            if self.leaver is not None and self.leaver.reason is not None:
                found.asked.fill_(1)  # Sent with the losses, so that no step waits for it.
            self.transport.add(shared).wait()
        return found if self._exact is None else replace(found, inspection=self._exact.compared_with(mean))

    def _outcome(self, assignment: Assignment, proof: int) -> tuple[EstStepsOutcome, Tensor]:
        """The values that the ranks will exchange, initially 0, and the one tensor behind all of them that is
        all-reduced."""
        n_est, world, unused = (
            assignment.n_est,
            assignment.world,
            len(self.layout.slots) if self.gradients.find_unused else 0,
        )
        sizes = {"losses": n_est, "terms": world, "news": 1, "asked": 1, "write": 1, "busy": world}
        sizes |= {"updated": world, "used": unused, "proof": proof}
        shared = torch.zeros(sum(sizes.values()), dtype=torch.float64, device=self.state.device)
        slices = shared.split(list(sizes.values()))
        return EstStepsOutcome(**dict(zip(sizes, slices, strict=True))), shared

    def check(self) -> None:
        """Raise UsageError for a parameter hook that would run after the gradient may have been sent."""
        for slot, hook in zip(self.layout.slots, self._hooks, strict=True):
            hooks: dict[int, object] = slot.parameter._post_accumulate_grad_hooks
            if next(reversed(hooks)) != hook.id:
                raise UsageError(
                    f"a hook on {slot.name} (register_post_accumulate_grad_hook) was registered after the trainer was made",
                    remedy="Register it before. A later hook may run after the gradient was sent.",
                )

    def close(self) -> None:
        """Remove the hooks on the model's parameters."""
        for hook in self._hooks:
            hook.remove()

    def _est_step(self, est: Est, phase: LossPhase, first_run: FirstRun | None, *, last: bool) -> Tensor:
        """Compute one EST's gradient; returns its loss. An EST step that will run again is recorded in `first_run` and
        not sent."""
        context, reducer = self.state.contexts[est], self.state.reducer
        earlier = reducer.sum_before(est) if self._adds_in_place(first_run) else None
        flat = reducer.buffer() if earlier is None else earlier
        with self.spans("switch"):
            self._enter(context.rng, context.values, earlier)
        send = last and first_run is None and self._exact is None
        loss = self._passes(est, phase, flat, first_run, send=send)
        with self.spans("switch"):
            context.rng = RngState.capture(self.state.device)
            changed = self._leave(est, flat)
            context.values |= changed
        if first_run is not None:
            first_run.found |= self._found(loss, flat, changed)
        if self._exact is not None:
            self._exact.take(est, flat, last=last)
        if not last:
            with self.spans("stage"):
                reducer.fold(est, flat)
        elif not send:
            reducer.send_last(est, flat)
        return loss

    def _adds_in_place(self, first_run: FirstRun | None) -> bool:
        """Whether the gradient of an EST step may be added to a sum as soon as it is computed: it comes at once, and nobody
        looks at it alone."""
        is_unseen = first_run is None and self._exact is None and not self._has_hooks
        return is_unseen and self.feed.order.accumulate == 1 and not self.gradients.find_unused

    def _run_again(self, first_run: FirstRun, phase: LossPhase) -> dict[str, str]:
        """Hashes of the results of an EST step that is run a second time."""
        flat, self._runs_again = self.layout.new(), True
        try:
            self._enter(first_run.rng, first_run.values, None)
            if self.feed.can_repeat:
                batches = self.feed.again(self.state.next_step, first_run.est)
                first_run.batches = [to_device(batch, self.state.device) for batch in batches]
            of = of_batches(first_run.batches)
            loss = self._passes(first_run.est, phase, flat, first_run, send=False)
            return of | self._found(loss, flat, self._leave(first_run.est, flat))
        finally:
            self._runs_again = False

    def _enter(self, rng: RngState, values: Own, earlier: Tensor | None) -> None:
        """Start an EST step. Its gradient is added to a sum of `earlier` ones, if there is one."""
        self._earlier = earlier
        self.layout.detach()
        self._buffers.enter()
        self.state.values.enter(values)
        rng.restore(self.state.device)
        self._reached_in_est_step.clear()
        self.edits.begin_est_step()

    def _leave(self, est: Est, flat: Tensor) -> Own:
        """End an EST step whose gradient is in `flat`. Returns the values that it has changed."""
        self.edits.end_est_step(est)
        self._buffers.leave(est)
        if self._earlier is None:
            self.layout.fill(flat, self._reached_in_est_step, as_ddp=self.gradients.find_unused)
        return self.state.values.leave(est)

    def _passes(self, est: Est, phase: LossPhase, flat: Tensor, first_run: FirstRun | None, *, send: bool) -> Tensor:
        """Forward and backward passes over an EST's micro-batches. With `send` the last one sends its gradients."""
        state, order, step = self.state, self.feed.order, self.state.next_step
        counts = [len(order.batch(step, est, micro)) for micro in range(order.accumulate)]
        stored = iter(first_run.batches if first_run is not None else ())
        loss = torch.zeros((), dtype=torch.float64, device=state.device)
        for micro, count in enumerate(counts):
            if send and micro == len(counts) - 1:
                state.reducer.send_last(est, flat)
            if not count:
                continue
            with self.spans("data"):
                batch = next(stored) if self._runs_again else self._batch(est, first_run)
            weight = count * order.n_est / order.count(step)
            loss += self._pass(est, phase, batch, flat, weight).double() * (count / sum(counts))
        return loss

    def _batch(self, est: Est, first_run: FirstRun | None) -> Any:
        batch = to_device(self.feed.next(est, self.state.contexts[est].loader), self.state.device)
        if first_run is not None:
            first_run.note(batch, keep=not self.feed.can_repeat)
        return batch

    def _pass(self, est: Est, phase: LossPhase, batch: Any, flat: Tensor, weight: float) -> Tensor:
        """Forward and backward pass of one micro-batch; its loss is multiplied by `weight`."""
        self._reached.clear()
        version = flat._version
        with collectives.est_step(est), self._running(flat):
            with self.spans("forward"), self._precision():
                loss = phase.loss_fn(self.state.model, batch)
            loss = check_loss(loss)
            if flat._version != version or not self.layout.holds():
                raise UsageError(
                    f"the gradients of EST {est} changed while its loss was computed",
                    remedy="Leave zero_grad() and backward() to the trainer.",
                )
            if self._earlier is not None:
                self.layout.attach(self._earlier)
            with self.spans("backward"):
                self.state.scaler.scale(loss * weight).backward()
        self._reached_in_est_step |= self._reached
        if not self.gradients.find_unused and len(self._reached) < len(self.layout.slots):
            self._refuse_unreached(phase)
        return loss.detach()

    def _refuse_unreached(self, phase: LossPhase) -> None:
        slots = [slot for slot in self.layout.slots if phase.trains(slot.parameter)]
        missing = [slot.name for slot in slots if slot.name not in self._reached]
        if missing:
            raise UsageError(
                f"no gradient reached {', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''}",
                remedy="Freeze it (requires_grad_(False)), let the loss depend on it, or pass Gradients(find_unused=True).",
            )

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        if self.gradients.amp is None:
            return contextlib.nullcontext()
        return torch.autocast(self.state.device.type, _TYPES[self.gradients.amp])

    @contextlib.contextmanager
    def _running(self, flat: Tensor) -> Iterator[None]:
        self._into = flat
        try:
            yield
        finally:
            self._into = None

    def _found(self, loss: Tensor, flat: Tensor, changed: Own) -> dict[str, str]:
        gradients = {slot.name: slot.of(flat) for slot in self.layout.slots}
        return outcome(loss, gradients, self._buffers.named(), changed)

    def _mask(self) -> Tensor:
        return torch.tensor(
            [slot.name in self._reached_in_est_step for slot in self.layout.slots], dtype=torch.float64
        ).to(self.state.device, non_blocking=True)

    def _on_gradient(self, slot: Slot) -> None:
        if self._into is None:
            return  # A backward pass of the script, outside of any EST step.
        if slot.name in self._reached:
            raise UsageError(
                f"the gradient of {slot.name} was computed twice in one backward pass; the first one may have been sent",
                remedy="Pass use_reentrant=False to torch.utils.checkpoint, and leave backward() to the trainer.",
            )
        if not self.layout.take(slot, self._into):
            raise UsageError(
                f"the gradient of {slot.name} was replaced while its EST computed it",
                remedy="Leave zero_grad() to the trainer.",
            )
        self._reached.add(slot.name)
        if not self._runs_again:
            self.state.reducer.ready(slot)
