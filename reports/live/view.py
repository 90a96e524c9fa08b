"""The figures on the page of a job, computed from its files without I/O."""

import time
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from esprof.analyzers.summary.job_proof import JobProof
from esprof.core.plan import Plan, PlanStatus
from esprof.reports.live.decisions import rejected, revocable
from esprof.reports.live.job import WatchedJob
from esprof.reports.live.proposal import Proposal
from esprof.reports.terminal.elastic import proof_text
from esprof.run.logs import JobEvent, LiveStep, Round

_NEWEST_STEPS = 50
"""Steps that current figures are based on."""

_MAX_STEPS_SHOWN = 400
"""Steps in the chart."""

MAX_ROWS = 64
"""Ranks in a table."""

_MAX_EVENTS = 50
"""Events of the history."""

_QUIET_AFTER_S = 10.0
"""A job without a step for this long, and for 20 step times, is shown as quiet."""
_QUIET_AFTER_STEPS = 20

State = Literal["empty", "recorded", "waiting", "running", "quiet", "left"]


@dataclass(frozen=True)
class RankView:
    """One rank, over the newest steps."""

    rank: int
    count: int
    """Number of ESTs."""
    ests: tuple[int, ...] | None
    """Their ids; None if only the number is known."""
    busy_us: float
    waits_us: float
    """Time that it waits for the busiest rank."""
    share_pct: float
    """Busy share of the step."""


@dataclass(frozen=True)
class PlanView:
    """The latest plan of the job, and its state."""

    plan: Plan | None
    status: PlanStatus | None
    """None until the job reports a state of this plan."""
    adopted: JobEvent | None
    """The plan that can be rolled back, not always the latest."""


ProposalState = Literal["proposed", "outdated", "accepted", "rejected", "keep", "none"]


@dataclass(frozen=True)
class View:
    """The content of a job's page."""

    name: str
    run: str
    state: State
    quiet_s: float | None
    """Time since the last step, rounded."""
    next_step: int
    step_us: float | None
    """Median of the newest steps."""
    per_s: float | None
    newest: int
    """Number of newest steps behind the medians."""
    version: int | None
    """Version of the active plan."""
    proof: str
    """Up to which step the bits are proven; empty if nothing is known."""
    n_est: int | None
    world: int | None
    ranks: tuple[RankView, ...]
    idle_pct: float | None
    """Mean time that a rank waits for the busiest one, in per cent of the busy time of that one."""
    rest_us: float | None
    """Time of a step in which no rank is busy: exchange of gradients, and update."""
    steps: tuple[LiveStep, ...]
    marks: tuple[JobEvent, ...]
    """Changes of the plan within the steps shown."""
    plan: PlanView
    proposal: Proposal | None
    proposal_state: ProposalState
    searched_ns: int | None
    reason: str
    """Why there is no proposal."""
    is_searching: bool
    history: tuple[JobEvent, ...]
    """The newest first."""
    events: int
    rounds: tuple[Round, ...]
    problems: tuple[str, ...]
    message: str


def view_of(job: WatchedJob) -> View:
    """The current view of a job."""
    steps, history = tuple(job.steps)[-_MAX_STEPS_SHOWN:], job.history
    newest = _newest(tuple(job.steps))
    ranks = _ranks(newest, job)
    busy = [rank.busy_us for rank in ranks]
    step_us = median(step.took_us for step in newest) if newest else None
    state, quiet_s = _state(job, step_us)
    last = job.steps[-1] if job.steps else None
    latest_search = job.latest_search
    proposal = latest_search.proposal if latest_search is not None else None
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
        proof=_proof(job, last),
        n_est=sum(last.ests) if last is not None else None,
        world=len(last.ests) if last is not None else None,
        ranks=ranks,
        idle_pct=100 * (1 - fmean(busy) / max(busy)) if busy and max(busy) > 0 else None,
        rest_us=max(0.0, step_us - max(busy)) if step_us is not None and busy else None,
        steps=steps,
        marks=_marks(history, steps),
        plan=_plan(job),
        proposal=proposal,
        proposal_state=_proposal_state(job, proposal),
        searched_ns=latest_search.time_ns if latest_search is not None else None,
        reason=latest_search.reason if latest_search is not None else "",
        is_searching=job.is_searching,
        history=history[::-1][:_MAX_EVENTS],
        events=len(history),
        rounds=job.rounds,
        problems=job.problems,
        message=job.message,
    )


def _proof(job: WatchedJob, last: LiveStep | None) -> str:
    found = JobProof.of_history(job.history)
    diverged, proven = (found.diverged, found.proven) if found is not None else (None, None)
    proven = last.proven if last is not None and last.proven is not None else proven
    return proof_text(proven, diverged) if proven is not None or diverged is not None else ""


def _newest(steps: tuple[LiveStep, ...]) -> tuple[LiveStep, ...]:
    """The newest steps of the same plan and processes, without repeated ones."""
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
    known, busy = _ests(counts, job), [_busy_us(newest, rank) for rank in range(len(counts))]
    return tuple(
        RankView(
            rank=rank,
            count=count,
            ests=known[rank] if known is not None else None,
            busy_us=busy[rank],
            waits_us=max(busy) - busy[rank],
            share_pct=min(100.0, 100 * busy[rank] / took) if took > 0 else 0.0,
        )
        for rank, count in enumerate(counts)
    )


def _busy_us(newest: tuple[LiveStep, ...], rank: int) -> float:
    times = [step.busy_us[rank] for step in newest if rank < len(step.busy_us)]
    return median(times) if times else 0.0


def _ests(counts: tuple[int, ...], job: WatchedJob) -> tuple[tuple[int, ...], ...] | None:
    """ESTs of the ranks, by the latest plan or the state before it, whichever agrees with the counts."""
    latest = [event for event in job.history if event.what in ("adopted", "trying", "started", "scaled")][-1:]
    known = [event.was.ests for event in latest if event.was is not None]
    if job.plan is not None and job.plan.parts.assignment is not None and [one.plan for one in latest] == [job.plan.id]:
        known.insert(0, job.plan.parts.assignment.body.ests)
    return next((ests for ests in known if tuple(map(len, ests)) == counts), None)


def _state(job: WatchedJob, step_us: float | None) -> tuple[State, float | None]:
    last = job.history[-1] if job.history else None
    if last is not None and last.what == "left":
        return "left", None
    if job.last_step_at is None:
        return ("waiting" if last is not None else "recorded" if job.is_recorded else "empty"), None
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


def _proposal_state(job: WatchedJob, proposal: Proposal | None) -> ProposalState:
    if proposal is None:
        return "none"
    if proposal.plan is None:
        return "keep"
    if proposal.plan.id in rejected(job.history):
        return "rejected"
    if any(event.what == "accepted" and event.plan == proposal.plan.id for event in job.history):
        return "accepted"
    if job.steps and job.steps[-1].ests != tuple(len(rank.now) for rank in proposal.ranks):
        return "outdated"
    return "proposed"
