"""The Plan: what the advisors recommend, and the elastic runtime adopts.

One envelope holds for all kinds of advice; `PlanParts` has a part for each, with a body of its own.
Its JSON Schema is docs/reference/plan.schema.json.
"""

from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from esprof.core.assignment import Assignment
from esprof.core.errors import InputError, UsageError, unreadable
from esprof.core.output import write_bytes

SCHEMA = "esprof.plan/1"

_MAX_PLAN_BYTES = 64 << 20
"""A plan for a million ESTs takes less."""


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job that a plan is for."""

    n_est: int
    world: int
    model_signature: str | None = None
    """What tells the model from others; None where the run does not say."""


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """When the runtime goes back: its steps take longer than before by `margin`, relative, over `window` steps."""

    margin: Annotated[float, msgspec.Meta(ge=0)] = 0.02
    window: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 50
    blocks: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """If above 0 the plan is tried first: so many times for `window` steps, and as many steps without it after each. It
    is kept where steps with it are surely shorter. This is for plans that change no bits."""


class PlanPromise(msgspec.Struct, frozen=True, kw_only=True):
    """What a step should take once a part is adopted."""

    step_us: float
    low_us: float
    high_us: float
    baselines_us: dict[str, float]
    """What it takes otherwise, by name: `now`, `even split` and the like."""


class PlanEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a part rests on."""

    run: str
    """The Run directory."""
    replay_error_pct: float | None
    """How far replay was off on that very run, in per cent of a step."""


class DeviceCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the job takes on the device of one rank."""

    rank: int
    kind: str
    est_us: float
    """Of an EST that is not the rank's last."""
    last_us: float
    """Of its last EST."""
    update_us: float
    """Of what follows the ESTs."""
    est_from: Literal["measured", "assumed"]
    """`assumed` where the rank ran one EST alone, so that only its last one is known."""


class AssignmentBody(msgspec.Struct, frozen=True, kw_only=True):
    """Which ESTs run on which rank."""

    ests: tuple[tuple[int, ...], ...]
    devices: tuple[DeviceCost, ...]
    compute_us: float
    """The slowest rank's ESTs and update, without waiting: what the optimum is the least of."""
    ests_below: int
    """ESTs that all ranks together end in any shorter time: fewer than the job has, which proves the optimum."""


Exchange = Literal["all_reduce", "all_gather", "all_to_all"]
"""How the ranks' encoded gradients come together: added up, gathered by all, or by parts, each added by one rank."""

Topology = Literal["flat", "hierarchical"]
"""Between whom gradients are encoded: all ranks, or hosts alone, whose ranks add theirs up by parts first."""


class CodecChoice(msgspec.Struct, frozen=True, kw_only=True):
    """How a gradient bucket is compressed."""

    codec: str = "none"
    """Of the elastic runtime's codecs: `bf16`, `topk:0.01`, …"""
    exchange: Exchange | None = None
    """None for the codec's usual one."""
    encoded_by: Literal["backward", "beside"] = "backward"
    """Who encodes: the thread or stream of the backward pass, which goes on when that is done, or one beside it."""
    topology: Topology = "flat"
    """Where it is `hierarchical`, encoding comes after a first transfer, and is always done beside the backward pass."""


class BucketChoice(CodecChoice, frozen=True, kw_only=True):
    """The choice for one bucket. One of torch's is it where its number and its parameters' sizes are the same, and their
    names where these are told: before the first step is over, torch has other buckets."""

    index: int
    elements: tuple[int, ...]
    """Of each parameter, in the bucket's order."""
    parameters: tuple[str, ...] = ()
    """Their names; empty where the run does not tell them."""
    sent_bytes: int | None = None
    """Bytes that each rank sends to others; None where they were not counted."""
    vnmse: float | None = None
    """What is lost, as squared error relative to the squared gradient; None where that was not measured."""
    reason: str = ""


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a bucket is no longer compressed by its codec, but by the fallback."""

    every: Annotated[int, msgspec.Meta(ge=1)] = 100
    """Steps between two looks; each takes an all-reduce of the whole gradient."""
    max_vnmse: Annotated[float, msgspec.Meta(gt=0)] = 0.98
    """Squared error of the mean that the ranks come to, relative to the squared exact one, at most."""
    windows: Annotated[int, msgspec.Meta(ge=1)] = 3
    """Looks in a row at which what was not sent may grow, relative to the gradient."""
    most_unsent: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Norm of what was not sent, at most, relative to the gradient's, once it has grown so often."""
    spike: Annotated[float, msgspec.Meta(gt=0)] = 6.0
    """Standard deviations by which a loss may be above the mean of those before."""
    fallback: str = "none"


