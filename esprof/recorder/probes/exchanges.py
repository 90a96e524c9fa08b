"""What it takes the ranks to come to the mean of a gradient by each codec, as the communication hook does it."""

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
"""Reduce-scatters have no least size, as buckets do."""
_ELEMENT_BYTES = 4
_OVER_BUDGET = "it would take more than its share of the time"


def by_codec(bench: Bench, codecs: dict[str, Any], wanted: list[int]) -> None:
    """By size of the gradient, bytes: all of it (`exchange`), what of it comes before the first transfer is under way
    (`begin`), with which the backward pass waits, and what a thread does between transfers and after them (`coding`). Sizes
    that are `wanted` come first: they matter most."""
    from esprof.elastic.compress.exchanges import Counted, Links, exchange_for
    from esprof.elastic.runtime.transport import GroupTransport

    ((ranks, group), *_) = bench.agreement.groups
    link = Counted(GroupTransport(group))
    sizes = [
        *sorted(wanted, reverse=True),
        *(size for size in _SIZES if size not in wanted and size <= bench.max_bytes),
    ]
    for place, size in enumerate(sizes):
        for number, (spec, made) in enumerate(codecs.items()):
            bench.take(1 / ((len(sizes) - place) * len(codecs) - number))
            one = _RepeatedExchange(
                exchange_for(made, None),
                made,
                gradient_of(size // _ELEMENT_BYTES, bench.device),
                link,
                Links(link, link),
            )
            _measure(bench, one, ranks, spec, size, is_wanted=size in wanted)


def _measure(
    bench: Bench, one: "_RepeatedExchange", ranks: tuple[int, ...], spec: str, size: int, *, is_wanted: bool
) -> None:
    one.once(bench)
    vnmse = one.vnmse()
    (took_ns, *_) = one.once(bench)
    count = bench.repeats(took_ns, to_come=1, wanted=is_wanted)
    whole = MeasuredSizes("exchange", spec, "bytes", ranks, bench.device.type, bench.agreement.backend)
    if not count:
        bench.left_out(f"exchange by {spec} of {size} bytes", _OVER_BUDGET, by_budget=True)
        return
    took, begin_ns, coding, cpu = zip(*(one.once(bench) for _ in range(count)), strict=True)
    bench.note(bench.mine("begin", spec, "bytes"), size, begin_ns)
    bench.note(bench.mine("coding", spec, "bytes"), size, coding)
    bench.note(whole, size, took, sum(cpu) // len(cpu), sent=one.sent, vnmse=vnmse)


def of_shards(bench: Bench, wanted: list[int]) -> None:
    """By size of the gradient, bytes: what it takes each rank to come to its shard of the sum of gradients that travel as
    bf16, as FSDP2 can be told to do it (`shards`); what of that comes before the transfer (`narrow`), and after (`add`)."""
    from esprof.elastic.compress.sharded import NarrowReduceScatter, add, narrowed

    ((ranks, group), *_) = bench.agreement.groups
    others = (size for size in (_SMALLEST_SCATTER_BYTES, *_SIZES) if size not in wanted and size <= bench.max_bytes)
    sizes = [*sorted(wanted, reverse=True), *others]
    for place, size in enumerate(sizes):
        bench.take(1 / (len(sizes) - place))
        gradient = gradient_of(max(1, size // _ELEMENT_BYTES // len(ranks)) * len(ranks), bench.device)
        shard, scatter = gradient.new_empty(len(gradient) // len(ranks)), NarrowReduceScatter()
        sent = narrowed(gradient)
        parts: list[Callable[[], object]] = [
            partial(scatter, shard, gradient, group, dist.ReduceOp.SUM),
            partial(narrowed, gradient),
            partial(add, sent, shard),
        ]
        _, (took_ns, _) = (_timed(bench, parts[0]) for _ in range(2))
        count = bench.repeats(took_ns, to_come=1, wanted=size in wanted)
        if not count:
            bench.left_out(f"a reduce-scatter of {size} bytes as bf16", _OVER_BUDGET, by_budget=True)
            continue
        scatter.sent_bytes = 0
        whole, before, after = zip(*([_timed(bench, part) for part in parts] for _ in range(count)), strict=True)
        lost = float((sent.float() - gradient).square().sum() / gradient.square().sum())
        what = MeasuredSizes("shards", "bf16", "bytes", ranks, bench.device.type, bench.agreement.backend)
        took, cpu = zip(*whole, strict=True)
        bench.note(what, size, took, sum(cpu) // count, sent=scatter.sent_bytes // count, vnmse=lost)
        bench.note(bench.mine("narrow", "bf16", "bytes"), size, [took for took, _ in before])
        bench.note(bench.mine("add", "bf16", "bytes"), size, [took for took, _ in after])


def _timed(bench: Bench, part: Callable[[], object]) -> tuple[int, int]:
    """(ns that it took, ns of CPU time), begun by all ranks together."""
    bench.settle()
    bench.agreement.meet()
    cpu, began = time.process_time_ns(), time.perf_counter_ns()
    part()
    bench.settle()
    return time.perf_counter_ns() - began, time.process_time_ns() - cpu


class _RepeatedExchange:
    """An exchange that can be repeated."""

    def __init__(self, exchange: Any, codec: Any, gradient: Tensor, link: Any, links: Any) -> None:
        from esprof.elastic.compress.exchanges import reduced

        self._original, self._gradient = gradient, filled(len(gradient), gradient.device)
        self._state: dict[str, Tensor] = {}
        self._steps: Any = partial(reduced, exchange, codec, self._gradient, self._state, links)
        self._link = link
        self.sent = 0
        """Bytes that this rank sent to others in the last one."""

    def once(self, bench: Bench) -> tuple[int, int, int, int]:
        """(ns that it took, ns until its first transfer was under way, ns after that in which no transfer was waited for, ns
        of CPU time)."""
        self._gradient.copy_(self._original)
        bench.settle()
        bench.agreement.meet()
        self._link.sent = 0
        cpu, began = time.process_time_ns(), time.perf_counter_ns()
        steps = self._steps()
        transfer = next(steps)
        begin_ns = time.perf_counter_ns()
        waited = _wait_ns(transfer) + sum(map(_wait_ns, steps))
        bench.settle()
        took = time.perf_counter_ns() - began
        self.sent = self._link.sent
        return took, begin_ns - began, took - (begin_ns - began) - waited, time.process_time_ns() - cpu

    def vnmse(self) -> float:
        """What the last exchange lost, as squared error relative to the square; all ranks had the same gradient."""
        lost, whole = ((self._gradient - self._original).square().sum(), self._original.square().sum())
        return float(lost / whole)


def _wait_ns(transfer: Any) -> int:
    began = time.perf_counter_ns()
    transfer.wait()
    return time.perf_counter_ns() - began
