"""One global step of a job: the EST steps, the update, and the values that the ranks exchange."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from esprof.elastic.compress.ests import EstGuard
from esprof.elastic.leaving.departure import Departure
from esprof.elastic.plans.apply import PlanApplier
from esprof.elastic.proof.proofs import Proofs
from esprof.elastic.runtime.agree import digest, gather_values
from esprof.elastic.runtime.agreement import JobAgreement, step_terms
from esprof.elastic.runtime.est_steps import CodecInspection, EstSteps, EstStepsOutcome, RankReport
from esprof.elastic.runtime.phases import LossPhase
from esprof.elastic.runtime.placement import EstPlacement
from esprof.elastic.runtime.result import StepResult
from esprof.elastic.runtime.update import Update
from esprof.elastic.telemetry.recorder import NoTelemetry, Telemetry
from esprof.elastic.telemetry.reporter import JobReporter
from esprof.elastic.telemetry.step_clock import StepClock


@dataclass
class StepRunner:
    """Makes the steps of a job, one at a time. All ranks make the same calls."""

    est_steps: EstSteps
    update: Update
    phases: tuple[LossPhase, ...]
    """They alternate from step to step."""
    placement: EstPlacement
    agreement: JobAgreement
    trainer: int
    """Number of this trainer in the process: all ranks must interleave the steps of several trainers in the same
    order."""
    telemetry: Telemetry | NoTelemetry
    reporter: JobReporter
    clock: StepClock
    plans: PlanApplier
    departure: Departure
    proofs: Proofs
    _updated_us: float = field(default=0.0, init=False)
    """Time of the last update."""

    def run(self) -> StepResult:
        """Make the next step."""
        state, number = self.est_steps.state, self.est_steps.state.next_step
        guard, phase = state.guarding, self.phases[number % len(self.phases)]
        inspects = guard is not None and guard.inspects(number, len(self.phases))
        reruns = self.proofs.begin(number, self.placement.assignment)
        self.telemetry.begin_step(verified=reruns is not None or inspects)
        terms = self._terms()
        if reruns is not None:
            self._check_alike(number, terms)
        report = RankReport(
            digest(terms), self.plans.adoption.has_news(), self.reporter.is_asked(number), self._updated_us
        )
        found = self.est_steps.run(self.placement.assignment, phase, report, reruns, inspects=inspects)
        alarm = None
        if guard is not None and found.inspection is not None:
            alarm = self._inspect(number, guard, found.inspection)
        skipped = self._update(number, phase, found)
        is_measure = reruns is None and not inspects and not self.reporter.has_paused
        self._hear(number, terms, found, is_measure=is_measure)
        if reruns is not None:
            self.proofs.end(number, reruns, found.proof.tolist())
        result = self._result(number, found, skipped=skipped)
        if guard is not None:
            guard.note(result.loss)
        if alarm is not None and guard is not None:
            state.set_codec(guard.settings.fallback, None)
            self.plans.adoption.codec_given_up(state.next_step, guard.of, alarm)
        return result

    def _terms(self) -> dict[str, object]:
        """Inputs of the next step that must be the same on all ranks."""
        script = self.est_steps.edits.of_the_script()
        return step_terms(self.est_steps.state, self.placement.assignment) | script | {"trainer": self.trainer}

    def _check_alike(self, number: int, terms: Mapping[str, object]) -> None:
        """Compare terms, a sample, and the values of all parameters, buffers and optimizer states between the ranks, before
        EST steps run again."""
        transport, edits = self.est_steps.transport, self.est_steps.edits
        self.agreement.check_alike(number, terms)
        with self.proofs.doubts(number):
            with self.est_steps.state.reached.makes_samples(transport.rank):
                self.est_steps.feed.check_sample(number, transport)
            if self.agreement.fingerprint.determinism == "D1":
                values = edits.all()
                if len(set(gather_values(transport, digest(values)))) > 1:
                    self.agreement.check_alike(number, values)

    def _inspect(self, number: int, guard: EstGuard, inspection: CodecInspection) -> str | None:
        """Why the codec is given up; None if it is not, or if the loss scale was too large for an inspection."""
        state, n_est = self.est_steps.state, self.est_steps.feed.order.n_est
        if state.scaler.is_enabled() and not math.isfinite(inspection.lost):
            return None
        states = {est: context.codec for est, context in state.contexts.items()}
        transport = self.est_steps.transport
        return guard.inspect(number, inspection.lost, inspection.squares, states, n_est, transport, state.device)

    def _update(self, number: int, phase: LossPhase, found: EstStepsOutcome) -> bool:
        """Update the parameters. Returns whether fp16's scaler skipped the optimizers."""
        order, slots = self.est_steps.feed.order, self.est_steps.layout.slots
        epoch_ends = order.epoch(number) != order.epoch(number + 1)
        unused = [slot for slot, times in zip(slots, found.used.tolist(), strict=False) if not times]
        started_ns = time.perf_counter_ns()
        with self.telemetry.spans("optimizer"):
            skipped = self.update.run(phase.optimizers, unused, epoch_ends=epoch_ends)
        self._updated_us = (time.perf_counter_ns() - started_ns) / 1e3
        self.telemetry.end_step(number, sum(order.share(number, est) for est in self.placement.mine))
        return skipped

    def _hear(self, number: int, terms: Mapping[str, object], found: EstStepsOutcome, *, is_measure: bool) -> None:
        """Process the values that the ranks have exchanged with the losses, so that no step waits for them."""
        if found.asked.item():
            self.departure.agree()
        if len(set(found.terms.tolist())) > 1:
            self.agreement.check_alike(number, terms)
        self.plans.has_news = bool(found.news)
        assignment, busy_us, adoption = self.placement.assignment, found.busy.tolist(), self.plans.adoption
        version, updated_us = adoption.version_at(number), found.updated.tolist()
        proven = self.est_steps.state.proof.proven
        took_us = self.clock.step_ended(number, busy_us, updated_us, assignment, version, proven, is_measure=is_measure)
        if is_measure and took_us is not None:
            adoption.step_ended(number, took_us)
        self.reporter.step_ended(asked=bool(found.write), busy_us=busy_us, assignment=assignment, is_measure=is_measure)

    def _result(self, number: int, found: EstStepsOutcome, *, skipped: bool) -> StepResult:
        order, losses = self.est_steps.feed.order, found.losses.tolist()
        samples = tuple(order.share(number, est) for est in range(order.n_est))
        known = tuple(loss if count else float("nan") for loss, count in zip(losses, samples, strict=True))
        return StepResult(number, order.epoch(number), known, samples, skipped)
