"""Advice on gradient compression of one job, as types, and the least gain for a plan."""

from typing import Literal

import msgspec

from esprof.analyzers.advisors.compression.search import GapKind
from esprof.analyzers.advisors.step_advice import MIN_GAIN_IN_ERRORS, StepAdvice
from esprof.core.plan import Plan

SCHEMA = "esprof.compression-advice/1"

MAX_VNMSE = 0.01
"""Default of the gradient's allowed loss, as a share of its square. `int4` for all buckets loses more, which shows in the
training of a small GPT (docs/how-to/compression.md)."""

TERM = "compress"
"""The what-if term with the error of such predictions."""

NONE = "none"

_MIN_GAIN = 0.03
"""Least gain for a plan, as a share of a step."""


class BucketAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice for one bucket, or one reduce-scatter of sharded gradients."""

    elements: tuple[int, ...]
    """Elements of each parameter, in the order in which gradients become ready; of a reduce-scatter, their sum."""
    nbytes: int | None = None
    """Size of its gradients without a codec; None for all gradients of ESTs."""
    codec: str
    begin_us: float
    """Time by which encoding prolongs the backward pass, on the slowest rank."""
    link_us: float | None
    """Communication time on the link; None if the bucket is not compressed. For ESTs, the entire exchange with coding."""
    coding_us: float
    """Coding between and after its collectives, concurrent with other communication; for a reduce-scatter, coding that
    delays the backward pass."""
    sent_bytes: int | None
    vnmse: float | None
    saves_us: float
    """Increase of the step if only this bucket were not compressed."""
    reason: str


class CompressionAdvice(StepAdvice, frozen=True, kw_only=True):
    """Advice for one job.

    Baselines: `now`, each codec for all buckets, `zero cost` (lower bound for these codecs), and `no exchange` (no gradient
    is sent, as with torch's noop hook).
    """

    schema: str = SCHEMA
    objective: Literal["step"] = "step"
    collective: Literal["all_reduce", "reduce_scatter", "ests"] = "all_reduce"
    """The present exchange of gradients: DDP's buckets, the shards of FSDP2, or the ESTs of an elastic job."""
    exposed_us: float
    """Present step minus a step without exchange of gradients."""
    gain_over_16_bit_pct: float | None
    """Relative to the better of bf16 and fp16 for all buckets."""
    gap_pct: float
    """Largest excess over the optimal step, by replay."""
    vnmse: float
    """Loss of the whole gradient as a share of its square, if all its numbers are of equal size: the mean over buckets,
    weighted by their sizes."""
    gap_kind: GapKind
    """`lower_bound`: the gap is that to the zero-cost step, which no choice may reach."""
    bucket_mb: float | None
    """Advised bucket size; None for the recorded buckets."""
    decision: tuple[BucketAdvice, ...]
    left_out: dict[str, str]
    """Codec that was not considered -> reason."""
    plan: Plan | None
    """Plan that a job can adopt; None if the gain is too small to be significant."""


def is_worth_it(gain: float, error: float) -> bool:
    """Whether a gain is large enough for a plan; `error` is that of the prediction, both are shares of a step."""
    return gain >= max(MIN_GAIN_IN_ERRORS * error, _MIN_GAIN)
