"""What it takes the ranks to come to the mean of a gradient by each codec, as the communication hook does it."""

import time
from functools import partial
from typing import Any

from torch import Tensor

from .agreement import filled
from .bench import Bench, Measured
from .codecs import gradient_of

_SIZES = [1 << power for power in (14, 18, 21, 24)]
_ITEM = 4


def by_codec(bench: Bench, codecs: dict[str, Any], wanted: list[int]) -> None:
    """By size of the gradient, bytes: all of it (`exchange`), what of it comes before the first transfer is under way
    (`begin`), with which the backward pass waits, and what a thread does between transfers and after them (`coding`). Sizes
    that are `wanted` come first: they matter most."""
    from esprof.elastic.compression.exchanges import Counted, Links, exchange_for
    from esprof.elastic.transport import GroupTransport

    ((ranks, group), *_) = bench.agreement.groups
    link = Counted(GroupTransport(group))
    sizes = [*sorted(wanted, reverse=True), *(size for size in _SIZES if size not in wanted and size <= bench.room)]
    for place, size in enumerate(sizes):
        for number, (spec, made) in enumerate(codecs.items()):
            bench.take(1 / ((len(sizes) - place) * len(codecs) - number))
            one = _Exchange(
                exchange_for(made, None), made, gradient_of(size // _ITEM, bench.device), link, Links(link, link)
            )
            _measure(bench, one, ranks, spec, size, is_wanted=size in wanted)


def _measure(bench: Bench, one: "_Exchange", ranks: tuple[int, ...], spec: str, size: int, *, is_wanted: bool) -> None:
    one.once(bench)
    vnmse = one.vnmse()
    (took_ns, *_) = one.once(bench)
    count = bench.repeats(took_ns, to_come=1, wanted=is_wanted)
    whole = Measured("exchange", spec, "bytes", ranks, bench.device.type, bench.agreement.backend)
    if not count:
        bench.left_out(
            f"exchange by {spec} of {size} bytes", "it would take more than its share of the time", by_budget=True
        )
        return
    took, begun, coding, cpu = zip(*(one.once(bench) for _ in range(count)), strict=True)
    bench.note(bench.mine("begin", spec, "bytes"), size, begun)
    bench.note(bench.mine("coding", spec, "bytes"), size, coding)
    bench.note(whole, size, took, sum(cpu) // len(cpu), sent=one.sent, vnmse=vnmse)


class _Exchange:
    """An exchange that can be repeated."""

    def __init__(self, exchange: Any, codec: Any, gradient: Tensor, link: Any, links: Any) -> None:
        from esprof.elastic.compression.exchanges import reduced

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
        begun = time.perf_counter_ns()
        waited = _wait_ns(transfer) + sum(map(_wait_ns, steps))
        bench.settle()
        took = time.perf_counter_ns() - began
        self.sent = self._link.sent
        return took, begun - began, took - (begun - began) - waited, time.process_time_ns() - cpu

    def vnmse(self) -> float:
        """What the last exchange lost, as squared error relative to the square; all ranks had the same gradient."""
        lost, whole = ((self._gradient - self._original).square().sum(), self._original.square().sum())
        return float(lost / whole)


def _wait_ns(transfer: Any) -> int:
    began = time.perf_counter_ns()
    transfer.wait()
    return time.perf_counter_ns() - began
