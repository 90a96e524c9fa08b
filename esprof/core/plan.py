"""The Plan: a recommendation of the advisors that a running job adopts.

The envelope is the same for all kinds of advice; `PlanParts` has one field for each kind.
The JSON Schema is docs/reference/plan.schema.json.
"""

from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from esprof.core.assignment import Assignment
from esprof.core.disk import read_given
from esprof.core.errors import InputError, UsageError
from esprof.core.output import write_bytes
from esprof.core.types import NOT_DECODED, Number

SCHEMA = "esprof.plan/1"

MAX_TRIAL_STEPS = 10_000
"""Longest interleaved trial of a plan, in steps."""


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job that a plan is for."""

    n_est: int
    world: int
    model_signature: str | None = None
    """Identifies the model; None if unknown."""


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """When the runtime reverts a plan: the median of `window` steps exceeds that before the plan by the share `margin`."""

    margin: Annotated[float, msgspec.Meta(ge=0)] = 0.02
    window: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 50
    blocks: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """If above 0, the plan is first tried in this number of interleaved blocks: `window` steps with it, then as many without
    it. It is accepted if steps with it are significantly shorter. Only for plans that change no bits."""


class PlanPromise(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted step once a recommendation is adopted."""

    step_us: float
    low_us: float
    high_us: float
    baselines_us: dict[str, float]
    """Step of each alternative, by name: `now`, `even split` and others."""


class PlanEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Basis of a recommendation."""

    run: str
    """The Run directory."""
    replay_error_pct: float | None
    """Replay error on that run, in per cent of a step."""


class DeviceCost(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the job on the device of one rank."""

    rank: int
    kind: str
    est_us: float
    """Time of an EST other than the rank's last."""
    last_us: float
    """Time of the rank's last EST."""
    update_us: float
    """Time after the ESTs, mainly the optimizer step."""
    est_from: Literal["measured", "assumed"]
    """`assumed` if the rank ran a single EST, so that only `last_us` was measured."""


class AssignmentBody(msgspec.Struct, frozen=True, kw_only=True):
    """Which ESTs run on which rank."""

    ests: tuple[tuple[int, ...], ...]
    devices: tuple[DeviceCost, ...]
    compute_us: float
    """Time of the ESTs and the update on the slowest rank, without waiting; the assignment minimises it."""
    ests_below: int
    """Number of ESTs that all ranks can finish in any shorter time: fewer than the job has, which proves the optimum."""


Exchange = Literal["all_reduce", "all_gather", "all_to_all"]
"""How encoded gradients are exchanged: reduced, gathered by all ranks, or in shards that one rank each adds up."""

Topology = Literal["flat", "hierarchical"]
"""Where gradients are encoded: between all ranks, or only between hosts, after a reduce-scatter within each host."""


class CodecChoice(msgspec.Struct, frozen=True, kw_only=True):
    """How a gradient bucket is compressed."""

    codec: str = "none"
    """A codec of the elastic runtime: `bf16`, `topk:0.01`, …"""
    exchange: Exchange | None = None
    """None for the codec's default."""
    encoded_by: Literal["backward", "beside"] = "backward"
    """Where encoding runs: in the thread or stream of the backward pass, which it delays, or concurrently (`beside`)."""
    topology: Topology = "flat"
    """With `hierarchical`, encoding follows a first collective and always runs concurrently with the backward pass."""


class BucketChoice(CodecChoice, frozen=True, kw_only=True):
    """The choice for one bucket. It applies to the bucket of torch with the same number, the same parameter sizes and, if
    known, the same parameter names: torch rebuilds its buckets after the first step."""

    index: int
    elements: tuple[int, ...]
    """Number of elements of each parameter, in the bucket's order."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters; empty if unknown."""
    sent_bytes: int | None = None
    """Bytes that each rank sends; None if they were not counted."""
    vnmse: float | None = None
    """Squared error relative to the squared gradient; None if it was not measured."""
    reason: str = ""


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions under which a bucket falls back from its codec to `fallback`."""

    every: Annotated[int, msgspec.Meta(ge=1)] = 100
    """Steps between two checks; each check needs an all-reduce of the whole gradient."""
    max_vnmse: Annotated[float, msgspec.Meta(gt=0)] = 0.98
    """Upper bound of the squared error of the mean gradient, relative to the squared exact mean."""
    windows: Annotated[int, msgspec.Meta(ge=1)] = 3
    """Number of consecutive checks in which the unsent residual may grow relative to the gradient."""
    most_unsent: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Upper bound of the residual's norm relative to the gradient's, after that many checks with growth."""
    spike: Annotated[float, msgspec.Meta(gt=0)] = 6.0
    """Standard deviations by which a loss may exceed the mean of the preceding ones."""
    fallback: str = "none"


