"""How all ranks of a running job adopt a plan between the same two steps, or none does.

Rank 0 polls for plans and announces a new one in the values that ranks exchange in every step. At the next step boundary it
proposes the change and each rank may object. Without objections all ranks apply the change, at once or before the step that
the plan names. The status gives the reason for a refused plan, and training continues. A plan with a trial is applied and
removed in blocks of steps, whose boundaries all ranks know from the start.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import msgspec

from esprof.core.assignment import Assignment
from esprof.core.errors import EsprofError, UsageError
from esprof.core.plan import CompressionBody, Plan, PlanStatus, State, read_plan_bytes, status_of
from esprof.elastic.compress.codecs.registry import check_codec
from esprof.elastic.compress.ests import Guarded
from esprof.elastic.plans.change import Change, Fits, Now
from esprof.elastic.plans.judgement import Judge, LatestSteps, TrialJudge, Verdict, WindowJudge, promise_of
from esprof.elastic.plans.memory import check_room
from esprof.elastic.plans.source import PlanSource
from esprof.elastic.plans.trial import TrialSchedule
from esprof.elastic.runtime.agree import gather_values
from esprof.elastic.runtime.transport import Transport
from esprof.run.logs import JobEvent, Setting

_TAKEN_STATES: tuple[State, ...] = ("trying", "adopted", "kept", "missed")
"""States of a plan that the job has, or has had."""


@dataclass(frozen=True)
class _Trial:
    """A change on trial, known to all ranks."""

    schedule: TrialSchedule
    change: Change
    before: Now

    def at(self, step: int) -> Change:
        """The change at the start of the block that begins with this step."""
        change = msgspec.structs.replace(self.change, at_step=step)
        return change if self.schedule.has_plan(step) else _as_before(change, self.before)


class Adoption:
    """The plans of one job. All ranks make the same calls; rank 0 alone reads plans, and judges them."""

    def __init__(
        self, source: PlanSource | None, fits: Fits, transport: Transport, record: Callable[[JobEvent], None]
    ) -> None:
        """`record` takes job events, on rank 0."""
        self._source = source if transport.rank == 0 else None
        self._fits, self._transport, self._record = fits, transport, record
        self._raw: bytes | None = None
        """A new plan that the other ranks do not know yet."""
        self._newest: Plan | None = None
        """The last plan that was not refused."""
        self._pending: Change | None = None
        """Agreed change at this step boundary or a later one."""
        self._at_once: Change | None = None
        """Agreed change at this step boundary, in addition to a pending one."""
        self._is_proven = False
        """Whether the new plan was accepted by this job before a restart."""
        self._trial: _Trial | None = None
        self._steps = LatestSteps()
        self._judge: Judge | None = None
        self._before: Now | None = None
        """The job before the plan that is judged."""
        self._settling: Change | None = None
        """Change by the verdict on that plan, which the other ranks do not know yet."""
        self._accepted: int | None = None
        """Version of the accepted plan; a plan on trial does not count."""
        self._accepted_before: int | None = None

    def version_at(self, step: int) -> int | None:
        """Version of the plan that held in a step just ended, on rank 0; None before the first plan."""
        trial = self._trial
        return trial.change.version if trial is not None and trial.schedule.has_plan(step) else self._accepted

    def has_news(self) -> bool:
        """Whether this rank has something for all ranks to agree on at the next step boundary."""
        if self._source is None:
            return False
        if self._trial is not None:  # A new plan waits for the end of the trial.
            return self._settling is not None
        if (come := self._source.poll()) is not None:
            self._raw = come
        return self._raw is not None or self._settling is not None

    def step_ended(self, step: int, took_us: float) -> None:
        """Record the time of a step, us, from the end of the previous one; judge the adopted plan when its window ends."""
        if self._source is None:
            return
        self._steps.note(took_us)
        if self._judge is None or (verdict := self._judge.step_ended(step, took_us)) is None:
            return
        plan, self._judge = self._judge.plan, None
        self._settling = self._settled(plan, verdict)
        self._report(
            verdict.outcome,
            plan,
            step + 1,
            verdict.reason,
            before_us=verdict.before_us,
            after_us=verdict.after_us,
            promised_us=promise_of(plan).step_us,
            gain_low_us=verdict.gain_low_us,
            gain_high_us=verdict.gain_high_us,
        )

    def _settled(self, plan: Plan, verdict: Verdict) -> Change | None:
        """The change that a verdict requires; None if there is none. The last block of a trial is without the plan."""
        goes_back = verdict.outcome == "reverted"
        change = Change(
            plan=plan.id, version=plan.version, at_step=0, ests=None, codec=None, settles=True, goes_back=goes_back
        )
        if self._trial is not None and not goes_back:
            tried = self._trial.change
            return msgspec.structs.replace(change, ests=tried.ests, loader=tried.loader)
        if goes_back and self._before is not None:
            before = self._before
            return msgspec.structs.replace(
                _as_before(change, before), codec=before.codec, guard=before.guard, every=before.every
            )
        return None

    def codec_given_up(self, step: int, guarded: Guarded, reason: str) -> None:
        """Record that the guard has given up the codec of a plan before this step, on all ranks."""
        if self._source is None:
            return
        reason, newest = f"the guard has given up its codec: {reason}", self._newest
        if newest is None or (newest.id, newest.version) != (guarded.plan, guarded.version):
            self._record(
                JobEvent(what="reverted", plan=guarded.plan, version=guarded.version, step=step, reason=reason)
            )
            return
        self._judge = None
        self._accepted = self._accepted_before
        self._report("reverted", newest, step, reason)

    def at_start(self, now: Now) -> Change | None:
        """The change by a plan that exists before the first step. None if the job has reverted the plan before a
        restart, or had it with another number of processes. A plan that was accepted before is not tried again."""
        if self.has_news() and (known := self._known()) is not None:
            plan, state = known
            self._is_proven = state in ("kept", "missed")
            has_other_world = state in _TAKEN_STATES and plan.job.world != now.assignment.world
            if state == "reverted" or has_other_world:
                self._raw = None
            if has_other_world and not self._is_proven:
                # Its ranks are gone; its codec is in the checkpoint from which the job resumes.
                outcome: State = "reverted" if plan.parts.compression is None else "kept"
                self._report(outcome, plan, now.step, f"the job goes on with {now.assignment.world} processes")
        news = self._raw is not None
        return self.at_boundary(now, news=any(gather_values(self._transport, news)))

    def is_due(self, step: int) -> bool:
        """Whether an agreed change is due before this step."""
        if self._at_once is not None or (self._pending is not None and self._pending.at_step <= step):
            return True
        return self._trial is not None and self._trial.schedule.starts_block(step)

    def at_boundary(self, now: Now, *, news: bool) -> Change | None:
        """The change before the next step, for the caller to apply; None if there is none. `news` is the same on all
        ranks."""
        if news:
            self._settle(now)
        if not self.is_due(now.step):
            return None
        if self._at_once is not None:
            change, self._at_once = self._at_once, None
        elif self._pending is not None and self._pending.at_step <= now.step:
            change, self._pending = self._pending, None
        else:
            assert self._trial is not None, "else nothing is due"
            return self._trial.at(now.step)
        if change.world is None:
            self._begin(change, now)
        return change

    def _settle(self, now: Now) -> None:
        """Agree on the proposal of rank 0, or refuse it."""
        plan, change = self._proposed(now)
        proposal = gather_values(self._transport, None if change is None else msgspec.to_builtins(change))[0]
        if proposal is None:
            return
        change = msgspec.convert(proposal, Change)
        objections = gather_values(self._transport, self._objection(change, now))
        reason = next((f"{why} (rank {rank})" for rank, why in enumerate(objections) if why is not None), None)
        if reason is None and change.settles:
            self._at_once = change
        elif reason is None:
            self._pending = change
        if plan is None:
            return
        if reason is not None:
            self._report("refused", plan, now.step, reason)
            return
        self._newest = plan
        if change.world is not None:
            self._report("pending", plan, now.step, f"{change.world} processes are to go on with it")
        elif change.at_step > now.step:
            self._report("pending", plan, now.step)

    def _proposed(self, now: Now) -> tuple[Plan | None, Change | None]:
        """(the plan, the change that rank 0 proposes); (None, None) on other ranks."""
        if self._settling is not None:  # Before a newer plan, which may be for a later step.
            settling, self._settling = self._settling, None
            return None, settling
        if self._raw is None:
            return None, None
        raw, self._raw, plan = self._raw, None, None
        try:
            plan = read_plan_bytes(raw)
            if self._newest is not None and plan.version <= self._newest.version:
                raise UsageError(
                    f"its version {plan.version} is not above {self._newest.version}, the version of the last plan"
                )
            change = _change(plan, self._fits, now)
            is_proven, self._is_proven = self._is_proven, False
            return plan, msgspec.structs.replace(change, blocks=0) if is_proven else change
        except UsageError as error:
            self._report("refused", plan, now.step, error.reason)
            return None, None

    def _objection(self, change: Change, now: Now) -> str | None:
        """Why this rank objects to a change; None if it does not."""
        try:
            if change.ests is not None and change.ests != now.assignment.ests:
                assignment = Assignment.of(change.ests)
                assignment.check_fits(self._fits.n_est, self._transport.world)
                if self._fits.level == "D0":
                    raise UsageError("at determinism level D0 ESTs cannot move")
                rank, gradient = self._transport.rank, self._fits.gradient_bytes
                check_room(assignment, now.assignment, rank, gradient, now.context_bytes)
            if change.codec is not None:
                check_codec(change.codec, scaled=self._fits.scaled)
            if change.guard is not None:
                check_codec(change.guard.settings.fallback, scaled=self._fits.scaled)
            if change.every is not None and now.every is None:
                raise UsageError("the job has no checkpoint folder, or adapts the interval of checkpoints itself")
        except EsprofError as error:
            return error.reason
        return None

    def _begin(self, change: Change, now: Now) -> None:
        """Start judging the steps after a change."""
        moves, reloads = change.ests not in (None, now.assignment.ests), change.loader not in (None, now.loader)
        is_tried = change.blocks > 0 and (moves or reloads)
        schedule = TrialSchedule(now.step, change.window, change.blocks)
        self._trial = _Trial(schedule, change, now) if is_tried else None
        if self._source is None:
            return
        if change.settles:
            self._accepted = self._accepted_before if change.goes_back else change.version
        else:
            plan = self._newest
            assert plan is not None, "a change is of a plan"
            before = self._steps.last(plan.fallback.window)
            if self._settling is not None:  # The assignment of the previous plan is replaced; its codec is not.
                self._settling = msgspec.structs.replace(self._settling, ests=None, loader=None)
                if change.codec is not None:
                    self._settling = None
            self._before = now
            self._judge = TrialJudge(plan, schedule, before) if is_tried else WindowJudge(plan, before)
            self._accepted_before = self._accepted
            if not is_tried:
                self._accepted = change.version
            codec = None if change.codec in (None, now.codec) else now.codec
            every = None if change.every in (None, now.every) else now.every
            was = Setting(ests=now.assignment.ests, codec=codec, loader=now.loader if reloads else None, every=every)
            before_us = median(before) if before else None
            self._report("trying" if is_tried else "adopted", plan, now.step, was=was, before_us=before_us)
        self._steps.changed()

    def _report(
        self,
        state: State,
        plan: Plan | None,
        step: int,
        reason: str = "",
        *,
        was: Setting | None = None,
        **figures: float | None,
    ) -> None:
        """Write the status and the history. If that fails, rank 0 warns and training continues."""
        about: dict[str, Any] = {"step": step, "reason": reason, **figures}
        newest = self._newest.version if self._newest is not None else None
        if plan is not None:
            about |= {"plan": plan.id, "version": plan.version}
        if state != "pending":
            self._record(JobEvent(what=state, was=was, **about))
        assert self._source is not None, "rank 0 tells"
        try:
            self._source.report_status(msgspec.json.encode(PlanStatus(state=state, newest=newest, **about)))
        except EsprofError as error:
            warnings.warn(f"the status of a plan cannot be reported: {error}", stacklevel=4)

    def _known(self) -> tuple[Plan, State] | None:
        """(the new plan, its state before a restart of the job); None if the job has not seen the plan before."""
        status = status_of(self._source.status()) if self._source is not None else None
        try:
            plan = read_plan_bytes(self._raw or b"")
        except UsageError:
            return None
        if status is None or (status.plan, status.version) != (plan.id, plan.version):
            return None
        return plan, status.state


def _change(plan: Plan, fits: Fits, now: Now) -> Change:
    """The change that a plan makes. Raises UsageError if it is for another job, or cannot be applied."""
    world = now.assignment.world
    if plan.job.n_est != fits.n_est:
        raise UsageError(f"it is for a job of {plan.job.n_est} ESTs; this job has {fits.n_est}")
    if plan.job.model_signature not in (None, fits.model_signature):
        raise UsageError("it is for another model")
    if plan.job.world != world:
        fits.check_world(plan.job.world, world)
        return Change(plan=plan.id, version=plan.version, at_step=now.step, ests=None, codec=None, world=plan.job.world)
    parts = plan.parts
    assigned, compressed, loader, saved = parts.assignment, parts.compression, parts.loader, parts.checkpoint
    if assigned is None and compressed is None and loader is None and saved is None:
        raise UsageError("it has no section that an elastic job can adopt")
    if loader is not None and now.loader is None:
        raise UsageError("it is for the trainer's own loader; this job has Loaders of the script")
    codec = None if compressed is None else _one_codec(compressed.body)
    at_step = now.step if plan.apply_at is None else plan.apply_at
    # Moving ESTs late changes no bits, and a resumed job has passed the step of its codec.
    if at_step < now.step and codec not in (None, now.codec):
        raise UsageError(f"codec {codec} was planned from step {at_step}, which is over: step {now.step} is next")
    return Change(
        plan=plan.id,
        version=plan.version,
        at_step=at_step,
        ests=None if assigned is None else assigned.body.ests,
        codec=codec,
        guard=None
        if compressed is None
        else Guarded(plan=plan.id, version=plan.version, settings=compressed.body.guard),
        loader=None if loader is None else loader.body,
        every=None if saved is None else saved.body.every,
        window=plan.fallback.window,
        blocks=plan.fallback.blocks,
    )


def _as_before(change: Change, before: Now) -> Change:
    """The change, with the assignment and the loader as they were `before`: the part that a trial takes back and forth."""
    return msgspec.structs.replace(change, ests=before.assignment.ests, loader=before.loader)


def _one_codec(body: CompressionBody) -> str:
    """The one codec of all gradients. Raises UsageError if a plan has several codecs, or is for sharded gradients."""
    if body.sharded != "none":
        raise UsageError("it is for sharded gradients; an elastic job has none")
    codecs = sorted({choice.codec for choice in (body.buckets or (body.default,))})
    if len(codecs) > 1:
        raise UsageError(f"ESTs use one codec for all gradients; the plan has {', '.join(codecs)}")
    return codecs[0]