class CompressionBody(msgspec.Struct, frozen=True, kw_only=True):
    """Which gradients are compressed, and how."""

    default: CodecChoice = CodecChoice()
    """For buckets that are not listed."""
    buckets: tuple[BucketChoice, ...] = ()
    sharded: Literal["none", "bf16"] = "none"
    """How gradients travel that FSDP2 reduces and scatters: as `bf16` they are added as 32-bit floats. They have no
    buckets."""
    bucket_mb: Annotated[float, msgspec.Meta(gt=0, le=1 << 20)] | None = None
    """The buckets' size (`bucket_cap_mb`) for which this holds; None for any."""
    warm_up_steps: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Steps in which nothing is compressed yet."""
    guard: GuardSettings = GuardSettings()


Body = TypeVar("Body")


class PlanPart(msgspec.Struct, Generic[Body], frozen=True, kw_only=True):
    """One piece of advice."""

    applies: Literal["live", "restart"]
    changes_bits: bool
    evidence: PlanEvidence
    predicted: PlanPromise
    body: Body


class PlanParts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The advice that a plan holds, by kind."""

    assignment: PlanPart[AssignmentBody] | None = None
    compression: PlanPart[CompressionBody] | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to change of one job."""

    schema: Literal["esprof.plan/1"] = "esprof.plan/1"
    id: str
    version: int = 1
    """A runtime adopts no version that is not above the one it has."""
    parent: str | None = None
    """Id of the plan that this one follows."""
    job: PlannedJob
    determinism: str = "D1"
    """Least level of determinism at which the promise of equal bits holds for what it changes."""
    apply_at: int | None = None
    """Step at which it is adopted; None for the next."""
    fallback: Fallback = Fallback()
    parts: PlanParts


State = Literal["refused", "pending", "trying", "adopted", "kept", "missed", "reverted"]
"""What became of a plan in a running job. One that is adopted or tried is judged after its window or trial: it is kept, kept
although steps take longer than promised (`missed`), or taken back."""


class PlanStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a running job tells of the newest plan that it was given."""

    schema: Literal["esprof.plan-status/1"] = "esprof.plan-status/1"
    state: State
    plan: str | None = None
    """Id; None for what is no plan."""
    version: int | None = None
    step: int
    """The step before which this happened."""
    before_us: float | None = None
    """Median step before the plan; of one that was tried, the mean without it."""
    after_us: float | None = None
    """Median step with it, over its window; or the mean of its trial's blocks."""
    promised_us: float | None = None
    gain_low_us: float | None = None
    """In a trial the 95 % interval of what a step is shorter by with the plan."""
    gain_high_us: float | None = None
    reason: str = ""


def read_plan(path: Path) -> Plan:
    """The plan of a file. Raises InputError where it is none, or contradicts itself."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_PLAN_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(raw) > _MAX_PLAN_BYTES:
        raise InputError("is too large for a plan", path=path)
    try:
        return read_plan_bytes(raw)
    except UsageError as error:
        raise InputError(error.reason, path=path, remedy="`esprof recommend RUN -o FILE` writes one.") from error


def read_plan_bytes(raw: bytes) -> Plan:
    """The plan that a file holds. Raises UsageError where it is none, or contradicts itself."""
    try:
        plan = msgspec.json.decode(raw, type=Plan)
        check(plan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UsageError) as error:
        raise UsageError(f"is no plan: {error}") from error
    return plan


def status_of(raw: bytes | None) -> PlanStatus | None:
    """What a job has told of a plan; None where that is nothing, or no status."""
    try:
        return msgspec.json.decode(raw, type=PlanStatus) if raw is not None else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def write_plan(path: Path, plan: Plan) -> None:
    """Write it whole or not at all. Raises OutputError."""
    write_bytes(path, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")


def check(plan: Plan) -> None:
    """Raises UsageError where a plan contradicts itself: its assignment is no partition of the job's ESTs over its ranks, or
    it asks for an interleaved trial of a codec, or it compresses sharded gradients and buckets, which no job has both of."""
    if plan.fallback.blocks and plan.parts.compression is not None:
        raise UsageError("a plan with a codec cannot have an interleaved trial: its changes to the bits stay")
    if plan.parts.compression is not None:
        body = plan.parts.compression.body
        if body.sharded != "none" and (body.buckets or body.default != CodecChoice() or body.bucket_mb is not None):
            raise UsageError("it compresses sharded gradients and buckets")
    if plan.parts.assignment is not None:
        Assignment(plan.parts.assignment.body.ests).check_fits(plan.job.n_est, plan.job.world)
