"""How all ranks of a running job adopt a plan between the same two steps, or none does.

Rank 0 sees a plan, and tells that it has one with what ranks tell each other in every step. At the next border it tells what
would change; each rank says what speaks against that; and if none does, all change it, then or before the step that the plan
names. A plan that is not adopted leaves its reason in the status, and training goes on.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from esprof.assignment import Assignment
from esprof.elastic.agree import tell_all
from esprof.elastic.codecs.registry import check_codec
from esprof.elastic.plans.judgement import Judgement, Steps
from esprof.elastic.plans.memory import check_room
from esprof.elastic.plans.source import PlanSource
from esprof.elastic.proof.fingerprint import Level
from esprof.elastic.transport import Transport
from esprof.errors import EsprofError, UsageError
from esprof.plan import CompressionBody, Plan, PlanStatus, State, read_plan_bytes
from esprof.trace.history import Event

Ests = tuple[tuple[int, ...], ...]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks change together."""

    plan: str
    version: int
    at_step: int
    ests: Ests | None
    """Those of each rank; None where they stay."""
    codec: str | None
    """None where it stays."""
    goes_back: bool = False
    """Whether this takes back what the plan has changed."""


@dataclass(frozen=True)
class Fits:
    """What a plan has to fit: the same for the whole life of a trainer."""

    n_est: int
    level: Level
    scaled: bool
    """Whether the loss is scaled, as fp16's is."""
    model_signature: str
    gradient_bytes: int
    """Of all parameters."""


@dataclass(frozen=True)
class Now:
    """What holds at a border between steps."""

    step: int
    """The one to come."""
    assignment: Assignment
    codec: str
    context_bytes: int
    """Of the largest EST context that this rank has."""


class Adoption:
    """The plans of one job. All ranks make the same calls; rank 0 alone reads plans, and judges them."""

    def __init__(
        self, source: PlanSource | None, fits: Fits, transport: Transport, record: Callable[[Event], None]
    ) -> None:
        """`record` takes what happens, on rank 0."""
        self._source = source if transport.rank == 0 else None
        self._fits, self._transport, self._record = fits, transport, record
        self._raw: bytes | None = None
        """A plan that has come, and that the others do not know of yet."""
        self._newest: Plan | None = None
        """The last that was not refused."""
        self._pending: Change | None = None
        """What all have agreed on, for this border or a later one."""
        self._steps = Steps()
        self._judgement: Judgement | None = None
        self._before: tuple[Ests, str] | None = None
        """Assignment and codec before the plan that is judged."""
        self._back: Change | None = None
        """What takes back a plan, and the others do not know of yet."""

    def has_news(self) -> bool:
        """Whether the ranks have to settle something at the next border, as far as this one knows."""
        if self._source is None:
            return False
        if (come := self._source.poll()) is not None:
            self._raw = come
        return self._raw is not None or (self._back is not None and self._pending is None)

    def step_ended(self, step: int, took_us: float) -> None:
        """Note how long a step took from the end of the one before it, and judge the adopted plan when it is time to."""
        if self._source is None:
            return
        self._steps.note(took_us)
        judgement = self._judgement
        if judgement is None or (found := judgement.outcome(self._steps)) is None:
            return
        self._judgement, (outcome, after) = None, found
        if outcome == "reverted" and self._before is not None:
            ests, codec = self._before
            plan = judgement.plan
            self._back = Change(plan=plan.id, version=plan.version, at_step=0, ests=ests, codec=codec, goes_back=True)
        self._tell(
            outcome,
            judgement.plan,
            step + 1,
            "there were too few steps before it to compare with" if judgement.before_us is None else "",
            before_us=judgement.before_us,
            after_us=after,
            promised_us=judgement.promise.step_us,
        )

    def at_start(self, now: Now) -> Change | None:
        """What a plan that is there before the first step changes. One that was taken back is not adopted again."""
        news = self.has_news()
        if news and self._was_taken_back():
            self._raw, news = None, False
        return self.at_border(now, news=any(tell_all(self._transport, news)))

    def is_due(self, step: int) -> bool:
        """Whether something that was agreed on changes before this step."""
        return self._pending is not None and self._pending.at_step <= step

    def at_border(self, now: Now, *, news: bool) -> Change | None:
        """What changes before the next step, if anything: the caller changes it. `news` is the same on all ranks."""
        if news:
            self._settle(now)
        if not self.is_due(now.step):
            return None
        change, self._pending = self._pending, None
        if self._source is not None and change is not None:
            self._begin(change, now)
        return change

    def _settle(self, now: Now) -> None:
        """Agree on what rank 0 proposes, or refuse it."""
        plan, change = self._proposed(now)
        told = tell_all(self._transport, None if change is None else msgspec.to_builtins(change))[0]
        if told is None:
            return
        change = msgspec.convert(told, Change)
        objections = tell_all(self._transport, self._objection(change, now))
        reason = next((f"{why} (rank {rank})" for rank, why in enumerate(objections) if why is not None), None)
        if reason is None:
            self._pending = change
        if plan is None:
            return
        if reason is not None:
            self._tell("refused", plan, now.step, reason)
            return
        self._newest = plan
        if change.at_step > now.step:
            self._tell("pending", plan, now.step)

    def _proposed(self, now: Now) -> tuple[Plan | None, Change | None]:
        """What rank 0 proposes, and the plan that asks for it; nothing on other ranks."""
        if self._raw is None:
            back, self._back = self._back, None
            return None, back
        raw, self._raw, plan = self._raw, None, None
        try:
            plan = read_plan_bytes(raw)
            if self._newest is not None and plan.version <= self._newest.version:
                raise UsageError(
                    f"its version {plan.version} is not above {self._newest.version}, that of the last one"
                )
            return plan, _change(plan, self._fits, now)
        except UsageError as error:
            self._tell("refused", plan, now.step, error.reason)
            return None, None

    def _objection(self, change: Change, now: Now) -> str | None:
        """What speaks against a change on this rank."""
        try:
            if change.ests is not None and change.ests != now.assignment.ests:
                assignment = Assignment.of(change.ests)
                assignment.check_fits(self._fits.n_est, self._transport.world)
                if self._fits.level == "D0":
                    raise UsageError("at level D0 the ESTs stay where they are")
                rank, gradient = self._transport.rank, self._fits.gradient_bytes
                check_room(assignment, now.assignment, rank, gradient, now.context_bytes)
            if change.codec is not None:
                check_codec(change.codec, scaled=self._fits.scaled)
        except EsprofError as error:
            return error.reason
        return None

    def _begin(self, change: Change, now: Now) -> None:
        """On rank 0: from here on steps are those of the change."""
        if not change.goes_back:
            assert self._newest is not None, "a change is of a plan"
            before = self._steps.median_us(self._newest.fallback.window)
            self._before, self._back = (now.assignment.ests, now.codec), None
            self._judgement = Judgement(self._newest, before)
            self._tell("adopted", self._newest, now.step)
        self._steps.changed()

    def _tell(self, state: State, plan: Plan | None, step: int, reason: str = "", **figures: float | None) -> None:
        """Write the status, and the history; where that fails, rank 0 warns and training goes on."""
        about: dict[str, Any] = {"step": step, "reason": reason, **figures}
        if plan is not None:
            about |= {"plan": plan.id, "version": plan.version}
        if state != "pending":
            self._record(Event(what=state, **about))
        assert self._source is not None, "rank 0 tells"
        try:
            self._source.tell(msgspec.json.encode(PlanStatus(state=state, **about)))
        except EsprofError as error:
            warnings.warn(f"nobody learns what became of a plan: {error}", stacklevel=4)

    def _was_taken_back(self) -> bool:
        """Whether the plan that has come is one that this job has adopted and taken back, before it started anew."""
        told = self._source.told() if self._source is not None else None
        try:
            status = msgspec.json.decode(told or b"", type=PlanStatus)
            plan = read_plan_bytes(self._raw or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError, UsageError):
            return False
        return (status.state, status.plan, status.version) == ("reverted", plan.id, plan.version)


