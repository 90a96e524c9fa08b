"""Advise whether to send the gradients of an FSDP2 job as bf16, from its Run with a probe and its own replay.

Either all reduce-scatters or none use bf16 (`esprof.elastic.compress.sharded`); both are replayed.
"""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from esprof.analyzers.advisors.compression.answer import NONE, TERM, BucketAdvice, CompressionAdvice, is_worth_it
from esprof.analyzers.advisors.job.planned import plan_of, section_of
from esprof.core.plan import CompressionBody, Plan, PlanParts, PlanPromise
from esprof.core.types import us
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.gradients.compressed import Cost
from esprof.replay.whatif.gradients.shards import Shards

_CODEC = "bf16"
_ITEM = 4


def advise_shards(replayed: Replayed, shards: Shards, max_vnmse: float) -> CompressionAdvice:
    """Advise on `shards`, from the graph `without_slowing`; the whole gradient may lose `max_vnmse` of its square. Raises
    NotBuckets if the costs of bf16 were not measured."""
    pricer, costs = replayed.pricer, shards.costs
    left_out = dict[str, str]()
    as_bf16 = pricer.price_slowed(*shards.compressed(costs))
    zero = float(pricer.price_slowed(*shards.at_no_cost([cost.link_ns for cost in costs])).step_ns.mean())
    nothing = float(pricer.price_slowed(*shards.at_no_cost([0.0] * len(costs))).step_ns.mean())
    lost, narrow = share_lost(shards.sizes, costs), float(as_bf16.step_ns.mean())
    if not lost <= max_vnmse:
        left_out[_CODEC] = f"loses {lost:.2g} of the square of normal numbers, more than {max_vnmse:g}"
    use_bf16 = not left_out and narrow < pricer.step_ns
    price = as_bf16 if use_bf16 else pricer.price_slowed(*shards.compressed([None] * len(costs)))
    step, error = (narrow if use_bf16 else pricer.step_ns), pricer.error.of_terms([TERM])
    interval = pricer.interval(price, [TERM])
    advice = CompressionAdvice(
        collective="reduce_scatter",
        value=us(step),
        low_us=us(interval.low_ns),
        high_us=us(interval.high_ns),
        baselines={"now": us(pricer.step_ns)}
        | ({} if left_out else {_CODEC: us(narrow)})
        | {"zero cost": us(zero), "no exchange": us(nothing)},
        exposed_us=us(pricer.step_ns - nothing),
        gain_pct=round(100 * (1 - step / pricer.step_ns), 3),
        gain_over_16_bit_pct=None if left_out else round(100 * (1 - step / narrow), 3),
        error_pct=round(100 * error, 3),
        gap_pct=0.0,
        vnmse=lost if use_bf16 else 0.0,
        gap_kind="exact",
        bucket_mb=None,
        decision=tuple(_decided(replayed, shards, step if use_bf16 else None)),
        left_out=left_out,
        plan=None,
    )
    if not use_bf16 or not is_worth_it(1 - step / pricer.step_ns, error):
        return advice
    return msgspec.structs.replace(advice, plan=_plan(replayed, advice))


def share_lost(sizes: Sequence[int], costs: Sequence[Cost]) -> float:
    """Loss of the entire gradient as a share of its square; NaN if it was not measured."""
    each = [np.nan if cost.vnmse is None else cost.vnmse for cost in costs]
    return float(np.average(each, weights=sizes))


def _decided(replayed: Replayed, shards: Shards, narrow_ns: float | None) -> Iterator[BucketAdvice]:
    """Advice for each reduce-scatter, in the order of the backward pass; `narrow_ns` is the step with all of them as bf16,
    None if bf16 is not advised."""
    use_bf16, costs = narrow_ns is not None, shards.costs
    for number, (size, cost) in enumerate(zip(shards.sizes, costs, strict=True)):
        saves = 0.0
        if narrow_ns is not None:
            without = shards.compressed([*costs[:number], None, *costs[number + 1 :]])
            saves = float(replayed.pricer.price_slowed(*without).step_ns.mean()) - narrow_ns
        yield BucketAdvice(
            elements=(size // _ITEM,),
            nbytes=size,
            codec=_CODEC if use_bf16 else NONE,
            begin_us=us(max(cost.begin_ns)) if use_bf16 else 0.0,
            link_us=us(cost.link_ns) if use_bf16 else None,
            coding_us=us(cost.coding_ns) if use_bf16 else 0.0,
            sent_bytes=cost.sent if use_bf16 else None,
            vnmse=cost.vnmse if use_bf16 else None,
            saves_us=us(saves),
            reason=f"without it, a step would take {us(saves) / 1000:.3g} ms longer"
            if use_bf16
            else "bf16 does not make a step shorter",
        )


def _plan(replayed: Replayed, advice: CompressionAdvice) -> Plan:
    promise = PlanPromise(
        step_us=advice.value, low_us=advice.low_us, high_us=advice.high_us, baselines_us=advice.baselines
    )
    section = section_of(replayed, CompressionBody(sharded="bf16"), promise, applies="restart", changes_bits=True)
    return plan_of(replayed.run, PlanParts(compression=section))
