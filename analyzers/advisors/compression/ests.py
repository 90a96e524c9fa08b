"""Choose the codec for the gradients of an elastic job's ESTs, from its replay and the exchanges that it has measured.

An EST's gradient is encoded as one tensor, so there is one codec for all. Each measured codec is replayed.
"""

from statistics import fmean

import msgspec

from esprof.analyzers.advisors.compression.answer import (
    MAX_VNMSE,
    NONE,
    TERM,
    BucketAdvice,
    CompressionAdvice,
    is_worth_it,
)
from esprof.analyzers.advisors.job.est_answer import NotRecorded
from esprof.analyzers.advisors.job.planned import plan_of, section_of
from esprof.core.errors import EsprofError
from esprof.core.plan import CodecChoice, CompressionBody, GuardSettings, Plan, PlanParts, PlanPromise
from esprof.core.types import us
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.graph.est_load import EstLoad, exchanged
from esprof.replay.whatif.scenario import Declined
from esprof.run.run import Exchange


def advise_est_codec(
    replayed: Replayed, max_vnmse: float = MAX_VNMSE, *, known_error: float | None = None
) -> CompressionAdvice:
    """Advise a codec for a job whose mean gradient may lose at most `max_vnmse` of its square. `known_error` is the error
    of predictions for this job as a share of a step, if it is known.

    Raises NotRecorded if the job has measured no exchange that sends fewer bytes, EsprofError if replay's error is too
    large.
    """
    run, pricer, est_load = replayed.run, replayed.pricer, _est_load(replayed)
    measured = {one.codec: one for one in run.meta.exchanges if one.ests == est_load.assignment.ests}
    lost = {codec: one.vnmse for codec, one in measured.items() if codec != NONE and one.vnmse is not None}
    fitting = [measured[codec] for codec, share in lost.items() if share <= max_vnmse]
    prices = {one.codec: pricer.price_edited(exchanged(est_load, fmean(one.samples_ns))) for one in fitting}
    steps = {codec: float(price.step_ns.mean()) for codec, price in prices.items()}
    nothing = float(pricer.price_edited(exchanged(est_load, 0.0)).step_ns.mean())
    best = min(steps, key=steps.__getitem__, default=NONE)
    if best != NONE and steps[best] >= pricer.step_ns:
        best = NONE
    price = prices.get(best, pricer.price_edited(pricer.dfg))
    step = steps.get(best, pricer.step_ns)
    interval = pricer.interval(price, [TERM])
    error = pricer.error.of_terms([TERM]) if known_error is None else known_error
    narrow = min((steps[codec] for codec in ("bf16", "fp16") if codec in steps), default=None)
    chosen = measured.get(best)
    advice = CompressionAdvice(
        collective="ests",
        value=us(step),
        low_us=us(interval.low_ns),
        high_us=us(interval.high_ns),
        baselines={"now": us(pricer.step_ns)}
        | {codec: us(took) for codec, took in steps.items()}
        | {"no exchange": us(nothing)},
        exposed_us=us(pricer.step_ns - nothing),
        gain_pct=round(100 * (1 - step / pricer.step_ns), 3),
        gain_over_16_bit_pct=None if narrow is None else round(100 * (1 - step / narrow), 3),
        error_pct=round(100 * error, 3),
        gap_pct=0.0,
        vnmse=lost.get(best, 0.0),
        gap_kind="exact",
        bucket_mb=None,
        decision=(_decided(chosen, pricer.step_ns - step),),
        left_out={
            codec: f"loses {share:.2g} of the gradient's square, more than {max_vnmse:g}"
            for codec, share in lost.items()
            if share > max_vnmse
        },
        plan=None,
    )
    if best == NONE or not is_worth_it(1 - step / pricer.step_ns, error):
        return advice
    return msgspec.structs.replace(advice, plan=_plan(replayed, est_load, advice, max_vnmse))


def _est_load(replayed: Replayed) -> EstLoad:
    """Load of the job's ESTs by rank. Raises as `advise_est_codec` does."""
    run, pricer = replayed.run, replayed.pricer
    if pricer.too_far_off:
        raise EsprofError(pricer.too_far_off, path=run.path)
    if not any(one.codec != NONE for one in run.meta.exchanges):
        raise NotRecorded(
            "the job has measured no exchange with a codec that sends fewer bytes",
            path=run.path,
            remedy="Measure them with `esprof tune --allow compression`.",
        )
    try:
        return EstLoad.of(run, pricer.dfg, pricer.steps)
    except Declined as reason:
        raise NotRecorded(str(reason), path=run.path) from reason


def _decided(chosen: Exchange | None, saves_ns: float) -> BucketAdvice:
    """The one codec of all gradients."""
    if chosen is None:
        return BucketAdvice(
            elements=(),
            codec=NONE,
            begin_us=0.0,
            link_us=None,
            coding_us=0.0,
            sent_bytes=None,
            vnmse=None,
            saves_us=0.0,
            reason="no codec makes a step shorter",
        )
    return BucketAdvice(
        elements=(),
        codec=chosen.codec,
        begin_us=0.0,
        link_us=us(fmean(chosen.samples_ns)),
        coding_us=0.0,
        sent_bytes=chosen.sent,
        vnmse=chosen.vnmse,
        saves_us=us(saves_ns),
        reason=f"without it, a step would take {us(saves_ns) / 1000:.3g} ms longer",
    )


def _plan(replayed: Replayed, est_load: EstLoad, advice: CompressionAdvice, max_vnmse: float) -> Plan:
    """Plan of the advice. The guard allows the same loss as the advice does."""
    promise = PlanPromise(
        step_us=advice.value, low_us=advice.low_us, high_us=advice.high_us, baselines_us=advice.baselines
    )
    (decided,) = advice.decision
    body = CompressionBody(default=CodecChoice(codec=decided.codec), guard=GuardSettings(max_vnmse=max_vnmse))
    section = section_of(replayed, body, promise, applies="live", changes_bits=True)
    return plan_of(replayed.run, PlanParts(compression=section))
