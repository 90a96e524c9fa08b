"""Decisions of users about plans: sent to the job if it must act, and stored in its history."""

import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from esprof.core.plan import (
    AssignmentBody,
    CheckpointBody,
    CodecChoice,
    CompressionBody,
    Fallback,
    Plan,
    PlanEvidence,
    PlannedJob,
    PlanPart,
    PlanParts,
    PlanPromise,
)
from esprof.elastic.plans.delivery import deliver
from esprof.elastic.plans.source import PlanFile
from esprof.run import files
from esprof.run.logs import HISTORY, JobEvent, Setting

NO_PROMISE_US = sys.float_info.max
"""Upper bound of the predicted step in a plan without prediction."""

_UNREACHED_MARGIN = 1e6
"""A margin that no step exceeds, so that the job never rolls back a user's decision."""


def accept(run: Path, plan: Plan, history: Sequence[JobEvent], step: int) -> Plan:
    """Send the plan to the job. Returns the plan as sent. Raises OutputError, possibly after sending."""
    given = _send(run, plan, history)
    HISTORY.append(run, JobEvent(what="accepted", step=step, plan=given.id, version=given.version))
    return given


def reject(run: Path, plan: Plan, step: int) -> None:
    """Record the rejection of the plan. Raises OutputError."""
    HISTORY.append(run, JobEvent(what="rejected", step=step, plan=plan.id))


def roll_back(run: Path, adopted: JobEvent, history: Sequence[JobEvent], step: int) -> Plan:
    """Send a plan that restores the state before `adopted`. Returns the plan as sent. Raises OutputError."""
    assert adopted.was is not None, "only such plans are revocable"
    given = _send(run, plan_back(run, adopted, adopted.was), history)
    HISTORY.append(run, JobEvent(what="rolled_back", step=step, plan=adopted.plan, version=adopted.version))
    return given


def revocable(history: Sequence[JobEvent]) -> JobEvent | None:
    """The adopted plan that can be rolled back: it is active, and the state before it is known."""
    newest = None
    for event in history:
        if event.what in ("adopted", "trying"):
            newest = event
        elif event.what in ("started", "scaled", "reverted"):
            newest = None
    return newest if newest is not None and newest.was is not None else None


def rejected(history: Sequence[JobEvent]) -> frozenset[str]:
    """Ids of the plans that users rejected."""
    return frozenset(event.plan for event in history if event.what == "rejected" and event.plan is not None)


def plan_back(run: Path, adopted: JobEvent, was: Setting) -> Plan:
    """The plan that restores the state `was`, before the plan `adopted`.

    It has no prediction, and the job does not judge it, since a user requested it.
    """
    before_us = adopted.before_us or 0.0
    promise = PlanPromise(step_us=before_us, low_us=0.0, high_us=NO_PROMISE_US, baselines_us={})
    evidence = PlanEvidence(run=str(run), replay_error_pct=None)

    assignment = AssignmentBody(ests=was.ests, devices=(), compute_us=0.0, ests_below=0)
    parts = PlanParts(
        assignment=PlanPart(applies="live", changes_bits=False, evidence=evidence, predicted=promise, body=assignment),
        compression=None
        if was.codec is None
        else PlanPart(
            applies="live",
            changes_bits=True,
            evidence=evidence,
            predicted=promise,
            body=CompressionBody(default=CodecChoice(codec=was.codec)),
        ),
        loader=None
        if was.loader is None
        else PlanPart(applies="live", changes_bits=False, evidence=evidence, predicted=promise, body=was.loader),
        checkpoint=None
        if not was.every
        else PlanPart(
            applies="live",
            changes_bits=False,
            evidence=evidence,
            predicted=promise,
            body=CheckpointBody(every=was.every),
        ),
    )
    return Plan(
        id=f"back-{sha256(msgspec.json.encode(parts)).hexdigest()[:11]}",
        parent=adopted.plan,
        job=PlannedJob(n_est=sum(map(len, was.ests)), world=len(was.ests)),
        fallback=Fallback(margin=_UNREACHED_MARGIN),
        parts=parts,
    )


def _send(run: Path, plan: Plan, history: Sequence[JobEvent]) -> Plan:
    """Send the plan with a version above all in the history, since the file of the last plan may be damaged."""
    newest = max((event.version for event in history if event.version is not None), default=0)
    plan = msgspec.structs.replace(plan, version=max(plan.version, newest + 1))
    given, _ = deliver(plan, PlanFile(run / files.PLAN), wait_s=0)
    return given
