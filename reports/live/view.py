"""What the page shows of a job: figures made of what its files tell, without I/O."""

import time
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from esprof.core.plan import Plan, PlanStatus
from esprof.reports.live.decisions import rejected, revocable
from esprof.reports.live.job import WatchedJob
from esprof.reports.live.offer import Offer
from esprof.run.logs import JobEvent, LiveStep, Round

_NEWEST_STEPS = 50
"""Steps that figures of now are of."""

_MAX_STEPS_SHOWN = 400
"""Steps in the chart."""

MAX_ROWS = 64
"""Ranks in a table."""

_MAX_EVENTS = 50
"""Events of the history."""

_QUIET_AFTER_S = 10.0
"""A job that has told of no step for so long, and for 20 steps' time, is not said to run."""
_QUIET_AFTER_STEPS = 20

State = Literal["empty", "waiting", "running", "quiet", "left"]


@dataclass(frozen=True)
class RankView:
    """One rank, over the newest steps."""

    rank: int
    count: int
    """Of ESTs."""
    ests: tuple[int, ...] | None
    """Which; None where only the number is known."""
    busy_us: float
    waits_us: float
    share_pct: float
    """Of the step, busy."""


@dataclass(frozen=True)
class PlanView:
    """The plan that the job was given last, and what became of it."""

    plan: Plan | None
    status: PlanStatus | None
    """None where the job has not said anything of this plan."""
    adopted: JobEvent | None
    """The plan that can be rolled back: it need not be the newest."""


OfferState = Literal["offered", "outdated", "accepted", "rejected", "keep", "none"]


@dataclass(frozen=True)
class View:
    """All of a job's page."""

    name: str
    run: str
    state: State
    quiet_s: float | None
    """For how long there was no step, to a figure or two."""
    next_step: int
    step_us: float | None
    """Median of the newest steps."""
    per_s: float | None
    newest: int
    """Steps that this is the median of."""
    version: int | None
    """Of the plan that holds."""
    n_est: int | None
    world: int | None
    ranks: tuple[RankView, ...]
    idle_pct: float | None
    """What the ranks are not busy, on average, of the time that the busiest is."""
    steps: tuple[LiveStep, ...]
    marks: tuple[JobEvent, ...]
    """Changes of the plan that lie within the steps."""
    plan: PlanView
    offer: Offer | None
    offer_state: OfferState
    looked_ns: int | None
    reason: str
    """Why there is no advice."""
    is_looking: bool
    history: tuple[JobEvent, ...]
    """The newest first."""
    events: int
    rounds: tuple[Round, ...]
    problems: tuple[str, ...]
    said: str


def view_of(job: WatchedJob) -> View:
    """What is shown of a job now."""
    steps, history = tuple(job.steps)[-_MAX_STEPS_SHOWN:], job.history
    newest = _newest(tuple(job.steps))
    ranks = _ranks(newest, job)
    busy = [rank.busy_us for rank in ranks]
    step_us = median(step.took_us for step in newest) if newest else None
    state, quiet_s = _state(job, step_us)
    last = job.steps[-1] if job.steps else None
    looked = job.looked
    offer = looked.offer if looked is not None else None
    return View(
        name=job.name,
        run=str(job.run),
        state=state,
        quiet_s=quiet_s,
        next_step=job.next_step,
        step_us=step_us,
        per_s=1e6 / step_us if step_us else None,
        newest=len(newest),
        version=last.version if last is not None else None,
        n_est=sum(last.ests) if last is not None else None,
        world=len(last.ests) if last is not None else None,
        ranks=ranks,
        idle_pct=100 * (1 - fmean(busy) / max(busy)) if busy and max(busy) > 0 else None,
        steps=steps,
        marks=_marks(history, steps),
        plan=_plan(job),
        offer=offer,
        offer_state=_offer_state(job, offer),
        looked_ns=looked.time_ns if looked is not None else None,
        reason=looked.reason if looked is not None else "",
        is_looking=job.is_looking,
        history=history[::-1][:_MAX_EVENTS],
        events=len(history),
        rounds=job.rounds,
        problems=job.problems,
        said=job.said,
    )


def _newest(steps: tuple[LiveStep, ...]) -> tuple[LiveStep, ...]:
    """The newest steps that are alike: of one plan and one set of processes, and measures at all."""
    alike: list[LiveStep] = []
    for step in reversed(steps):
        if (step.version, step.ests) != (steps[-1].version, steps[-1].ests) or len(alike) == _NEWEST_STEPS:
            break
        if not step.twice:
            alike.append(step)
    return tuple(alike)


def _ranks(newest: tuple[LiveStep, ...], job: WatchedJob) -> tuple[RankView, ...]:
    if not newest:
        return ()
    counts, took = newest[0].ests, median(step.took_us for step in newest)
    known = _ests(counts, job)
    found = []
    for rank, count in enumerate(counts):
        times = [step.busy_us[rank] for step in newest if rank < len(step.busy_us)]
        busy = median(times) if times else 0.0
        found.append(
            RankView(
                rank=rank,
                count=count,
                ests=known[rank] if known is not None else None,
                busy_us=busy,
                waits_us=max(0.0, took - busy),
                share_pct=min(100.0, 100 * busy / took) if took > 0 else 0.0,
            )
        )
    return tuple(found)


def _ests(counts: tuple[int, ...], job: WatchedJob) -> tuple[tuple[int, ...], ...] | None:
    """Which ESTs the ranks run: as the plan says that came last, or as it was before that, if the counts agree."""
    came = [event for event in job.history if event.what in ("adopted", "trying", "started", "scaled")][-1:]
    known = [event.was.ests for event in came if event.was is not None]
    if job.plan is not None and job.plan.parts.assignment is not None and [one.plan for one in came] == [job.plan.id]:
        known.insert(0, job.plan.parts.assignment.body.ests)
    return next((ests for ests in known if tuple(map(len, ests)) == counts), None)


def _state(job: WatchedJob, step_us: float | None) -> tuple[State, float | None]:
    last = job.history[-1] if job.history else None
    if last is not None and last.what == "left":
        return "left", None
    if job.last_step_at is None:
        return ("empty" if last is None else "waiting"), None
    quiet_s = time.time() - job.last_step_at
    if quiet_s < max(_QUIET_AFTER_S, _QUIET_AFTER_STEPS * (step_us or 0) / 1e6):
        return "running", None
    unit = 10 if quiet_s < 60 else 60 if quiet_s < 3600 else 3600
    return "quiet", quiet_s // unit * unit


def _marks(history: tuple[JobEvent, ...], steps: tuple[LiveStep, ...]) -> tuple[JobEvent, ...]:
    if not steps:
        return ()
    first, last, changes = steps[0].step, steps[-1].step, ("trying", "adopted", "reverted")
    return tuple(event for event in history if event.what in changes and first <= event.step <= last)


def _plan(job: WatchedJob) -> PlanView:
    plan, status = job.plan, job.status
    if plan is not None and status is not None and (status.plan, status.version) != (plan.id, plan.version):
        status = None
    return PlanView(plan=plan, status=status, adopted=revocable(job.history))


def _offer_state(job: WatchedJob, offer: Offer | None) -> OfferState:
    if offer is None:
        return "none"
    if offer.plan is None:
        return "keep"
    if offer.plan.id in rejected(job.history):
        return "rejected"
    if any(event.what == "accepted" and event.plan == offer.plan.id for event in job.history):
        return "accepted"
    if job.steps and job.steps[-1].ests != tuple(len(rank.now) for rank in offer.ranks):
        return "outdated"
    return "offered"
