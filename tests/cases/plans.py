"""Plans for jobs of tests, and a source from which jobs receive them."""

import json

import msgspec

from esprof.core.plan import (
    AssignmentBody,
    CheckpointBody,
    CodecChoice,
    CompressionBody,
    Fallback,
    LoaderBody,
    Plan,
    PlanEvidence,
    PlannedJob,
    PlanPart,
    PlanParts,
    PlanPromise,
)


def plan_of(
    ests=None,
    codec=None,
    *,
    workers=None,
    every=None,
    version=1,
    n_est=4,
    world=None,
    signature=None,
    promised_us=1e9,
    **more,
):
    """`codec` may be a body; `workers` are those of each rank's loader. By default a plan promises a step so long that jobs
    always keep the promise."""
    promise = PlanPromise(step_us=promised_us, low_us=promised_us, high_us=promised_us, baselines_us={})

    def part(body, *, changes_bits):
        evidence = PlanEvidence(run="r", replay_error_pct=None)
        return PlanPart(applies="live", changes_bits=changes_bits, evidence=evidence, predicted=promise, body=body)

    parts = {}
    if ests is not None:
        body = AssignmentBody(ests=tuple(map(tuple, ests)), devices=(), compute_us=1.0, ests_below=0)
        parts["assignment"] = part(body, changes_bits=False)
    if codec is not None:
        body = codec if isinstance(codec, CompressionBody) else CompressionBody(default=CodecChoice(codec=codec))
        parts["compression"] = part(body, changes_bits=True)
    if workers is not None:
        body = LoaderBody(workers=workers, prefetch=3 if workers else None)
        parts["loader"] = part(body, changes_bits=False)
    if every is not None:
        parts["checkpoint"] = part(CheckpointBody(every=every), changes_bits=False)
    if world is None:
        world = len(ests) if ests is not None else 2
    fallback = more.pop("fallback", Fallback(window=1000))
    job = PlannedJob(n_est=n_est, world=world, model_signature=signature)
    return Plan(id=f"plan-{version}", version=version, job=job, fallback=fallback, parts=PlanParts(**parts), **more)


class QueuedPlans:
    """Plan source that returns one of these plans per poll, None for no plan, and stores the reported statuses."""

    def __init__(self, *plans):
        self.given = [plan if isinstance(plan, bytes | None) else msgspec.json.encode(plan) for plan in plans]
        self.statuses = []

    def put(self, plan):
        self.given.append(plan)

    def poll(self):
        return self.given.pop(0) if self.given else None

    def report_status(self, status):
        self.statuses.append(json.loads(status))

    def status(self):
        return json.dumps(self.statuses[-1]).encode() if self.statuses else None

    @property
    def states(self):
        return [status["state"] for status in self.statuses]
