"""`ElasticTrainer`: data-parallel training whose bits depend on the number of logical workers, not on where they run."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sized
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from esprof.elastic import support
from esprof.elastic.agree import digest, together
from esprof.elastic.assignment import Assignment, Est
from esprof.elastic.data import Batches, SampleOrder
from esprof.elastic.loaders import MakeLoader, batches_per_epoch
from esprof.elastic.options import check_options, check_steps
from esprof.elastic.proof.fingerprint import (
    Level,
    agree,
    check_level,
    check_unchanged,
    group_fields,
    kernel_settings,
    machine_fields,
    model_fields,
    optimizer_fields,
    pin,
    plain,
    require_alike,
)
from esprof.elastic.proof.hashlog import HashLog
from esprof.elastic.proof.steplog import Value
from esprof.elastic.reduce.choice import Reduction, bucket_bytes, reducer
from esprof.elastic.reduce.codecs import Codec, codec
from esprof.elastic.reduce.layout import Layout, Slot
from esprof.elastic.state.buffers import Buffers
from esprof.elastic.state.context import EstContext, hand_over
from esprof.elastic.state.rng import RngState, derived_seed, seed_all
from esprof.elastic.state.saving import Checkpoints
from esprof.elastic.state.snapshot import capture, restore, training_tensors
from esprof.elastic.telemetry.recorder import Telemetry
from esprof.elastic.telemetry.spans import Spans
from esprof.elastic.transport import Alone, GroupTransport, Transport
from esprof.errors import UsageError

LossFn = Callable[[nn.Module, Any], Tensor]
"""(model, batch) -> loss, a scalar: the mean over the batch's samples."""


@dataclass(frozen=True)
class StepResult:
    """One global step: what all ESTs did together."""

    step: int
    epoch: int
    losses: tuple[float, ...]
    """Per EST, the mean over its samples; NaN for an EST that had none. The same on every rank."""
    samples: tuple[int, ...]
    """Per EST, how many it had."""
    skipped: bool
    """Whether the fp16 scaler found an infinite gradient and the parameters stayed as they were."""

    @property
    def loss(self) -> float:
        """Mean over the ESTs that had samples, in the order of their numbers."""
        known = [loss for loss, count in zip(self.losses, self.samples, strict=True) if count]
        return sum(known) / len(known)


