"""Advise a codec for each gradient bucket of a DDP job, from its Run with a probe and its own replay.

The search uses the recurrence of `timeline`. Its result, each codec for all buckets, and single changes of the best of these
are replayed on the full graph; the shortest step is advised.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import msgspec
import numpy as np

from esprof.analyzers.advisors.compression.answer import (
    MAX_VNMSE,
    NONE,
    TERM,
    BucketAdvice,
    CompressionAdvice,
    is_worth_it,
)
from esprof.analyzers.advisors.compression.search import search
from esprof.analyzers.advisors.compression.sharded import advise_shards
from esprof.analyzers.advisors.compression.timeline import BucketTimeline, Costs
from esprof.analyzers.advisors.job.planned import plan_of, section_of
from esprof.core.errors import EsprofError
from esprof.core.plan import BucketChoice, CompressionBody, Plan, PlanParts, PlanPromise
from esprof.core.types import us
from esprof.replay.dfg import Dfg
from esprof.replay.engine.timeline import replay
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.gradients.backward import NotBuckets
from esprof.replay.whatif.gradients.buckets import rebucket
from esprof.replay.whatif.gradients.compressed import Compressible, Cost
from esprof.replay.whatif.gradients.shards import Shards
from esprof.replay.whatif.pricing import Price, Pricer
from esprof.run.run import Run

_MIN_GAIN_OF_REBUCKETING = 0.01
"""Smallest gain, as a share of a step, for which buckets of another size are advised."""
_MAX_TRIED = 300
"""Approximate limit of the choices that are replayed for buckets of one size."""
_SIZES_MB = (1.0, 4.0, 25.0)
"""Sizes of buckets that are tried in addition to the recorded ones."""
_MAX_VNMSE_TRIED = 0.5
"""Loss of a single bucket, as a share of its square, up to which a codec is always considered."""
_WARM_UP = 2
"""Steps in which nothing is compressed: torch rebuilds its buckets after the first."""


@dataclass(frozen=True)
class _Layout:
    """Buckets of one size, and their codecs. A choice is one option for each bucket, a position in `options`."""

    pricer: Pricer
    bucket_mb: float | None
    """None for the recorded ones."""
    buckets: Compressible
    options: tuple[str, ...]
    costs: tuple[tuple[Cost | None, ...], ...]
    lost: np.ndarray
    """Loss of each option of each bucket, as a share of the square of the whole gradient, float64[N, C]."""
    may_lose: float
    _known: dict[tuple[int, ...], Price] = field(default_factory=dict)

    @classmethod
    def of(cls, replayed: Replayed, bucket_mb: float | None, max_vnmse: float, left_out: dict[str, str]) -> "_Layout":
        """Raises NotBuckets if a graph with such buckets cannot be built, or no codec was measured."""
        run, pricer = replayed.run, replayed.pricer
        buckets = Compressible.of(run, _laid_out(run, pricer.without_slowing, bucket_mb))
        options, columns = [NONE], [tuple[Cost | None, ...]([None] * len(buckets.buckets))]
        lost = [np.zeros(len(buckets.buckets))]
        most, sizes = max(_MAX_VNMSE_TRIED, max_vnmse), np.array([bucket.nbytes for bucket in buckets.buckets])
        for codec in buckets.costs.codecs:
            try:
                column = [buckets.costs.cost(codec, bucket.nbytes) for bucket in buckets.buckets]
            except NotBuckets as reason:
                left_out[codec] = str(reason)
                continue
            vnmse = np.array([np.nan if cost.vnmse is None else cost.vnmse for cost in column])
            if not vnmse.max() <= most:
                left_out[codec] = f"loses {vnmse.max():.2g} of the square of normal numbers, more than {most:g}"
                continue
            options.append(codec)
            columns.append(tuple(column))
            lost.append(vnmse * sizes / sizes.sum())
            if (total := lost[-1].sum()) > max_vnmse:
                left_out[f"{codec} for all"] = f"loses {total:.2g} of the square, more than {max_vnmse:g}"
        costs = tuple(zip(*columns, strict=True))
        return cls(pricer, bucket_mb, buckets, tuple(options), costs, np.stack(lost, axis=1), max_vnmse)

    def loses(self, choice: Sequence[int]) -> float:
        """Loss of the choice, as a share of the square of the whole gradient."""
        return float(self.lost[np.arange(len(self.lost)), list(choice)].sum())

    def price(self, choice: Sequence[int]) -> Price:
        key = tuple(choice)
        if key not in self._known:
            costs = [row[option] for row, option in zip(self.costs, key, strict=True)]
            self._known[key] = self.pricer.price_slowed(*self.buckets.compressed(costs))
        return self._known[key]

    def step_ns(self, choice: Sequence[int]) -> float:
        return float(self.price(choice).step_ns.mean())

    def uniform(self) -> dict[str, tuple[int, ...]]:
        """The choice of each codec, `none` included, that all buckets may use."""
        every = {codec: (option,) * len(self.costs) for option, codec in enumerate(self.options)}
        return {codec: choice for codec, choice in every.items() if self._is_allowed(choice)}

    def zero_cost_ns(self) -> float:
        """The step with the fastest communication if encoding and decoding take no time: a lower bound of all choices."""
        return self._free_ns(min(cost.link_ns if cost is not None else np.inf for cost in row) for row in self.costs)

    def no_exchange_ns(self) -> float:
        """The step without communication of gradients."""
        return self._free_ns(0.0 for _ in self.costs)

    def best(self) -> tuple[tuple[int, ...], bool]:
        """(the choice with the shortest step found, whether all choices were tried)."""
        count = len(self.costs)
        if len(self.options) ** count <= _MAX_TRIED:
            every = product(range(len(self.options)), repeat=count)
            return min(filter(self._is_allowed, every), key=self.step_ns), True
        sizes = np.array([bucket.nbytes for bucket in self.buckets.buckets])
        found = search(self._timeline(), sizes)
        tried = [tuple(found.choice.tolist()), *self.uniform().values()]
        return self._varied(min(tried, key=self.step_ns)), False

    def _is_allowed(self, choice: Sequence[int]) -> bool:
        return self.loses(choice) <= self.may_lose

    def _free_ns(self, link_ns: Iterable[float]) -> float:
        return float(self.pricer.price_slowed(*self.buckets.at_no_cost(link_ns)).step_ns.mean())

    def _varied(self, best: tuple[int, ...]) -> tuple[int, ...]:
        """The best choice reached from `best` by changes of single buckets."""
        left = _MAX_TRIED
        while left > 0:
            before = best
            for bucket in range(len(best)):
                others = [
                    (*best[:bucket], option, *best[bucket + 1 :])
                    for option in range(len(self.options))
                    if option != best[bucket]
                ]
                others = list(filter(self._is_allowed, others))
                left -= len(others)
                best = min([best, *others], key=self.step_ns)
            if best == before:
                break
        return best

    def _timeline(self) -> BucketTimeline:
        """The recurrence of an average steady-state step: buckets become ready when the last rank has them."""
        dfg, steps = self.buckets.dfg, self.pricer.steps
        base = replay(dfg)
        begin = base.end_ns[dfg.marks.first].max(axis=1)
        ready, link = [], []
        for encodes, all_reduces in zip(self.buckets.encodes, self.buckets.all_reduces, strict=True):
            ends = [self._latest(base.end_ns[nodes], dfg.step[nodes]) for nodes in encodes.values()]
            ready.append(
                np.mean([max(one[step] for one in ends) - begin[dfg.marks.steps.index(step)] for step in steps])
            )
            link.append(float(dfg.dur_ns[all_reduces].mean()))
        table = np.array(
            [
                [
                    (0.0, took, 0.0)
                    if cost is None
                    else (max(cost.begin_ns) + cost.cpu_ns, cost.link_ns, cost.coding_ns)
                    for cost in row
                ]
                for row, took in zip(self.costs, link, strict=True)
            ]
        )
        nothing = np.zeros(table.shape[:2])
        moments = np.maximum.accumulate(np.array(ready))
        stall, link, coding = np.moveaxis(table, 2, 0)
        return BucketTimeline(
            Costs(moments, stall, nothing, link, coding, float(moments[-1]), self.lost, self.may_lose)
        )

    @staticmethod
    def _latest(values: np.ndarray, steps: np.ndarray) -> dict[int, float]:
        """The largest value of each step."""
        return {int(step): float(values[steps == step].max()) for step in np.unique(steps)}


def advise_compression(replayed: Replayed, max_vnmse: float = MAX_VNMSE) -> CompressionAdvice:
    """Advise codecs for a job; its whole gradient may lose `max_vnmse` of its square, which the search distributes among
    buckets. Raises EsprofError if the run has no known buckets or no probe."""
    pricer = replayed.pricer
    if pricer.too_far_off:
        raise EsprofError(pricer.too_far_off, remedy="Record more steps, or on a quieter machine.")
    left_out: dict[str, str] = {}
    try:
        if (shards := Shards.of(replayed.run, pricer.without_slowing)) is not None:
            return advise_shards(replayed, shards, max_vnmse)
        recorded = _Layout.of(replayed, None, max_vnmse, left_out)
    except NotBuckets as reason:
        raise EsprofError(
            f"gradients cannot be compressed: {reason}",
            remedy="Record the job with --shapes and --probe SECONDS; it must be one of DDP or FSDP2 over gloo.",
        ) from reason
    layouts = [recorded, *_others(replayed, max_vnmse)]
    found = [(layout, *layout.best()) for layout in layouts]
    # Other buckets require a restart of the job, which an insignificant gain does not justify.
    layout, choice, _ = min(
        found, key=lambda one: one[0].step_ns(one[1]) * (1 + _MIN_GAIN_OF_REBUCKETING * (one[0] is not recorded))
    )
    price, error = layout.price(choice), pricer.error.of_terms([TERM])
    step, interval = float(price.step_ns.mean()), pricer.interval(price, [TERM])
    uniform = {codec: recorded.step_ns(one) for codec, one in recorded.uniform().items() if codec != NONE}
    narrow = min((uniform[codec] for codec in ("bf16", "fp16") if codec in uniform), default=None)
    zero, nothing = min(one.zero_cost_ns() for one in layouts), recorded.no_exchange_ns()
    exact = all(all_tried for _, _, all_tried in found)
    advice = CompressionAdvice(
        value=us(step),
        low_us=us(interval.low_ns),
        high_us=us(interval.high_ns),
        baselines={
            "now": us(pricer.step_ns),
            **{codec: us(took) for codec, took in uniform.items()},
            "zero cost": us(zero),
            "no exchange": us(nothing),
        },
        exposed_us=us(pricer.step_ns - nothing),
        gain_pct=round(100 * (1 - step / pricer.step_ns), 3),
        gain_over_16_bit_pct=None if narrow is None else round(100 * (1 - step / narrow), 3),
        error_pct=round(100 * error, 3),
        gap_pct=0.0 if exact else round(100 * (step / zero - 1), 3),
        vnmse=layout.loses(choice),
        gap_kind="exact" if exact else "lower_bound",
        bucket_mb=layout.bucket_mb,
        decision=tuple(_bucket_advice(layout, choice)),
        left_out=left_out,
        plan=None,
    )
    if not any(choice) or not is_worth_it(1 - step / pricer.step_ns, error):
        return advice
    return msgspec.structs.replace(advice, plan=_plan(replayed, advice))


def _laid_out(run: Run, dfg: Dfg, bucket_mb: float | None) -> Dfg:
    return dfg if bucket_mb is None else rebucket(run, dfg, bucket_mb).dfg


def _others(replayed: Replayed, max_vnmse: float) -> Iterator[_Layout]:
    """Buckets of other sizes, where these can be predicted."""
    for bucket_mb in _SIZES_MB:
        with suppress(NotBuckets):
            yield _Layout.of(replayed, bucket_mb, max_vnmse, {})


def _bucket_advice(layout: _Layout, choice: tuple[int, ...]) -> Iterator[BucketAdvice]:
    step = layout.step_ns(choice)
    for number, (bucket, option) in enumerate(zip(layout.buckets.buckets, choice, strict=True)):
        cost = layout.costs[number][option]
        saves = layout.step_ns((*choice[:number], 0, *choice[number + 1 :])) - step if option else 0.0
        yield BucketAdvice(
            elements=bucket.elements,
            nbytes=bucket.nbytes,
            codec=layout.options[option],
            begin_us=us(max(cost.begin_ns)) if cost is not None else 0.0,
            link_us=us(cost.link_ns) if cost is not None else None,
            coding_us=us(cost.coding_ns) if cost is not None else 0.0,
            sent_bytes=cost.sent if cost is not None else None,
            vnmse=cost.vnmse if cost is not None else None,
            saves_us=us(saves),
            reason=f"without it, a step would take {us(saves) / 1000:.3g} ms longer"
            if option
            else "no codec makes a step shorter",
        )


def _plan(replayed: Replayed, advice: CompressionAdvice) -> Plan:
    buckets = tuple(
        BucketChoice(
            codec=one.codec,
            index=number,
            elements=one.elements,
            sent_bytes=one.sent_bytes,
            vnmse=one.vnmse,
            reason=one.reason,
        )
        for number, one in enumerate(advice.decision)
    )
    promise = PlanPromise(
        step_us=advice.value, low_us=advice.low_us, high_us=advice.high_us, baselines_us=advice.baselines
    )
    body = CompressionBody(buckets=buckets, bucket_mb=advice.bucket_mb, warm_up_steps=_WARM_UP)
    applies: Literal["live", "restart"] = "live" if advice.bucket_mb is None else "restart"
    section = section_of(replayed, body, promise, applies=applies, changes_bits=True)
    return plan_of(replayed.run, PlanParts(compression=section))
