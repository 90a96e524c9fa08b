"""Hand a plan to a running job, and wait for its status."""

import time

import msgspec

from esprof.core.errors import EsprofError, UsageError
from esprof.core.plan import Plan, PlanStatus, read_plan_bytes, status_of
from esprof.elastic.plans.source import PlanSource

_POLL_INTERVAL_S = 0.05


def deliver(plan: Plan, target: PlanSource, wait_s: float) -> tuple[Plan, PlanStatus | None]:
    """(the plan as handed over, its status in the job; None if the job does not answer within `wait_s`).

    Its version becomes one above that of the job's previous plan. Raises OutputError if it cannot be written, EsprofError if
    another plan replaces it before the job answers.
    """
    plan, until = _put(plan, target), time.monotonic() + wait_s
    while time.monotonic() < until:
        status = status_of(target.status())
        if status is not None and (status.plan, status.version) == (plan.id, plan.version):
            if status.state != "refused" or status.newest is None or status.newest < plan.version:
                return plan, status
            plan = _put(plan, target)  # Another plan took its version at the same moment.
        present = _plan_of(target.poll())
        if present is not None and (present.id, present.version) != (plan.id, plan.version):
            raise EsprofError(
                f"the plan {present.id}, version {present.version}, has replaced it, sent by another process",
                remedy="Send one plan at a time, and look at what the job does now.",
            )
        time.sleep(_POLL_INTERVAL_S)
    return plan, None


def _put(plan: Plan, target: PlanSource) -> Plan:
    """Hand over the plan, with a version above the job's last one."""
    present, status = _plan_of(target.poll()), status_of(target.status())
    known = [] if present is None else [present.version]
    known += [] if status is None else [one for one in (status.version, status.newest) if one is not None]
    if known and max(known) >= plan.version:
        parent = present.id if present is not None else plan.parent
        plan = msgspec.structs.replace(plan, version=max(known) + 1, parent=parent)
    target.put(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
    return plan


def _plan_of(raw: bytes | None) -> Plan | None:
    try:
        return read_plan_bytes(raw) if raw is not None else None
    except UsageError:
        return None