class ElasticTrainer:
    """Trains `n_est` logical workers on however many processes `torchrun` has started.

    Every process builds the same model, optimizer and dataset, and makes the same calls. `loss_fn(model, batch)` returns the
    mean loss of a batch. The gradient of a step is the mean of those of its ESTs, as in `DistributedDataParallel` with
    `n_est` processes; buffers such as BatchNorm's follow EST 0, as they do there.

    For a dataset that has a state pass None, and as `loaders` what makes a StatefulDataLoader for each EST, given its number
    and `n_est`; `batch_size` says how large its batches are.

    `accumulate` batches make a step of an EST. `amp` is None, "bf16" or "fp16" (with one loss scaler for all). `codec` names
    what gradients are encoded with before they are added. `reduction` says how they are added: "tree", whose bits depend on
    `n_est` alone; "ring", which gives the bits of `DistributedDataParallel` with `n_est` processes on gloo; or "all-reduce",
    whose bits depend on the assignment. `bucket_mb` is DDP's `bucket_cap_mb`. `scheduler` steps after every step, or every
    epoch if so asked.
    `assignment` says which ESTs run where; by default evenly and contiguously. `telemetry` is a Run directory to which the
    newest steps are written, EST by EST.

    `determinism` is the level of `fingerprint` that is enforced on all ranks: "D1", "D0" or "hetero-relaxed". `checkpoint`
    is a folder that all ranks share: a job goes on from the last checkpoint there, writes one every `checkpoint_every` steps
    in the background and whenever `save` is called, and keeps the last `keep_checkpoints`. `hash_log` is a file to which
    rank 0 writes what every bit was after each step, for `esprof elastic diff`; with `hash_log_values` it keeps the values.

    Raises MismatchError where the ranks, or the checkpoint, are not of one job, and UsageError for what is not supported:
    SyncBatchNorm, sparse gradients, parameters without a gradient, parameters of several types.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        loss_fn: LossFn,
        dataset: Dataset[Any] | None,
        n_est: int,
        *,
        batch_size: int,
        accumulate: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        loaders: MakeLoader | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        scheduler: LRScheduler | None = None,
        scheduler_by: Literal["step", "epoch"] = "step",
        clip_norm: float | None = None,
        amp: Literal["bf16", "fp16"] | None = None,
        codec: str = "none",
        assignment: Assignment | None = None,
        reduction: Reduction = "tree",
        bucket_mb: float | None = None,
        telemetry: str | Path | None = None,
        determinism: Level = "D1",
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 0,
        keep_checkpoints: int = 2,
        hash_log: str | Path | None = None,
        hash_log_values: bool = False,
        transport: Transport | None = None,
    ) -> None:
        check_options(n_est=n_est, batch_size=batch_size, accumulate=accumulate, num_workers=num_workers)
        check_options(amp=amp, reduction=reduction, scheduler_by=scheduler_by, clip_norm=clip_norm, bucket_mb=bucket_mb)
        check_steps(optimizer, scheduler)
        if checkpoint_every and not checkpoint:
            raise UsageError("checkpoint_every= is of no use without a folder", remedy="Pass checkpoint=, too.")
        check_level(determinism, reduction)
        self.model = model
        self.optimizer = optimizer
        self.n_est = n_est
        self.seed = seed
        self.scheduler = scheduler
        self.transport = transport or _transport(model)
        self.assignment = assignment or Assignment.even(n_est, self.transport.world)
        self.next_step = 0
        """Number of the step that `step()` will make, from 0."""
        self._dataset = dataset
        self._loaders = loaders
        self.order = SampleOrder(
            self._count(batch_size, accumulate), n_est, batch_size, accumulate, seed, drop_last, shuffle
        )
        self._check_assignment(self.assignment)
        support.check(model, optimizer)
        self._loss_fn = loss_fn
        self._workers = num_workers
        self._collate = collate_fn
        self._scheduler_by = scheduler_by
        self._clip_norm = clip_norm
        self._amp = {"bf16": torch.bfloat16, "fp16": torch.float16, None: None}[amp]
        self.layout = Layout(model, self.transport.world, bucket_bytes(bucket_mb))
        self.device = self.layout.device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=amp == "fp16")
        self.telemetry = (
            Telemetry(Path(telemetry), self.transport, self.device, workers=num_workers) if telemetry else None
        )
        self.transport = self.telemetry.transport if self.telemetry else self.transport
        self.spans = self.telemetry.spans if self.telemetry else Spans(self.device)
        self.codecs: dict[int, str] = {0: codec}
        """Step -> what gradients are encoded with from there on."""
        self._check_codec(codec)
        self.reducer = reducer(reduction, self.layout, self.transport, n_est, bucket_mb)
        self._buffers = Buffers(model)
        self._seen: set[str] = set()
        self._hooks = self.layout.watch(self._on_gradient)
        pin(optimizer, self.device)
        self.fingerprint = agree(
            determinism,
            self.transport,
            self._job(amp, reduction, codec, bucket_mb),
            machine_fields(self.device),
            self._terms()
            | {
                "scheduler": plain(scheduler.state_dict()) if scheduler is not None else None,
                "bucket_mb": bucket_mb,
                "telemetry": telemetry is not None,
                "hash_log": hash_log is not None,
                "checkpoint": checkpoint is not None,
                "checkpoint_every": checkpoint_every,
            },
            json.dumps(self.assignment.ests),
        )
        self._settings = kernel_settings()
        self._share_initial_state()
        self.contexts = {est: self._new_context(est) for est in self._mine}
        self._batches: Batches | None = None
        self.checkpoints = (
            Checkpoints(
                Path(checkpoint), self.transport, self.fingerprint, every=checkpoint_every, keep=keep_checkpoints
            )
            if checkpoint
            else None
        )
        self._resume()
        self._log = self._open_log(Path(hash_log), hash_log_values) if hash_log else None
        self._unusable: str | None = None
        """Why no further step can be made."""
        self._seed_between_steps()

    def step(self) -> StepResult:
        """One forward and backward pass of every EST, one reduction, one step of the optimizer. After one that raised there
        is no other."""
        self._check_usable()
        self.layout.check()
        check_unchanged(self._settings, self.fingerprint.determinism)
        self._unusable = "a step of it has failed, and ESTs stand at different places"  # Until this one is over.
        number = self.next_step
        if self.telemetry:
            self.telemetry.begin_step()
        terms, world = self._terms(), self.transport.world
        shared = torch.zeros(self.n_est + world, dtype=torch.float64, device=self.device)
        losses, digests = shared.split([self.n_est, world])
        digests[self.transport.rank] = digest(terms)
        self.reducer.begin(self.assignment, self._codec_at(number), self._codec_states())
        self._buffers.begin()
        for est in self._mine:
            with self.spans.turn(est):
                losses[est] = self._turn(number, est, last=est == self._mine[-1])
        with self.spans("reduce"):
            self.layout.attach(self.reducer.finish(), clear=False)
            self._buffers.finish(self.transport, self.assignment.owner(0))
            self.transport.add(shared).wait()
        with self.spans("optimizer"):
            seed_all(derived_seed(self.seed, "update", number))  # A noisy optimizer does the same on all ranks.
            skipped = self._update()
        self.next_step += 1
        epoch = self.order.epoch(number)
        if self.scheduler is not None and (self._scheduler_by == "step" or self.order.epoch(self.next_step) != epoch):
            self.scheduler.step()
        if self.telemetry:
            self.telemetry.end_step(number, sum(self._samples(number, est) for est in self._mine))
        result = self._result(number, losses.tolist(), skipped=skipped)
        if len(set(digests.tolist())) > 1:  # Told with the losses, so that no step waits for it.
            self._require_alike(number, terms)
        if self._log:
            self._write_hashes(self._log, result)
        if self.checkpoints and self.checkpoints.due(self.next_step):
            self.checkpoints.begin(self.next_step, lambda: capture(self))
        self._unusable = None
        self._seed_between_steps()
        return result

    def fit(self, epochs: int) -> Iterator[StepResult]:
        """The steps up to the end of epoch `epochs` - 1, one at a time."""
        while self.next_step < epochs * self.order.steps_per_epoch:
            yield self.step()
        self.flush()

    def save(self) -> None:
        """Write a checkpoint of the job as it is now, and return once it is on disk. Every rank calls this between the same
        two steps. Raises OutputError on all of them where it cannot be written."""
        self._check_usable()
        if self.checkpoints is None:
            raise UsageError("there is no folder to save to", remedy="Pass checkpoint= to ElasticTrainer.")
        self.checkpoints.begin(self.next_step, lambda: capture(self))
        self.checkpoints.finish()

    def flush(self) -> None:
        """Write what is still to be written. `fit` ends with this; who calls `step` calls it after the last one."""
        if self.checkpoints:
            self.checkpoints.finish_or_warn()
        if self.telemetry:
            self.telemetry.write()

    def close(self) -> None:
        """Write what is still to be written, and let go of the model, files and threads: no more steps are made. Every rank
        calls this."""
        if self._unusable is None:
            self.flush()
        self._unusable = "it was closed"
        for hook in self._hooks:
            hook.remove()
        if self.checkpoints:
            self.checkpoints.close()
        if self._log:
            self._log.close()

    def assign(self, assignment: Assignment) -> None:
        """From the next step on run the ESTs elsewhere. Every rank calls this between the same two steps."""
        self._check_usable()
        self._check_assignment(assignment)
        if self.fingerprint.determinism == "D0":
            raise UsageError("at level D0 the ESTs stay where they are", remedy="Pass determinism='D1'.")
        self._require_alike(self.next_step, {"assignment": json.dumps(assignment.ests)})
        for est in range(self.n_est):
            source, target = self.assignment.owner(est), assignment.owner(est)
            if source != target:
                context = hand_over(self.contexts.pop(est, None), source, self.transport, self.device)
                if target == self.transport.rank:
                    self.contexts[est] = context
        self.assignment = assignment
        self._batches = None

    def set_codec(self, spec: str, from_step: int) -> None:
        """Encode gradients with another codec from that step on; state of the old one is dropped. Every rank calls this.

        The step must lie ahead, unless this was planned before it: a job that goes on from a checkpoint may say it again.
        This changes the training, as the learning rate does, and is part of a run's identity; an assignment is not.
        """
        if self.codecs.get(from_step) == spec:
            return
        if from_step < self.next_step:
            raise UsageError(f"step {from_step} is past: the next one is {self.next_step}")
        self._check_codec(spec)
        if from_step == self.next_step:  # A later one is compared with the losses of a step before it.
            self._require_alike(self.next_step, {"codec": spec})
        self.codecs[from_step] = spec

    @property
    def _mine(self) -> tuple[Est, ...]:
        return self.assignment.ests[self.transport.rank]

    def _turn(self, number: int, est: Est, *, last: bool) -> Tensor:
        """One EST's part of a step: its gradient, and its loss, which stays on the device: nothing need wait for it."""
        flat = self.reducer.buffer()
        with self.spans("switch"):
            self.layout.attach(flat, clear=True)
            self._buffers.enter()
            self.contexts[est].rng.restore(self.device)
        counts = [len(self.order.batch(number, est, micro)) for micro in range(self.order.accumulate)]
        total, loss = sum(counts), torch.zeros((), dtype=torch.float64, device=self.device)
        for micro, count in enumerate(counts):
            if last and micro == len(counts) - 1:
                self.reducer.send_last(est, flat)
            if count:
                loss += self._pass(est, count * self.n_est / self.order.count(number)).double() * (count / total)
        with self.spans("switch"):
            self.contexts[est].rng = RngState.capture(self.device)
            self._buffers.leave(est)
        if not last:
            with self.spans("stage"):
                self.reducer.fold(est, flat)
        return loss

    def _pass(self, est: Est, weight: float) -> Tensor:
        """Forward and backward of one micro-batch, whose loss counts `weight`."""
        with self.spans("data"):
            batch = support.to_device(self._next_batch(est), self.device)
        self._seen.clear()
        with self.spans("forward"), self._precision():
            loss = self._loss_fn(self.model, batch)
        with self.spans("backward"):
            self.scaler.scale(loss * weight).backward()
        if len(self._seen) < len(self.layout.slots):
            missing = [slot.name for slot in self.layout.slots if slot.name not in self._seen]
            raise UsageError(
                f"no gradient reached {', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''}",
                remedy="Freeze it (requires_grad_(False)), or let the loss depend on it: nothing finds unused parameters.",
            )
        return loss.detach()

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        return torch.autocast(self.device.type, self._amp) if self._amp else contextlib.nullcontext()

    def _on_gradient(self, slot: Slot) -> None:
        if self.spans.est is None:
            return  # A backward pass of somebody else's.
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
        self.reducer.ready(slot)

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise UsageError(
                f"this ElasticTrainer cannot go on: {self._unusable}",
                remedy="Make a new one; with checkpoint= it goes on from the last checkpoint.",
            )

    def _seed_between_steps(self) -> None:
        """What a script draws between two steps depends on the step alone, not on which ESTs a rank has run last."""
        seed_all(derived_seed(self.seed, "between", self.next_step))

    def _update(self) -> bool:
        """Clip and step; whether the step was skipped."""
        before = self.scaler.get_scale()
        self.scaler.unscale_(self.optimizer)
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_([slot.parameter for slot in self.layout.slots], self._clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() < before

    def _count(self, batch_size: int, accumulate: int) -> int:
        """Samples of an epoch."""
        if self._loaders is not None:
            return batches_per_epoch(self._loaders, self.n_est, self.seed, accumulate) * batch_size * self.n_est
        if not isinstance(self._dataset, Sized):
            raise UsageError("the dataset has no length", remedy="Pass loaders=, a StatefulDataLoader for each EST.")
        return len(self._dataset)

    def _next_batch(self, est: Est) -> Any:
        if self._loaders is not None:
            per_epoch = self.order.steps_per_epoch * self.order.accumulate
            return self.contexts[est].loader.next(self._loaders, est, self.n_est, self.seed, per_epoch)
        if self._batches is None:
            assert self._dataset is not None
            self._batches = Batches(
                self._dataset, self.order, self._mine, self.next_step, workers=self._workers, collate=self._collate
            )
        return next(self._batches)

    def _codec_at(self, step: int) -> Codec | None:
        """The codec of a step. At the step in which it changes the ESTs begin with an empty state."""
        if step in self.codecs:
            for context in self.contexts.values():
                context.codec.clear()
        return codec(self._codec_name(step))

    def _codec_name(self, step: int) -> str:
        return self.codecs[max(start for start in self.codecs if start <= step)]

    def _codec_states(self) -> dict[Est, dict[str, dict[str, Tensor]]]:
        return {est: context.codec for est, context in self.contexts.items()}

    def _result(self, number: int, losses: list[float], *, skipped: bool) -> StepResult:
        samples = tuple(self._samples(number, est) for est in range(self.n_est))
        known = tuple(loss if count else float("nan") for loss, count in zip(losses, samples, strict=True))
        return StepResult(number, self.order.epoch(number), known, samples, skipped)

    def _samples(self, number: int, est: Est) -> int:
        """How many samples an EST has in a step."""
        return sum(len(self.order.batch(number, est, micro)) for micro in range(self.order.accumulate))

    def _new_context(self, est: Est) -> EstContext:
        before = RngState.capture(self.device)
        seed_all(self.seed + est)
        context = EstContext(RngState.capture(self.device))
        before.restore(self.device)
        return context

    def _terms(self) -> dict[str, object]:
        """What a step depends on that may change from one to the next: it is the same on all ranks."""
        return {
            "assignment": json.dumps(self.assignment.ests),
            "codecs": json.dumps(self.codecs),
            **group_fields(self.optimizer),
        }

    def _require_alike(self, step: int, fields: dict[str, object]) -> None:
        require_alike(self.transport, f"step {step}", fields, _ALIKE)

    def _job(self, amp: str | None, reduction: Reduction, codec: str, bucket_mb: float | None) -> dict[str, Value]:
        """What of the job its fingerprint holds."""
        scheduler = type(self.scheduler).__name__ if self.scheduler is not None else None
        own = {
            "loaders": self._loaders is not None,
            "amp": amp,
            "reduction": reduction,
            "bucket_mb": bucket_mb if reduction == "ring" else None,  # Of a tree's sum the bits do not depend on it.
            "codec": codec,
            "clip_norm": self._clip_norm,
            "scheduler": scheduler,
            "scheduler_by": self._scheduler_by,
        }
        return {**asdict(self.order), **own, **optimizer_fields(self.optimizer), **model_fields(self.model)}

    def _resume(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        found = self.checkpoints.read_latest(self._mine) if self.checkpoints else None
        if found is not None:
            restore(self, found)

    def _open_log(self, path: Path, values: bool) -> HashLog:
        """The log of steps, from the next one on."""
        with together(self.transport):
            return HashLog(path, self.fingerprint, self.next_step, self.transport, values=values)

    def _write_hashes(self, log: HashLog, result: StepResult) -> None:
        log.write(
            result.step,
            result.epoch,
            result.losses,
            training_tensors(self),
            skipped=result.skipped,
            assignment=self.assignment.ests,
            codec=self._codec_name(result.step),
        )

    def _share_initial_state(self) -> None:
        """All ranks start from rank 0's parameters and buffers, as under DistributedDataParallel."""
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            self.transport.broadcast(tensor.detach(), 0).wait()

    def _check_assignment(self, assignment: Assignment) -> None:
        if (assignment.n_est, assignment.world) != (self.n_est, self.transport.world):
            raise UsageError(
                f"the assignment is of {assignment.n_est} ESTs to {assignment.world} processes; "
                f"here are {self.n_est} and {self.transport.world}"
            )

    def _check_codec(self, spec: str) -> None:
        made = codec(spec)
        if made is not None and made.has_state and self.scaler.is_enabled():
            raise UsageError(
                f"codec {spec} keeps what it did not send, which fp16's loss scale would falsify: use bf16"
            )


_ALIKE = "Let every rank make the same calls between the same two steps, and set the same."


def _transport(model: nn.Module) -> Transport:
    if not dist.is_available() or not dist.is_initialized():
        return Alone()
    gpus = [str(parameter.device) for parameter in model.parameters() if parameter.is_cuda]
    return GroupTransport(gpu=gpus[0]) if gpus else GroupTransport()