def _change(plan: Plan, fits: Fits, now: Now) -> Change:
    """What a plan changes of a job. Raises UsageError where it is of another job, or asks for what cannot be changed."""
    world = now.assignment.world
    if plan.job.n_est != fits.n_est:
        raise UsageError(f"it is for a job of {plan.job.n_est} ESTs, and this one has {fits.n_est}")
    if plan.job.model_signature not in (None, fits.model_signature):
        raise UsageError("it is for another model")
    if plan.job.world != world:
        raise UsageError(f"it is for {plan.job.world} processes, and here are {world}")
    assigned, compressed = plan.parts.assignment, plan.parts.compression
    if assigned is None and compressed is None:
        raise UsageError("it has no part that an elastic job can adopt")
    codec = None if compressed is None else _one_codec(compressed.body)
    at_step = now.step if plan.apply_at is None else plan.apply_at
    # ESTs may move late, which changes no bits; and a job that goes on has had the codec's step.
    if at_step < now.step and codec not in (None, now.codec):
        raise UsageError(
            f"step {at_step}, from which gradients should be encoded by {codec}, is over: {now.step} is next"
        )
    return Change(
        plan=plan.id,
        version=plan.version,
        at_step=at_step,
        ests=None if assigned is None else assigned.body.ests,
        codec=codec,
    )


def _one_codec(body: CompressionBody) -> str:
    """The codec of all gradients: ESTs encode each whole. Raises UsageError where a plan has several, or is for shards."""
    if body.sharded != "none":
        raise UsageError("it is for sharded gradients, which an elastic job has none of")
    codecs = sorted({choice.codec for choice in (body.buckets or (body.default,))})
    if len(codecs) > 1:
        raise UsageError(f"ESTs have one codec for all gradients, and the plan has {', '.join(codecs)}")
    return codecs[0]
