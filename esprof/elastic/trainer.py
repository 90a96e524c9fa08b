"""`ElasticTrainer`: data-parallel training whose bits depend on the number of logical workers, not on where they
run."""

import json
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from torch import nn
from torch.optim import Optimizer

from esprof.core.assignment import Assignment
from esprof.core.errors import UsageError
from esprof.core.types import Rank
from esprof.elastic.checkpoint.job_checkpoints import JobCheckpoints, SaveLog
from esprof.elastic.checkpoint.saving import Checkpoints
from esprof.elastic.data.feed import Feed, feed, loads_ahead
from esprof.elastic.launch.worker import Launched
from esprof.elastic.leaving.departure import Departure
from esprof.elastic.options import (
    Checkpoint,
    Data,
    Drain,
    Gradients,
    Placement,
    Proof,
    Updates,
    as_tuple,
)
from esprof.elastic.plans.adoption import Adoption
from esprof.elastic.plans.apply import PlanApplier
from esprof.elastic.plans.change import Fits
from esprof.elastic.plans.signature import model_signature
from esprof.elastic.plans.source import PlanSource, source_of
from esprof.elastic.plans.tuning_loop import start_loop, with_tuning
from esprof.elastic.proof.proofs import Proofs
from esprof.elastic.proof.schedule import ProofSchedule
from esprof.elastic.reduce.choice import bucket_bytes
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.reduce.measured import measure_exchanges
from esprof.elastic.runtime import support
from esprof.elastic.runtime.agree import value_of
from esprof.elastic.runtime.agreement import JobAgreement, job_fields, script_of, set_threads, start_terms
from esprof.elastic.runtime.est_steps import EstSteps
from esprof.elastic.runtime.phases import LossFn, LossPhase
from esprof.elastic.runtime.placement import EstPlacement
from esprof.elastic.runtime.result import StepResult
from esprof.elastic.runtime.rng import derived_seed, seed_all
from esprof.elastic.runtime.step import StepRunner
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import transport_for
from esprof.elastic.runtime.update import Update
from esprof.elastic.telemetry.recorder import open_telemetry
from esprof.elastic.telemetry.reporter import JobReporter
from esprof.elastic.telemetry.spans import StepSpans
from esprof.elastic.telemetry.step_clock import StepClock
from esprof.elastic.verify.edits import Edits
from esprof.elastic.verify.fingerprint import Level, pin
from esprof.elastic.verify.hashlog import StepHashes
from esprof.elastic.verify.rollcall import AloneRollCall, roll_call
from esprof.elastic.verify.steplog import Fingerprint
from esprof.run.logs import JobEvent
from esprof.run.request import TelemetryRequest
from esprof.run.run import Exchange


