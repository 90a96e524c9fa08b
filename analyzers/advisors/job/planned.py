"""Plans made of advice on one recorded job."""

from hashlib import sha256
from typing import Literal, TypeVar

import msgspec

from esprof.core.plan import Plan, PlanEvidence, PlannedJob, PlanPart, PlanParts, PlanPromise
from esprof.replay.replayed import Replayed
from esprof.run.run import Run

Body = TypeVar("Body")


def section_of(
    replayed: Replayed, body: Body, promise: PlanPromise, *, applies: Literal["live", "restart"], changes_bits: bool
) -> PlanPart[Body]:
    """A section of a plan with its evidence."""
    known = replayed.pricer.error.with_scatter
    return PlanPart(
        applies=applies,
        changes_bits=changes_bits,
        evidence=PlanEvidence(
            run=str(replayed.run.path), replay_error_pct=None if known is None else round(100 * known, 3)
        ),
        predicted=promise,
        body=body,
    )


def plan_of(run: Run, parts: PlanParts) -> Plan:
    """Plan for the recorded job. Its id is a hash of its sections: equal evidence gives equal ids."""
    meta = run.meta
    job = PlannedJob(n_est=_n_est(run), world=meta.world_size, model_signature=meta.model_signature)
    return Plan(id=sha256(msgspec.json.encode(parts)).hexdigest()[:16], job=job, parts=parts)


def _n_est(run: Run) -> int:
    """Number of ESTs of an elastic job, which are numbered from 0; of another one, its ranks."""
    return 1 + max(int(run.events(rank).ints("est").max(initial=-1)) for rank in run.ranks) or run.meta.world_size
