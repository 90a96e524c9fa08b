"""Measure how long the ranks exchange a compressed gradient with each codec, as the communication hook does."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from .agreement import filled
from .bench import Bench, MeasuredSizes
from .codecs import gradient_of

_SIZES = [1 << power for power in (14, 18, 21, 24)]
_SMALLEST_SCATTER_BYTES = 1 << 12
"""Smaller than `_SIZES`: reduce-scatters have no minimum size, unlike buckets."""
_ELEMENT_BYTES = 4
_OVER_BUDGET = "it would take more than its share of the time"


def by_codec(bench: Bench, codecs: dict[str, Any], wanted: list[int]) -> None:
    """Measure exchanges by codec and size of the gradient in bytes, in three sweeps each.

    `exchange` is the whole exchange, `begin` its time until the first communication has started, for which the backward pass
    waits, and `coding` the time of computation afterwards. `wanted` sizes come first: they matter most.
    """
    from esprof.elastic.compress.exchanges import Counted, Links, exchange_for
    from esprof.elastic.runtime.transport import GroupTransport

    ((ranks, group), *_) = bench.agreement.groups
    link = Counted(GroupTransport(group))
    sizes = [
        *sorted(wanted, reverse=True),
        *(size for size in _SIZES if size not in wanted and size <= bench.max_bytes),
    ]
    for index, size in enumerate(sizes):
        for number, (spec, coder) in enumerate(codecs.items()):
            bench.use_share(1 / ((len(sizes) - index) * len(codecs) - number))
            exchange = _RepeatedExchange(
                exchange_for(coder, None),
                coder,
                gradient_of(size // _ELEMENT_BYTES, bench.device),
                link,
                Links(link, link),
            )
            _measure(bench, exchange, ranks, spec, size, is_wanted=size in wanted)


def _measure(
    bench: Bench, exchange: "_RepeatedExchange", ranks: tuple[int, ...], spec: str, size: int, *, is_wanted: bool
) -> None:
    exchange.once(bench)
    vnmse = exchange.vnmse()
    (took_ns, *_) = exchange.once(bench)
    count = bench.repeats(took_ns, sizes_left=1, wanted=is_wanted)
    whole = MeasuredSizes("exchange", spec, "bytes", ranks, bench.device.type, bench.agreement.backend)
    if not count:
        bench.left_out(f"exchange by {spec} of {size} bytes", _OVER_BUDGET, by_budget=True)
        return
    took, begin_ns, coding, cpu = zip(*(exchange.once(bench) for _ in range(count)), strict=True)
    bench.note(bench.mine("begin", spec, "bytes"), size, begin_ns)
    bench.note(bench.mine("coding", spec, "bytes"), size, coding)
    bench.note(whole, size, took, sum(cpu) // len(cpu), sent=exchange.sent, vnmse=vnmse)


def of_shards(bench: Bench, wanted: list[int]) -> None:
    """Measure reduce-scatters of gradients sent as bf16, as FSDP2 can do them, by size of the gradient in bytes.

    `shards` is the whole reduce-scatter, `narrow` the conversion before the communication, `add` the sum after it.
    """
    from esprof.elastic.compress.sharded import NarrowReduceScatter, add, narrowed

    ((ranks, group), *_) = bench.agreement.groups
    others = (size for size in (_SMALLEST_SCATTER_BYTES, *_SIZES) if size not in wanted and size <= bench.max_bytes)
    sizes = [*sorted(wanted, reverse=True), *others]
    for index, size in enumerate(sizes):
        bench.use_share(1 / (len(sizes) - index))
        gradient = gradient_of(max(1, size // _ELEMENT_BYTES // len(ranks)) * len(ranks), bench.device)
        shard, scatter = gradient.new_empty(len(gradient) // len(ranks)), NarrowReduceScatter()
        sent = narrowed(gradient)
        calls: list[Callable[[], object]] = [
            partial(scatter, shard, gradient, group, dist.ReduceOp.SUM),
            partial(narrowed, gradient),
            partial(add, sent, shard),
        ]
        _, (took_ns, _) = (bench.timed(calls[0]) for _ in range(2))
        count = bench.repeats(took_ns, sizes_left=1, wanted=size in wanted)
        if not count:
            bench.left_out(f"a reduce-scatter of {size} bytes as bf16", _OVER_BUDGET, by_budget=True)
            continue
        scatter.sent_bytes = 0
        whole, before, after = zip(*([bench.timed(call) for call in calls] for _ in range(count)), strict=True)
        lost = float((sent.float() - gradient).square().sum() / gradient.square().sum())
        what = MeasuredSizes("shards", "bf16", "bytes", ranks, bench.device.type, bench.agreement.backend)
        took, cpu = zip(*whole, strict=True)
        bench.note(what, size, took, sum(cpu) // count, sent=scatter.sent_bytes // count, vnmse=lost)
        bench.note(bench.mine("narrow", "bf16", "bytes"), size, [took for took, _ in before])
        bench.note(bench.mine("add", "bf16", "bytes"), size, [took for took, _ in after])


class _RepeatedExchange:
    """A repeatable exchange of one gradient."""

    def __init__(self, exchange: Any, codec: Any, gradient: Tensor, link: Any, links: Any) -> None:
        from esprof.elastic.compress.exchanges import reduced

        self._original, self._gradient = gradient, filled(len(gradient), gradient.device)
        self._state: dict[str, Tensor] = {}
        self._steps: Any = partial(reduced, exchange, codec, self._gradient, self._state, links)
        self._link = link
        self.sent = 0
        """Bytes that this rank sent to others in the last exchange."""

    def once(self, bench: Bench) -> tuple[int, int, int, int]:
        """(duration, time until the first communication started, time after that without waiting for communication, CPU
        time), ns."""
        self._gradient.copy_(self._original)
        bench.synchronize()
        bench.agreement.barrier()
        self._link.sent = 0
        cpu, began = time.process_time_ns(), time.perf_counter_ns()
        steps = self._steps()
        communication = next(steps)
        begin_ns = time.perf_counter_ns()
        waited = _wait_ns(communication) + sum(map(_wait_ns, steps))
        bench.synchronize()
        took = time.perf_counter_ns() - began
        self.sent = self._link.sent
        return took, begin_ns - began, took - (begin_ns - began) - waited, time.process_time_ns() - cpu

    def vnmse(self) -> float:
        """Squared error of the last exchange relative to the squared gradient, which is the same on all ranks."""
        lost, whole = ((self._gradient - self._original).square().sum(), self._original.square().sum())
        return float(lost / whole)


def _wait_ns(communication: Any) -> int:
    began = time.perf_counter_ns()
    communication.wait()
    return time.perf_counter_ns() - began