class CompressionBody(msgspec.Struct, frozen=True, kw_only=True):
    """Which gradients are compressed, and how."""

    default: CodecChoice = CodecChoice()
    """Codec of the buckets that are not listed."""
    buckets: tuple[BucketChoice, ...] = ()
    sharded: Literal["none", "bf16"] = "none"
    """Codec of the gradients that FSDP2 reduce-scatters, which have no buckets. `bf16` values are added as 32-bit floats."""
    bucket_mb: Annotated[float, msgspec.Meta(gt=0, le=1 << 20)] | None = None
    """Bucket size (`bucket_cap_mb`) that this requires; None for any."""
    warm_up_steps: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Number of first steps without compression."""
    guard: GuardSettings = GuardSettings()


class LoaderBody(msgspec.Struct, frozen=True, kw_only=True):
    """How each rank's DataLoader makes batches."""

    workers: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
    """Loader processes of a rank; 0 makes batches in the training process."""
    prefetch: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] | None = None
    """Batches that each worker prepares ahead; None without workers, or for torch's default."""


class CheckpointBody(msgspec.Struct, frozen=True, kw_only=True):
    """How often the job saves its state."""

    every: Annotated[int, msgspec.Meta(ge=1)]
    """Steps between two checkpoints."""


Body = TypeVar("Body")


class PlanPart(msgspec.Struct, Generic[Body], frozen=True, kw_only=True):
    """One recommendation."""

    applies: Literal["live", "restart"]
    changes_bits: bool
    evidence: PlanEvidence
    predicted: PlanPromise
    body: Body


class PlanParts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The recommendations of a plan, by kind."""

    assignment: PlanPart[AssignmentBody] | None = None
    compression: PlanPart[CompressionBody] | None = None
    loader: PlanPart[LoaderBody] | None = None
    checkpoint: PlanPart[CheckpointBody] | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes to one job."""

    schema: Literal["esprof.plan/1"] = "esprof.plan/1"
    id: str
    version: Number = 1
    """A runtime adopts only a higher version than its current one."""
    parent: str | None = None
    """Id of the preceding plan."""
    job: PlannedJob
    determinism: str = "D1"
    """Lowest level of determinism at which results keep the same bits under this plan."""
    apply_at: Number | None = None
    """Step at which the plan is adopted; None for the next one."""
    fallback: Fallback = Fallback()
    parts: PlanParts


State = Literal["refused", "pending", "trying", "adopted", "kept", "missed", "reverted"]
"""State of a plan in a running job. An adopted or tried plan is judged after its window or trial: it is accepted (`kept`),
accepted although steps are longer than predicted (`missed`), or reverted."""


class PlanStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of the latest plan that a running job received."""

    schema: Literal["esprof.plan-status/1"] = "esprof.plan-status/1"
    state: State
    plan: str | None = None
    """Id of the plan; None if the file is not a plan."""
    version: Number | None = None
    newest: Number | None = None
    """Version of the last plan that was not refused; only a higher one is adopted. None before the first one."""
    step: Number
    """The state was reached before this step."""
    before_us: float | None = None
    """Median step before the plan; after a trial, the mean step without it."""
    after_us: float | None = None
    """Median step with the plan over its window; after a trial, the mean step with it."""
    promised_us: float | None = None
    gain_low_us: float | None = None
    """Lower end of the 95 % interval of the reduction of a step in a trial."""
    gain_high_us: float | None = None
    reason: str = ""


def read_plan(path: Path) -> Plan:
    """Read a plan file. Raises InputError if it is not a valid plan."""
    try:
        return read_plan_bytes(read_given(path, "a plan"))
    except UsageError as error:
        raise InputError(error.reason, path=path, remedy="Write a plan with `esprof recommend RUN -o FILE`.") from error


def read_plan_bytes(raw: bytes) -> Plan:
    """Parse the content of a plan file. Raises UsageError if it is not a valid plan."""
    try:
        plan = msgspec.json.decode(raw, type=Plan)
        check(plan)
    except (*NOT_DECODED, UsageError) as error:
        raise UsageError(f"is not a plan: {error}") from error
    return plan


def status_of(raw: bytes | None) -> PlanStatus | None:
    """Parse the content of a status file; None if there is none or it is invalid."""
    try:
        return msgspec.json.decode(raw, type=PlanStatus) if raw is not None else None
    except NOT_DECODED:
        return None


def write_plan(path: Path, plan: Plan) -> None:
    """Write a plan file completely or not at all. Raises OutputError."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")


def check(plan: Plan) -> None:
    """Raise UsageError if a plan is inconsistent: its assignment is not a partition of the job's ESTs over its ranks, it has
    an interleaved trial of a codec or a very long one, it compresses both sharded gradients and buckets, which no job has,
    or it prefetches without workers."""
    if plan.fallback.blocks and plan.parts.compression is not None:
        raise UsageError("a plan with a codec cannot have an interleaved trial: its changes to the bits stay")
    trial = 2 * plan.fallback.blocks * plan.fallback.window
    if trial > MAX_TRIAL_STEPS:
        raise UsageError(f"its trial of {trial} steps is longer than {MAX_TRIAL_STEPS}: later plans wait for its end")
    if plan.parts.compression is not None:
        body = plan.parts.compression.body
        if body.sharded != "none" and (body.buckets or body.default != CodecChoice() or body.bucket_mb is not None):
            raise UsageError("it compresses sharded gradients and buckets")
    if plan.parts.loader is not None:
        loader = plan.parts.loader.body
        if not loader.workers and loader.prefetch is not None:
            raise UsageError("its loader prefetches batches without workers")
    if plan.parts.assignment is not None:
        Assignment(plan.parts.assignment.body.ests).check_fits(plan.job.n_est, plan.job.world)
