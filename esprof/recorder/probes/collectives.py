"""Measure the duration of collectives by size, one at a time and two at once."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..shared import torch_features
from .agreement import filled
from .bench import Bench, MeasuredSizes, Once

ALL_REDUCE = "all_reduce"
EACH_WAY = (ALL_REDUCE, "all_gather", "reduce_scatter", "all_to_all")
"""Collectives in which each rank sends and receives as many bytes at the same time, so that it knows how long they took."""

_SIZES = [8, *(1 << power for power in range(10, 28))]
_ELEMENT_BYTES = 4

Make = Callable[[int, tuple[int, ...], Any, Bench], Once | None]
"""(elements of the larger side, ranks, group, bench) -> one call of the collective; None if this rank does not take part."""


def all_reduce(bench: Bench, wanted: list[int]) -> None:
    """Measure all-reduces, as DDP uses for its buckets, in all process groups of the job."""
    for number, (ranks, group) in enumerate(bench.agreement.groups):
        bench.use_share(1 / (len(bench.agreement.groups) - number))
        _sweep(bench, "all_reduce", ranks, group, wanted)


def all_reduce_twice(bench: Bench, wanted: list[int]) -> None:
    """Measure two all-reduces at once: on a shared link they take twice as long as one, on separate links equally long."""
    for ranks, group in bench.agreement.groups[:1]:

        def prepare(size: int, group: Any = group) -> Once:
            one, other = (tensor_of(size, bench) for _ in range(2))
            return lambda: [work.wait() for work in start_all_reduces(group, one, other)]

        what = measured_collective(bench, "all_reduce", ranks, beside="itself")
        bench.sweep(what, _SIZES[1::3], prepare, wanted=wanted, in_step=True)


def others(bench: Bench, wanted: dict[str, list[int]]) -> None:
    """Measure all other collectives in the group of all ranks."""
    for number, name in enumerate(_OTHERS):
        bench.use_share(1 / (len(_OTHERS) - number))
        for ranks, group in bench.agreement.groups[:1]:
            _sweep(bench, name, ranks, group, wanted.get(name, []))


def start_all_reduces(group: Any, *buffers: Tensor) -> list[Any]:
    """Launch an all-reduce of each buffer, and return their works. The caller waits for each of them."""
    return [dist.all_reduce(buffer, group=group, async_op=True) for buffer in buffers]


def measured_collective(bench: Bench, name: str, ranks: tuple[int, ...], **more: Any) -> MeasuredSizes:
    """Description of a sweep of the collective `name` among `ranks`."""
    backend = bench.agreement.backend
    return MeasuredSizes("collective", name, "bytes", ranks, bench.device.type, backend, **more)


def tensor_of(size: int, bench: Bench) -> Tensor:
    """A buffer of `size` bytes on the bench's device."""
    return filled(size // _ELEMENT_BYTES, bench.device)


def call_of(name: str, size: int, ranks: tuple[int, ...], group: Any, bench: Bench) -> Once | None:
    """One call of the collective `name` of `size` bytes on its larger side; None if this rank does not take part."""
    return _MAKE[name](-(-size // _ELEMENT_BYTES // len(ranks)) * len(ranks), ranks, group, bench)


def _sweep(bench: Bench, name: str, ranks: tuple[int, ...], group: Any, wanted: list[int]) -> None:
    is_pair = name == "send_recv"
    # The first rank of a pair times the round trip. The root of a broadcast does not know when the others received it.
    noted = {"send_recv": bench.rank == ranks[0], "broadcast": bench.rank != ranks[0]}.get(name, True)

    def prepare(size: int) -> Once | None:
        return call_of(name, size, ranks, group, bench) if group is not None else None

    try:
        bench.sweep(
            measured_collective(bench, name, ranks[:2] if is_pair else ranks),
            _SIZES,
            prepare,
            wanted=wanted,
            in_step=True,
            times=2 if is_pair else 1,
            noted=lambda: noted,
        )
    except (RuntimeError, ValueError, NotImplementedError) as refusal:
        # A backend that lacks a collective lacks it on all ranks.
        bench.left_out(f"collective {name}", str(refusal).splitlines()[0])


def _all_reduce(count: int, ranks: tuple[int, ...], group: Any, bench: Bench) -> Once:
    buffer = filled(count, bench.device)
    return lambda: dist.all_reduce(buffer, group=group)


def _all_gather(count: int, ranks: tuple[int, ...], group: Any, bench: Bench) -> Once:
    out, mine = filled(count, bench.device), filled(count // len(ranks), bench.device)
    return lambda: torch_features.all_gather(out, mine, group).wait()


def _reduce_scatter(count: int, ranks: tuple[int, ...], group: Any, bench: Bench) -> Once:
    out, source = filled(count // len(ranks), bench.device), filled(count, bench.device)
    return lambda: torch_features.reduce_scatter(out, source, group).wait()


def _all_to_all(count: int, ranks: tuple[int, ...], group: Any, bench: Bench) -> Once:
    out, source = filled(count, bench.device), filled(count, bench.device)
    return lambda: dist.all_to_all_single(out, source, group=group)


def _broadcast(count: int, ranks: tuple[int, ...], group: Any, bench: Bench) -> Once:
    buffer = filled(count, bench.device)
    return lambda: dist.broadcast(buffer, ranks[0], group=group)


def _send_recv(count: int, ranks: tuple[int, ...], group: Any, bench: Bench) -> Once | None:
    """A round trip between the first two ranks: start and end are on one rank, so that no second clock is needed."""
    if bench.rank not in ranks[:2]:
        return None
    buffer, other = filled(count, bench.device), ranks[1 - ranks.index(bench.rank)]

    def send() -> None:
        dist.send(buffer, other, group=group)

    def receive() -> None:
        dist.recv(buffer, other, group=group)

    first, then = (send, receive) if bench.rank == ranks[0] else (receive, send)
    return lambda: (first(), then())


_MAKE: dict[str, Make] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send_recv": _send_recv,
}
_OTHERS = [name for name in _MAKE if name != "all_reduce"]
