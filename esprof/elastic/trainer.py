"""`ElasticTrainer`: data-parallel training whose bits depend on the number of logical workers, not on where they run."""

import json
import math
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.amp import GradScaler
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from esprof.core.assignment import Assignment, Est
from esprof.core.errors import UsageError
from esprof.elastic.checkpoint import extra
from esprof.elastic.checkpoint.saving import Checkpoints
from esprof.elastic.checkpoint.snapshot import capture, restore, training_tensors
from esprof.elastic.compress.codecs.registry import check_codec
from esprof.elastic.compress.ests import EstGuard
from esprof.elastic.data.feed import feed
from esprof.elastic.data.loaders import Loaders
from esprof.elastic.launch.told import Left
from esprof.elastic.launch.worker import Launched
from esprof.elastic.options import (
    Checkpoint,
    Data,
    Drain,
    Gradients,
    Proof,
    ScheduleBy,
    Tuning,
    check,
    check_reduction,
    check_steps,
)
from esprof.elastic.plans.adoption import Adoption, Change, Fits, Now
from esprof.elastic.plans.signature import model_signature
from esprof.elastic.plans.source import PlanSource, source_of
from esprof.elastic.plans.tuned import begin, or_tuned
from esprof.elastic.reduce.choice import bucket_bytes, reducer
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.reduce.measured import measured
from esprof.elastic.reduce.tree_reducer import TreeReducer
from esprof.elastic.runtime import support
from esprof.elastic.runtime.agree import digest, tell_all, together
from esprof.elastic.runtime.context import EstContext, move
from esprof.elastic.runtime.drain import Drained, Leaver
from esprof.elastic.runtime.phases import LossFn, phases
from esprof.elastic.runtime.rng import derived_seed, seed_all
from esprof.elastic.runtime.terms import JobTerms, job_fields, start_terms, step_terms
from esprof.elastic.runtime.threads import set_threads
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import Transport, transport_for
from esprof.elastic.runtime.turns import CodecLook, Telling, Turns
from esprof.elastic.runtime.update import BeforeUpdate, Update
from esprof.elastic.telemetry.account import Account
from esprof.elastic.telemetry.recorder import open_telemetry
from esprof.elastic.telemetry.spans import StepSpans
from esprof.elastic.verify.edits import Edits
from esprof.elastic.verify.fingerprint import Level, pin
from esprof.elastic.verify.hashlog import HashLog
from esprof.elastic.verify.rollcall import AloneRollCall, roll_call
from esprof.elastic.verify.steplog import Fingerprint
from esprof.run.logs import JobEvent, LiveStep
from esprof.run.request import TelemetryRequest
from esprof.run.run import Exchange

_VERIFIED_AT_START = 2
"""Steps after a start whose turns are run twice: what an EST leaves behind in one may show in the next."""


_GLOO_ENDS_S = 0.5
"""PyTorch 2.13 may abort a process that ends right after its last collective on gloo."""


@dataclass(frozen=True)
class StepResult:
    """One global step: what all ESTs did together."""

    step: int
    epoch: int
    losses: tuple[float, ...]
    """Mean loss of each EST over its samples, NaN for an EST that had none; the same on every rank."""
    samples: tuple[int, ...]
    """Number of samples of each EST."""
    skipped: bool
    """Whether the fp16 scaler found an infinite gradient and the parameters stayed as they were."""

    @property
    def loss(self) -> float:
        """Mean loss of the ESTs that had samples, added in the order of their numbers."""
        known = [loss for loss, count in zip(self.losses, self.samples, strict=True) if count]
        return sum(known) / len(known)