class ElasticTrainer:
    """Trains `n_est` logical workers on however many processes `torchrun` has started.

    All processes build the same model, optimizer and dataset, and make the same calls. `loss_fn(model, batch)` returns
    the mean loss of a batch. The gradient of a step is the mean of those of its ESTs, as in `DistributedDataParallel`
    with `n_est` processes; buffers such as BatchNorm's follow EST 0, as they do there. Several optimizers
    all step by a single loss, or each by a loss of its own; the pairs then alternate from step to step, as in a GAN.

    The option groups are documented in `esprof.elastic.options`. `telemetry` is a Run directory to which the newest
    steps are written, with the time of each EST.

    Raises MismatchError if the ranks or the checkpoint belong to different jobs, and UsageError for unsupported models:
    SyncBatchNorm, sparse gradients, parameters of several types.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        loss_fn: LossFn | Sequence[LossFn],
        data: Data,
        n_est: int,
        *,
        updates: Updates = Updates(),  # noqa: B008 It is frozen.
        gradients: Gradients = Gradients(),  # noqa: B008
        checkpoint: Checkpoint | None = None,
        proof: Proof = Proof(),  # noqa: B008
        drain: Drain | None = None,
        telemetry: str | Path | None = None,
        placement: Placement = Placement(),  # noqa: B008
    ) -> None:
        self._launched = Launched()
        if drain is None and self._launched.is_launched:
            drain = Drain()
        telemetry, plan = with_tuning(telemetry, placement)
        optimizers = as_tuple(optimizer)
        loss_phases = support.checked(model, optimizers, loss_fn, n_est, updates, gradients, proof)
        batches = feed(data, n_est, outlive=drain is not None)
        self.order, self._updates, self._proof = batches.order, updates, proof
        self._roll_call = roll_call() if placement.transport is None else AloneRollCall()
        transport = placement.transport or transport_for(model, self._roll_call)
        assignment = placement.assignment_of(n_est, transport.world)
        self.layout = Layout(model, transport.world, bucket_bytes(gradients.bucket_mb))
        ahead, signature = partial(loads_ahead, batches), model_signature(model)
        self._telemetry = open_telemetry(telemetry, transport, self.layout.device, ahead, signature)
        self._reporter = JobReporter(Path(telemetry) if telemetry else None, self._telemetry)
        self._transport = self._telemetry.transport
        self.state = TrainingState.started(
            model, optimizers, updates, gradients, data, as_tuple(loss_fn), self.layout, self._transport, assignment
        )
        self._placement = EstPlacement(assignment, self.state, batches, self._transport)
        asked = {"telemetry": telemetry is not None, "plan": plan is not None, "drain": drain is not None}
        with self._roll_call.call("ElasticTrainer()"):
            self._agree(data, updates, gradients, checkpoint, proof, asked, batches, as_tuple(loss_fn))
        last_saved, record = self._saving.whole_step(), self._reporter.record
        self._departure = Departure(drain, self._launched, self._transport, last_saved, record)
        self._unusable: str | None = None
        """Why no further step can be made; None while one can."""
        self._est_steps = EstSteps(
            self.state,
            self.layout,
            self._transport,
            batches,
            self.spans,
            gradients,
            Edits(model, optimizers, self.state.reached.turns.modules),
            leaver=self._departure.leaver,
        )
        self._plans = self._open_plans(plan, proof.determinism)
        self._runner = _runner(self, Update(self.state, self.layout, data.seed, gradients, updates), loss_phases)
        self._begin()
        self._loop = start_loop(placement.tuning, transport.rank)
        self._launched.made()

    def _agree(
        self,
        data: Data,
        updates: Updates,
        gradients: Gradients,
        checkpoint: Checkpoint | None,
        proof: Proof,
        asked: Mapping[str, bool],
        batches: Feed,
        losses: Sequence[LossFn],
    ) -> None:
        """Let all ranks agree on the job, and start it from its last checkpoint, if there is one."""
        transport, assignment, record = self._transport, self.assignment, self._reporter.record
        set_threads(proof.threads, checkpoint, transport)
        pin(self.state.optimizers, self.layout.device)
        job = job_fields(self.state, self.order, data, updates, gradients)
        start = start_terms(self.state, gradients, proof, checkpoint, asked)
        script = script_of(self.state, losses, data, batches, proof, transport)
        self._agreement = JobAgreement.reach(proof.determinism, transport, self.state, assignment, job, start, script)
        self.state.share(transport)
        log, mine, agreed = SaveLog(record, self._telemetry.note_save), self._placement.mine, self.fingerprint
        self._saving = JobCheckpoints(checkpoint, proof, self.state, mine, transport, agreed, self._roll_call, log)
        self._placement.begin()
        self._hashes = StepHashes(proof, self.fingerprint, self.state, transport)

    def _open_plans(self, plan: str | Path | PlanSource | None, level: Level) -> PlanApplier:
        """Open the source of plans. A plan that already exists is applied before the first step."""
        check_world = partial(self._launched.check_world, saves=self.checkpoints is not None)
        fits = Fits.of(self.state, self.layout, self.order.n_est, level, check_world)
        adoption = Adoption(source_of(plan), fits, self._transport, self._reporter.record)
        applier = PlanApplier(adoption, self.state, self._placement, self._departure, self._saving)
        if plan is not None:
            with self._roll_call.call("ElasticTrainer()"):
                applier.apply_at_start()
        return applier

    def _begin(self) -> None:
        found, world = self.state.reached.announce(self._transport.rank), self._transport.world
        where = f"{self.order.n_est} ESTs on {world} processes{found}"
        proven = self.state.proof.proven
        self._reporter.record(JobEvent(what="started", step=self.next_step, proven=proven, reason=where))
        self._between_steps()
        if (leaver := self._departure.leaver) is not None:
            leaver.listen()
            weakref.finalize(self, leaver.drop).atexit = False

    @property
    def next_step(self) -> int:
        """Number of the step that `step()` will make, from 0."""
        return self.state.next_step

    @property
    def assignment(self) -> Assignment:
        """Which ESTs run on which rank now."""
        return self._placement.assignment

    @property
    def checkpoints(self) -> Checkpoints | None:
        """The job's checkpoints; None where it has no folder for them."""
        return self._saving.checkpoints

    @property
    def fingerprint(self) -> Fingerprint:
        """Everything that the job's bits depend on, as agreed by all ranks."""
        return self._agreement.fingerprint

    @property
    def spans(self) -> StepSpans:
        """The durations of the phases of a step, recorded if there is telemetry."""
        return self._telemetry.spans

    def step(self) -> StepResult:
        """One forward and backward pass of every EST, one reduction, one step of the optimizer.

        Raises UsageError if a check finds that the bits depend on where ESTs run (see docs/how-to/elastic.md), for a
        gradient that is missing or computed twice, and for changed kernel settings. Raises MismatchError if the ranks
        differ or a rank does not make the call. After an error the trainer cannot make further steps. Raises Drained
        on all ranks, instead of a step, if a rank was asked to leave during the previous step.
        """
        if self.is_leaving:
            self._leave()
        number = self.next_step
        with self._roll_call.call(f"step {number}"):
            self._check_usable()
            self._reporter.answer(self._measured)
            self._placement.note_changes()
            self._plans.apply_due()
            self._saving.begin_if_due()
            self.layout.check()
            self._est_steps.check()
            support.check_optimizers(self.layout, self.state.optimizers)
            self._agreement.check_settings()
            self._unusable = "one of its steps failed, and its ESTs may be at different steps"  # Until it is over.
            result = self._runner.run()
            self._hashes.write(result, self.assignment)
            self._unusable = None
        self._between_steps()
        if self._updates.after_step is not None:
            self._updates.after_step(result)
        return result

    def fit(self, epochs: int) -> Iterator[StepResult]:
        """The steps up to the end of epoch `epochs` - 1, one at a time."""
        while self.next_step < epochs * self.order.steps_per_epoch:
            yield self.step()
        self.flush()

    def save(self) -> None:
        """Write a checkpoint of the job as it is now, and return once it is on disk. All ranks call this between the
        same two steps. Raises OutputError on all ranks if it cannot be written, UsageError without a `checkpoint`
        folder."""
        with self._roll_call.call("save()"):
            self._check_usable()
            self._saving.save()

    def flush(self) -> None:
        """Write pending checkpoints and telemetry. `fit` ends with this; a script that calls `step` calls this after
        the last step, on all ranks."""
        with self._roll_call.call("flush()"):
            if self._unusable is None:
                self._saving.begin_if_due()
            self._saving.finish_or_warn()
            self._telemetry.flush()
            self._runner.proofs.note(self.next_step)

    def close(self) -> None:
        """Write pending checkpoints and telemetry, and release the model, files and threads. All ranks call this. No
        further steps are possible."""
        if self._unusable is None:
            self.flush()
        self._let_go("it was closed")
        self._departure.close()

    def assign(self, assignment: Assignment) -> None:
        """Use `assignment` from the next step on. All ranks call this between the same two steps.

        Raises UsageError at level D0 and for another number of ESTs or processes, MismatchError if the ranks differ.
        """
        with self._roll_call.call("assign()"):
            self._check_usable()
            assignment.check_fits(self.order.n_est, self._transport.world)
            if self.fingerprint.determinism == "D0":
                raise UsageError("at determinism level D0 ESTs cannot move", remedy="Pass Proof(determinism='D1').")
            self._agreement.check_alike(self.next_step, {"assignment": json.dumps(assignment.ests)})
            self._placement.move(assignment)

    def set_codec(self, spec: str, from_step: int) -> None:
        """Encode gradients with the codec `spec` from that step on; the state of the old codec is dropped. All ranks
        call this.

        The step must not be over, except that a resumed job may repeat an earlier call. Raises UsageError for a step
        that is over or an unknown codec. A codec changes the training, as the learning rate does, and is part of the
        identity of a job; an assignment is not.
        """
        if self.state.codecs.get(from_step) == spec:
            return
        self.state.check_codec(spec, from_step)
        if from_step == self.next_step:  # A later change is compared along with the losses of an earlier step.
            with self._roll_call.call("set_codec()"):
                self._agreement.check_alike(self.next_step, {"codec": spec})
        self.state.codecs[from_step] = spec

    def agree(self, value: Any, rank: Rank = 0) -> Any:
        """The `value` that `rank` passes, on all ranks: for what one rank decides, such as when to stop. All ranks call
        this between the same two steps.

        Raises UsageError on all ranks for a value that JSON does not have; tuples become lists.
        """
        with self._roll_call.call("agree()"):
            self._check_usable()
            return value_of(self._transport, value, rank)

    def request_drain(self, reason: str) -> None:
        """Ask this process to leave, as SIGTERM does. During the next step all ranks learn of the request; each raises
        Drained when the step after it starts. Any rank may call this, at any time and in any thread. Raises UsageError
        without `drain`."""
        self._departure.ask(reason)

    @property
    def is_leaving(self) -> bool:
        """Whether the next `step()` saves and raises Drained: a script may skip long work until then. Between two
        steps it is the same on all ranks."""
        return self._departure.is_agreed

    def _leave(self) -> NoReturn:
        """Save, exchange who was asked, and end this trainer. All ranks do this before the same step."""
        number, stopped_ns = self.next_step, time.time_ns()
        with self._roll_call.call(f"leaving before step {number}"):
            self._check_usable()
            self._saving.save_to_leave()
            self._telemetry.flush()
            self._runner.proofs.note(number)
            reasons = self._departure.reasons()
        drained = self._departure.saved(number, reasons, stopped_ns)
        self._let_go("it has left the job")
        self._departure.wait_for_gloo()
        raise drained

    def _let_go(self, why: str) -> None:
        self._unusable = why
        self._est_steps.close()
        self._reporter.close()
        if self._loop is not None:
            self._loop.close()
        self._saving.close()
        self._hashes.close()
        self._roll_call.close()

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise UsageError(
                f"this ElasticTrainer cannot go on: {self._unusable}",
                remedy="Make a new one. With checkpoint= it resumes from the last checkpoint.",
            )

    def _between_steps(self) -> None:
        """Return control to the script. All generators are seeded, so that random numbers drawn by the script depend
        on the step alone, not on the ESTs of this rank. Changes of the model from here on are detected."""
        seed_all(derived_seed(self.order.seed, "between", self.next_step))
        self._est_steps.edits.mark()
        self.state.mark()

    def _measured(self, request: TelemetryRequest, est_s: Sequence[float]) -> tuple[Exchange, ...]:
        """Measure the exchanges that a request asks for."""
        unwatched, leaves = self._telemetry.unwatched, lambda: self._departure.is_asked
        return measure_exchanges(request, est_s, self.state, self.layout, unwatched, self.assignment, leaves)


def _proofs(trainer: ElasticTrainer, losses: int) -> Proofs:
    """The proofs of a job that is about to make its first step in this process."""
    asked, feed = trainer._proof, trainer._est_steps.feed
    across_ranks = asked.determinism == "D1" and feed.can_repeat
    schedule = ProofSchedule(
        asked.prove_every, trainer.next_step, losses, trainer.order.steps_per_epoch, across_ranks=across_ranks
    )
    record, saving = trainer._reporter.record, trainer._saving
    return Proofs(schedule, asked.on_divergence, trainer.state, trainer._transport, record, saving)


def _runner(trainer: ElasticTrainer, update: Update, loss_phases: tuple[LossPhase, ...]) -> StepRunner:
    return StepRunner(
        trainer._est_steps,
        update,
        loss_phases,
        trainer._placement,
        trainer._agreement,
        trainer._roll_call.number,
        trainer._telemetry,
        trainer._reporter,
        StepClock(trainer._reporter, trainer._launched, trainer._transport),
        trainer._plans,
        trainer._departure,
        _proofs(trainer, len(loss_phases)),
    )
