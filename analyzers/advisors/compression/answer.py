"""Advice on the gradients of one job: what it says, and when it is sure enough for a plan."""

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

_SURE, _LEAST_GAIN = 2.0, 0.03
"""A plan is made of a gain of at least so many errors of the prediction, and of at least this share of a step."""


class BucketAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket, or one reduce-scatter of sharded gradients, and what is advised for it."""

    elements: tuple[int, ...]
    """Of each of its parameters, in the order in which their gradients come; of a reduce-scatter all together."""
    codec: str
    begin_us: float
    """What encoding takes of the backward pass, on the slowest rank."""
    link_us: float | None
    """How long its transfers are on the link; None where the bucket stays as it is. Of ESTs all of the exchange, coding
    included."""
    coding_us: float
    """What is done between them and after them, beside other transfers; of a reduce-scatter before the backward pass goes
    on."""
    sent_bytes: int | None
    vnmse: float | None
    saves_us: float
    """By how much longer a step would take with this bucket alone as it is."""
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
    """By how much longer a step is as it is than without any exchange of gradients."""
    gain_pct: float
    """Against the step as it is."""
    gain_over_16_bit_pct: float | None
    """Against the better of bf16 and fp16 for all."""
    error_pct: float
    """How far such a prediction may be off."""
    gap_pct: float
    """By how much the step may be longer than that of the best choice, as far as replay tells."""
    vnmse: float
    """What the whole gradient loses of its square, if all its numbers are as large (each bucket's loss, weighed by its
    size)."""
    gap_kind: GapKind
    """`lower_bound`: the gap is that to the zero-cost step, which no choice may reach."""
    bucket_mb: float | None
    """Size of the buckets that is advised; None for the recorded ones."""
    decision: tuple[BucketAdvice, ...]
    left_out: dict[str, str]
    """Codecs that were not considered, and why."""
    plan: Plan | None
    """What a job can adopt; None where the gain is too small to be sure of."""


def is_worth_it(gain: float, error: float) -> bool:
    """Whether a gain is large enough for a plan, where predictions may be off by `error`; both as a share of a step."""
    return gain >= max(_SURE * error, _LEAST_GAIN)