class ElasticTrainer:
    """Trains `n_est` logical workers on however many processes `torchrun` has started.

    Every process builds the same model, optimizer and dataset, and makes the same calls. `loss_fn(model, batch)` returns the
    mean loss of a batch of `batch_size` samples. The gradient of a step is the mean of those of its ESTs, as in
    `DistributedDataParallel` with `n_est` processes; buffers such as BatchNorm's follow EST 0, as they do there. In place of
    a dataset that has a state pass `Loaders`.

    Of several optimizers all step by the one loss; with as many losses each steps by its own, and they take turns, step by
    step, as in a GAN. `seed` is that of the samples' order and of every random number. A `scheduler`, or each of several,
    steps after every step of its optimizer, or every epoch if so asked. `state` is what the script keeps besides, the same
    on all ranks, such as a moving average of the weights: objects with `state_dict()` and `load_state_dict()`, which are
    saved and restored with the rest. `Data`, `Gradients`, `Checkpoint`, `Proof` and `Drain` have the options of one matter
    each.
    `before_update(step)` is called when the parameters have the step's gradient, and `after_step(result)` when the step is
    over; all ranks do the same there. `telemetry` is a Run directory to which the newest steps are written, EST by EST.
    `assignment` says which ESTs run where; by default evenly and contiguously. `transport` connects the processes; by
    default it is torch.distributed, where that was initialized. `plan` is where plans for the running job come from: a file,
    or a `PlanKey`; docs/elastic.md says what becomes of them. With `tuning` a loop beside the job finds such plans. Where
    `esprof tune` has started the job, or there is `tuning`, and the script says nothing else, `telemetry` and `plan` are
    the loop's.

    Raises MismatchError where the ranks, or the checkpoint, are not of one job, and UsageError for what is not supported:
    SyncBatchNorm, sparse gradients, parameters of several types.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        loss_fn: LossFn | Sequence[LossFn],
        dataset: Dataset[Any] | Loaders,
        n_est: int,
        *,
        batch_size: int,
        seed: int = 0,
        scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
        scheduler_by: ScheduleBy = "step",
        state: Mapping[str, Stateful] | None = None,
        data: Data = Data(),  # noqa: B008 It is frozen.
        gradients: Gradients = Gradients(),  # noqa: B008
        checkpoint: Checkpoint | None = None,
        proof: Proof = Proof(),  # noqa: B008
        drain: Drain | None = None,
        before_update: BeforeUpdate | None = None,
        after_step: Callable[[StepResult], object] | None = None,
        telemetry: str | Path | None = None,
        assignment: Assignment | None = None,
        plan: str | Path | PlanSource | None = None,
        tuning: Tuning | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._launched = Launched()
        if drain is None and self._launched.is_launched:
            drain = Drain()
        telemetry, plan = or_tuned(telemetry, plan, tuning)
        optimizers, schedulers = _all_of(optimizer), _all_of(scheduler)
        check(n_est=n_est, batch_size=batch_size, scheduler_by=scheduler_by)
        check_reduction(gradients.reduction, proof.determinism)
        check_steps(optimizers, schedulers)
        support.check(model, optimizers)
        self._phases = phases(loss_fn, optimizers)
        extra.check(state or {})
        self._feed = feed(dataset, n_est, batch_size, seed, data, outlive=drain is not None)
        self.order = self._feed.order
        self._roll_call = roll_call() if transport is None else AloneRollCall()
        transport = transport or transport_for(model, self._roll_call)
        self.assignment = assignment or Assignment.even(n_est, transport.world)
        self.assignment.check_fits(n_est, transport.world)
        self.layout = Layout(model, transport.world, bucket_bytes(gradients.bucket_mb))
        device = self.layout.device
        self._telemetry = open_telemetry(telemetry, transport, device, data.num_workers, model_signature(model))
        self._account = Account(Path(telemetry) if telemetry else None, self._telemetry)
        self._transport = self._telemetry.transport
        self.state = TrainingState(
            model,
            optimizers,
            schedulers,
            scaler=GradScaler(device.type, enabled=gradients.amp == "fp16"),
            reducer=reducer(
                gradients.reduction,
                self.layout,
                self._transport,
                n_est,
                gradients.bucket_mb,
                find_unused=gradients.find_unused,
            ),
            codecs={0: gradients.codec},
            contexts={est: EstContext.new(seed + est, device) for est in self._mine},
            device=device,
            own=dict(state or {}),
        )
        self.state.scaler.scale(torch.zeros((), device=device))  # It begins by this; a rank may have no EST to do so.
        self._proof, self._after_step = proof, after_step
        self._edits = Edits(model, optimizers)
        self._update = Update(self.state, self.layout, seed, gradients.clip_norm, before_update, scheduler_by)
        with self._roll_call.call("ElasticTrainer()"):
            set_threads(proof.threads, checkpoint, self._transport)
            pin(optimizers, device)
            job = job_fields(self.state, self.order, gradients, scheduler_by, loaders=isinstance(dataset, Loaders))
            start = start_terms(self.state, gradients, proof, checkpoint, telemetry=telemetry is not None)
            start["plan"] = plan is not None
            start["drain"] = drain is not None
            self._agreement = JobTerms.reach(
                proof.determinism, self._transport, self.state, self.assignment, job, start
            )
            self.state.share(self._transport)
            self.checkpoints = self._open_checkpoints(checkpoint)
            self._first_step = self.next_step
            self._feed.move(self._mine, self.next_step)
            self._log = self._open_log(proof)
        self._leaver = Leaver(drain, transport.rank, self._whole_step()) if drain is not None else None
        self._turns = Turns(
            self.state,
            self.layout,
            self._transport,
            self._feed,
            self.spans,
            gradients.amp,
            gradients.find_unused,
            self._edits,
            across_ranks=self.fingerprint.determinism == "D1",
            leaver=self._leaver,
        )
        self._unusable: str | None = None
        """Why no further step can be made; None while one can."""
        self._has_news = False
        """Whether the ranks have to settle something before the next step."""
        self._leaves_for: int | None = None
        """Processes that the job is to go on with once it has left; None where nobody has said that."""
        self._adoption = self._open_adoption(plan, proof.determinism)
        self._ended_ns = time.perf_counter_ns()
        self._updated_us = 0.0
        """What the last update took."""
        where = f"{n_est} ESTs on {self._transport.world} processes"
        self._account.record(JobEvent(what="started", step=self.next_step, reason=where))
        self._between_steps()
        if self._leaver is not None:
            self._leaver.listen()
            weakref.finalize(self, self._leaver.drop).atexit = False
        self._loop = begin(tuning, transport.rank)
        self._launched.made()

    @property
    def next_step(self) -> int:
        """Number of the step that `step()` will make, from 0."""
        return self.state.next_step

    def step(self) -> StepResult:
        """One forward and backward pass of every EST, one reduction, one step of the optimizer.

        Raises UsageError for what would make the bits depend on where ESTs run, as far as that is noticed (docs/elastic.md
        says how), for a gradient that is missing or comes twice, and for kernel settings that have changed; MismatchError
        where the ranks differ, or one does not come. After a step that raised no other can be made. Raises Drained in place
        of a step, on all ranks, where one was asked to leave in the step before.
        """
        if self.is_leaving:
            self._leave()
        number = self.next_step
        with self._roll_call.call(f"step {number}"):
            self._check_usable()
            self._account.answer(self._measured)
            self._adopt()
            self._save_if_due()
            self.layout.check()
            self._turns.check()
            support.check_optimizers(self.layout, self.state.optimizers)
            self._agreement.check_settings()
            self._unusable = "a step of it has failed, and ESTs stand at different places"  # Until this one is over.
            result = self._step(number, verified=self._is_verified(number))
            if self._log:
                self._write_hashes(self._log, result)
            self._unusable = None
        self._between_steps()
        if self._after_step is not None:
            self._after_step(result)
        return result

    def fit(self, epochs: int) -> Iterator[StepResult]:
        """The steps up to the end of epoch `epochs` - 1, one at a time."""
        while self.next_step < epochs * self.order.steps_per_epoch:
            yield self.step()
        self.flush()

    def save(self) -> None:
        """Write a checkpoint of the job as it is now, and return once it is on disk. Every rank calls this between the same
        two steps. Raises OutputError on all ranks where it cannot be written, UsageError without a `checkpoint` folder."""
        with self._roll_call.call("save()"):
            self._check_usable()
            if self.checkpoints is None:
                raise UsageError("there is no folder to save to", remedy="Pass checkpoint=Checkpoint(FOLDER).")
            self.checkpoints.begin(self.next_step, lambda: capture(self.state))
            self.checkpoints.finish()

    def flush(self) -> None:
        """Write what is still to be written. `fit` ends with this; a script that calls `step` calls this after the last, on
        every rank."""
        with self._roll_call.call("flush()"):
            self._save_if_due()
            if self.checkpoints:
                self.checkpoints.finish_or_warn()
            self._telemetry.flush()

    def close(self) -> None:
        """Write what is still to be written, and let go of the model, files and threads: no more steps are made. Every rank
        calls this."""
        if self._unusable is None:
            self.flush()
        self._let_go("it was closed")
        if self._leaver is not None:
            self._leaver.close()

    def request_drain(self, reason: str) -> None:
        """Ask this process to leave, as SIGTERM does: after a step in which all ranks are told, each raises Drained as the
        next one begins. Any rank may call this, at any time and in any thread. Raises UsageError without `drain`."""
        if self._leaver is None:
            raise UsageError("this job leaves at nobody's request", remedy="Pass drain=Drain().")
        self._leaver.ask(reason)

    @property
    def is_leaving(self) -> bool:
        """Whether the next `step()` saves and raises Drained: a script may skip what takes long until then. It is the same
        on all ranks between two steps."""
        return self._leaver is not None and self._leaver.agreed

    def _leave(self) -> NoReturn:
        """Save, tell each other who was asked, and end this trainer, all ranks before the same step."""
        assert self._leaver is not None
        number, stopped_ns = self.next_step, time.time_ns()
        with self._roll_call.call(f"leaving before step {number}"):
            self._check_usable()
            if self.checkpoints is not None:
                self.checkpoints.begin(number, lambda: capture(self.state))
                self.checkpoints.finish()
            elif self._transport.rank == 0:
                warnings.warn("the job leaves without a checkpoint: it has no folder for one", stacklevel=3)
            self._telemetry.flush()
            self._leaver.look_for_notice()
            reasons = tell_all(self._transport, self._leaver.reason)
        others = [f"{reason} (rank {rank})" for rank, reason in enumerate(reasons) if reason is not None]
        others = others or [f"{self._leaves_for} processes are to go on"]
        self._account.record(JobEvent(what="left", step=number, reason=others[0]))
        if self._launched.hears(self._transport.rank):
            asked = self._leaver.reason is not None
            self._launched.left(
                Left(step=number, world=self._leaves_for, reason=others[0], asked=asked, stopped_ns=stopped_ns)
            )
        self._leaver.saved()
        self._let_go("it has left")
        if self._transport.world > 1:
            time.sleep(_GLOO_ENDS_S)
        raise Drained(self._leaver.code, number, self._leaver.reason or others[0])

    def _let_go(self, why: str) -> None:
        self._unusable = why
        self._turns.close()
        self._account.close()
        if self._loop is not None:
            self._loop.close()
        if self.checkpoints:
            self.checkpoints.close()
        if self._log:
            self._log.close()
        self._roll_call.close()

    def assign(self, assignment: Assignment) -> None:
        """From the next step on run the ESTs by `assignment`. Every rank calls this between the same two steps.

        Raises UsageError at level D0 and for another number of ESTs or processes, MismatchError where the ranks differ.
        """
        with self._roll_call.call("assign()"):
            self._check_usable()
            assignment.check_fits(self.order.n_est, self._transport.world)
            if self.fingerprint.determinism == "D0":
                raise UsageError("at level D0 the ESTs stay where they are", remedy="Pass Proof(determinism='D1').")
            self._agreement.check_alike(self.next_step, {"assignment": json.dumps(assignment.ests)})
            self._move(assignment)

    def set_codec(self, spec: str, from_step: int) -> None:
        """Encode gradients with the codec `spec` from that step on; the old one's state is dropped. Every rank calls this.

        The step must lie ahead, unless this was planned before it: a job that goes on from a checkpoint may say it again.
        Raises UsageError for a step that is past or an unknown codec. A codec changes the training, as the learning rate
        does, and is part of a run's identity; an assignment is not.
        """
        codecs = self.state.codecs
        if codecs.get(from_step) == spec:
            return
        if from_step < self.next_step:
            raise UsageError(f"step {from_step} is past: the next one is {self.next_step}")
        check_codec(spec, scaled=self.state.scaler.is_enabled())
        if from_step == self.next_step:  # A later change is compared along with the losses of an earlier step.
            with self._roll_call.call("set_codec()"):
                self._agreement.check_alike(self.next_step, {"codec": spec})
        codecs[from_step] = spec

    @property
    def fingerprint(self) -> Fingerprint:
        """What the job's bits depend on, as all ranks have agreed."""
        return self._agreement.fingerprint

    @property
    def spans(self) -> StepSpans:
        """The notes of how long the parts of a step take, kept if telemetry is asked for."""
        return self._telemetry.spans

    @property
    def _mine(self) -> tuple[Est, ...]:
        return self.assignment.ests[self._transport.rank]

    def _step(self, number: int, *, verified: bool) -> StepResult:
        guard = self.state.guarding
        looks = guard is not None and guard.looks_at(number, len(self._phases))
        self._telemetry.begin_step(verified=verified or looks)
        terms = step_terms(self.state, self.assignment) | self._edits.of_the_script()
        # Of several trainers, all ranks have to take the steps in the same order.
        terms |= {"trainer": self._roll_call.number}
        if verified:
            alike = terms | (self._edits.all() if self.fingerprint.determinism == "D1" else {})
            self._agreement.check_alike(number, alike)
            self._feed.check_sample(number, self._transport)
        phase = self._phases[number % len(self._phases)]
        telling = Telling(digest(terms), self._adoption.has_news(), self._account.is_asked(number), self._updated_us)
        found = self._turns.run(self.assignment, phase, telling, twice=verified, looks=looks)
        alarm = self._look(number, guard, found.looked) if guard is not None and found.looked is not None else None
        epoch_ends = self.order.epoch(number) != self.order.epoch(number + 1)
        unused = [slot for slot, times in zip(self.layout.slots, found.used.tolist(), strict=False) if not times]
        begun_ns = time.perf_counter_ns()
        with self.spans("optimizer"):
            skipped = self._update.run(phase.optimizers, unused, epoch_ends=epoch_ends)
        self._updated_us = (time.perf_counter_ns() - begun_ns) / 1e3
        self._telemetry.end_step(number, sum(self.order.share(number, est) for est in self._mine))
        if self._leaver is not None and found.asked.item():
            self._leaver.agree()
        if len(set(found.told.tolist())) > 1:  # Told with the losses, so that no step waits for it.
            self._agreement.check_alike(number, terms)
        self._has_news = bool(found.news)
        busy_us, is_measure = found.busy.tolist(), not (verified or looks or self._account.has_paused)
        self._note_time(number, busy_us, found.updated.tolist(), is_measure=is_measure)
        self._account.step_ended(
            asked=bool(found.write), busy_us=busy_us, assignment=self.assignment, is_measure=is_measure
        )
        result = self._result(number, found.losses.tolist(), skipped=skipped)
        if guard is not None:
            guard.note(result.loss)
        if alarm is not None and guard is not None:
            self.state.set_codec(guard.settings.fallback, None)
            self._adoption.codec_given_up(self.next_step, guard.of, alarm)
        return result

    def _look(self, number: int, guard: EstGuard, looked: CodecLook) -> str | None:
        """Why the codec is to be given up; None where it is not, or the loss scale was too large to tell."""
        if self.state.scaler.is_enabled() and not math.isfinite(looked.lost):
            return None
        states = {est: context.codec for est, context in self.state.contexts.items()}
        return guard.look(
            number, looked.lost, looked.squares, states, self.order.n_est, self._transport, self.state.device
        )

    def _is_verified(self, number: int) -> bool:
        """Whether the turns of a step are run twice."""
        every = self._proof.verify_every
        return every != 0 and (
            number < self._first_step + _VERIFIED_AT_START or (every is not None and number % every == 0)
        )

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise UsageError(
                f"this ElasticTrainer cannot go on: {self._unusable}",
                remedy="Make a new one; with checkpoint= it goes on from the last checkpoint.",
            )

    def _move(self, assignment: Assignment) -> None:
        move(self.state.contexts, self.assignment, assignment, self._transport, self.state.device)
        self.assignment = assignment
        self._feed.move(self._mine, self.next_step)

    def _open_adoption(self, plan: str | Path | PlanSource | None, level: Level) -> Adoption:
        """What plans go through; one that is there already is adopted before the first step."""
        fits = Fits(
            n_est=self.order.n_est,
            level=level,
            scaled=self.state.scaler.is_enabled(),
            model_signature=model_signature(self.state.model),
            gradient_bytes=self.layout.numel * self.layout.dtype.itemsize,
            check_world=partial(self._launched.check_world, saves=self.checkpoints is not None),
        )
        adoption = Adoption(source_of(plan), fits, self._transport, self._account.record)
        if plan is not None:
            with self._roll_call.call("ElasticTrainer()"):
                self._change(adoption.at_start(self._now()))
        return adoption

    def _adopt(self) -> None:
        """Change what a plan says is to change before the next step."""
        if self._has_news or self._adoption.is_due(self.next_step):
            self._change(self._adoption.at_border(self._now(), news=self._has_news))

    def _now(self) -> Now:
        sizes = [
            sum(tensor.nbytes for tensor in context.tensors().values()) for context in self.state.contexts.values()
        ]
        guard, codec = self.state.guarding, self.state.codec_spec(self.next_step)
        return Now(
            self.next_step, self.assignment, codec, guard.of if guard is not None else None, max(sizes, default=0)
        )

    def _change(self, change: Change | None) -> None:
        """Carry out what all ranks have agreed on."""
        if change is None:
            return
        if change.world is not None:
            assert self._leaver is not None, "who is launched can leave"
            self._leaves_for = change.world
            self._leaver.agree()
        if change.ests is not None and change.ests != self.assignment.ests:
            self._move(Assignment.of(change.ests))
        if change.codec is not None and change.codec != self.state.codec_spec(self.next_step):
            self.state.set_codec(change.codec, change.guard)

    def _note_time(self, number: int, busy_us: list[float], updated_us: list[float], *, is_measure: bool) -> None:
        """Tell how long the step took that has just ended, from the end of the one before; one that was made twice, say, is
        no measure of others."""
        ended_ns, before_ns = time.perf_counter_ns(), self._ended_ns
        self._ended_ns = ended_ns
        if self._transport.rank != 0:
            return
        if (scaled := self._launched.stepped(number, self._transport.world)) is not None:
            self._account.record(scaled)
        took_us = (ended_ns - before_ns) / 1e3
        self._account.show(
            LiveStep(
                step=number,
                took_us=took_us,
                busy_us=tuple(busy_us),
                ests=tuple(map(len, self.assignment.ests)),
                updated_us=tuple(updated_us),
                version=self._adoption.version_at(number),
                twice=not is_measure,
            )
        )
        if is_measure:
            self._adoption.step_ended(number, took_us)

    def _measured(self, request: TelemetryRequest, est_s: Sequence[float]) -> tuple[Exchange, ...]:
        """What somebody wants to know of exchanges."""
        if not isinstance(self.state.reducer, TreeReducer):
            return ()
        with torch.no_grad():
            return measured(
                request,
                self.layout,
                self._telemetry.unwatched,
                self.assignment,
                est_s,
                self.state.codec_spec(self.next_step),
                scaled=self.state.scaler.is_enabled(),
                leaves=lambda: self._leaver is not None and self._leaver.reason is not None,
            )

    def _save_if_due(self) -> None:
        """Begin the checkpoint that is due between two steps: as the next one begins, so that it holds what the script has
        done after the last, such as an update of an average."""
        if self._unusable is None and self.checkpoints and self.checkpoints.due(self.next_step):
            self.checkpoints.begin(self.next_step, lambda: capture(self.state))

    def _between_steps(self) -> None:
        """Leave the job to the script. All generators are seeded, so that what it draws depends on the step alone, not on
        which ESTs this rank has run last; and what it changes of the model will be noticed."""
        seed_all(derived_seed(self.order.seed, "between", self.next_step))
        self._edits.mark()

    def _result(self, number: int, losses: list[float], *, skipped: bool) -> StepResult:
        samples = tuple(self.order.share(number, est) for est in range(self.order.n_est))
        known = tuple(loss if count else float("nan") for loss, count in zip(losses, samples, strict=True))
        return StepResult(number, self.order.epoch(number), known, samples, skipped)

    def _open_checkpoints(self, asked: Checkpoint | None) -> Checkpoints | None:
        """The job's checkpoints; from the last one, if there is one, it goes on."""
        if asked is None:
            return None
        checkpoints = Checkpoints(
            asked,
            self._transport,
            self.fingerprint,
            self._roll_call,
            lambda saved: self._account.record(JobEvent(what="checkpoint", step=saved.step)),
        )
        if (found := checkpoints.read_latest(self._mine)) is not None:
            restore(self.state, *found)
        return checkpoints

    def _whole_step(self) -> Callable[[], int | None]:
        """Tells the step of the newest whole checkpoint, and keeps no hold of this trainer."""
        checkpoints = self.checkpoints
        return lambda: checkpoints.whole_step if checkpoints is not None else None

    def _open_log(self, proof: Proof) -> HashLog | None:
        """The log of steps, from the next one on."""
        if not proof.hash_log:
            return None
        path, values = Path(proof.hash_log), proof.hash_log_values
        with together(self._transport):
            return HashLog(path, self.fingerprint, self.next_step, self._transport, values=values)

    def _write_hashes(self, log: HashLog, result: StepResult) -> None:
        log.write(
            result.step,
            result.epoch,
            result.losses,
            training_tensors(self.state),
            skipped=result.skipped,
            assignment=self.assignment.ests,
            codec=self.state.codec_spec(result.step),
        )


def _all_of(parts: Any) -> tuple[Any, ...]:
    """One or several of a kind, or none, as a tuple."""
    if parts is None:
        return ()
    return tuple(parts) if isinstance(parts, Sequence) else (parts,)
