"""Advice on gradient compression of one job, as types, and the least gain for a plan."""

from typing import Literal

import msgspec

from esprof.analyzers.advisors.compression.search import GapKind
from esprof.core.plan import Plan

SCHEMA = "esprof.compression-advice/1"

MAX_VNMSE = 0.01
"""What the gradient may lose, if nobody says otherwise, as a share of its square. `int4` for all loses more, which
a small GPT's training shows (docs/how-to/compression.md)."""

TERM = "compress"
"""The what-if by whose error the advice is judged."""

NONE = "none"

_MIN_GAIN_IN_ERRORS, _MIN_GAIN = 2.0, 0.03
"""Least gain for a plan: in multiples of the prediction's error, and as a share of a step."""


class BucketAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice for one bucket, or one reduce-scatter of sharded gradients."""

    elements: tuple[int, ...]
    """Of each of its parameters, in the order in which their gradients come; of a reduce-scatter all together."""
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


class CompressionAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Advice for one job."""

    schema: str = SCHEMA
    objective: Literal["step"] = "step"
    collective: Literal["all_reduce", "reduce_scatter", "ests"] = "all_reduce"
    """How the gradients travel as it is: in DDP's buckets, to the shards of FSDP2, or from the ESTs of an elastic job."""
    value: float
    """The predicted step with the advised codecs, us."""
    low_us: float
    high_us: float
    baselines: dict[str, float]
    """Predicted steps, us: as it is, one codec for all, `zero cost`: no choice among these codecs takes less, and `no
    exchange`: no gradient is sent (what torch's noop hook measures)."""
    exposed_us: float
    """Present step minus a step without exchange of gradients."""
    gain_pct: float
    """Relative to the present step."""
    gain_over_16_bit_pct: float | None
    """Relative to the better of bf16 and fp16 for all buckets."""
    error_pct: float
    """Known error of such predictions."""
    gap_pct: float
    """Largest excess over the optimal step, by replay."""
    vnmse: float
    """What the whole gradient loses of its square, if all its numbers are as large (each bucket's loss, weighed by its
    size)."""
    gap_kind: GapKind
    """`lower_bound`: the gap is that to the zero-cost step, which no choice may reach."""
    bucket_mb: float | None
    """Size of the buckets that is advised; None for the recorded ones."""
    decision: tuple[BucketAdvice, ...]
    left_out: dict[str, str]
    """Codec that was not considered -> reason."""
    plan: Plan | None
    """Plan that a job can adopt; None if the gain is too small to be significant."""


def is_worth_it(gain: float, error: float) -> bool:
    """Whether a gain is large enough for a plan, where predictions may be off by `error`; both as a share of a step."""
    return gain >= max(_MIN_GAIN_IN_ERRORS * error, _MIN_GAIN)
