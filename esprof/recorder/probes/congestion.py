"""Measure collectives between CPUs over connections with each TCP congestion control that all ranks can use."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from ..shared import tcp
from .bench import Bench, MeasuredSizes
from .collectives import ALL_REDUCE, EACH_WAY, call_of

_SIZES = [1 << power for power in (10, 16, 20)]
_SMALL = 1 << 16
"""Bytes up to which latency makes up most of the time."""
_OVER_BUDGET = "it would take more than its share of the time"
_ALL = "TCP congestion controls"


def by_control(bench: Bench, wanted: dict[str, list[int]]) -> None:
    """Measure the kinds of collectives that the job uses, with each control, at `wanted` and a few other sizes in bytes.

    Each control has a process group of its own, whose sockets get the control on all ranks: an accepted connection has that
    of its listener, not that of its peer. In these collectives ranks send and receive at once. The controls take turns at
    each size, so that a change of the link concerns them all.
    """
    if bench.agreement.backend != "gloo":
        bench.left_out(_ALL, f"measured with gloo only; the job uses {bench.agreement.backend}")
        return
    controls = bench.agreement.union(tcp.loaded_controls())
    with _groups(bench, controls) as groups:
        if len(groups) < 2:
            bench.left_out(_ALL, "the ranks have no two of them in common")
            return
        kinds = [kind for kind in EACH_WAY if kind == ALL_REDUCE or kind in wanted]
        turns = [
            (kind, size)
            for kind in kinds
            for size in sorted({*_SIZES, *wanted.get(kind, [])})
            if size <= bench.max_bytes
        ]
        # Lost packets make a few repeats very long: large collectives, which lose most, get most of the repeats.
        left = len(groups) * sum(max(size, _SMALL) for _, size in turns)
        measured = {
            (kind, control): _Controlled(bench, kind, control, groups[control]) for kind in kinds for control in groups
        }
        for kind, size in turns:
            for control in groups:
                bench.use_share(max(size, _SMALL) / left)
                left -= max(size, _SMALL)
                measured[kind, control].measure(size, is_wanted=size in wanted.get(kind, []))


@contextmanager
def _groups(bench: Bench, controls: list[str]) -> Iterator[dict[str, Any]]:
    """A process group for each control that no rank's kernel refuses; the others are left out."""
    groups: dict[str, Any] = {}
    for control in controls:
        before = tcp.sockets()
        group = bench.agreement.connected_anew()
        refusals = bench.agreement.union(_refusals(control, tcp.sockets() - before))
        if refusals:
            bench.left_out(f"TCP congestion control {control}", refusals[0])
            dist.destroy_process_group(group)
        else:
            groups[control] = group
    yield groups
    for group in groups.values():  # Not after a failure: other ranks may still wait in the groups.
        dist.destroy_process_group(group)


def _refusals(control: str, opened: set[tcp.TcpSocket]) -> list[str]:
    """Set the control of these sockets. Why that failed, in words; empty if it did not."""
    if not opened:
        return ["no TCP connection was opened"]
    try:
        for one in opened:
            tcp.set_control(one, control)
    except OSError as error:
        return [tcp.refusal(control, error)]
    return []


class _Controlled:
    """A collective of one kind with one control, measured at ascending sizes."""

    def __init__(self, bench: Bench, kind: str, control: str, group: Any) -> None:
        self._bench, self._kind, self._control, self._group = bench, kind, control, group
        self._ns_per_byte = 0.0
        """At the largest size so far, of at least `_SMALL` bytes."""

    def measure(self, size: int, *, is_wanted: bool) -> None:
        """Measure a size, unless it would take too long: a control may send next to nothing over this link."""
        bench, ((ranks, _), *_) = self._bench, self._bench.agreement.groups
        once = call_of(self._kind, size, ranks, self._group, bench)
        assert once is not None, "all ranks take part"
        count = bench.repeats(round(max(size, _SMALL) * self._ns_per_byte), sizes_left=1, wanted=is_wanted)
        if count:
            took_ns = max(bench.timed(once)[0] for _ in range(2))
            self._ns_per_byte = took_ns / max(size, _SMALL)
            count = bench.repeats(took_ns, sizes_left=1, wanted=is_wanted)
        if not count:
            bench.left_out(f"{self._kind} of {size} bytes with {self._control}", _OVER_BUDGET, by_budget=True)
            return
        took, cpu = zip(*(bench.timed(once) for _ in range(count)), strict=True)
        name = f"{self._kind}:{self._control}"
        what = MeasuredSizes("congestion", name, "bytes", ranks, bench.device.type, bench.agreement.backend)
        bench.note(what, size, took, sum(cpu) // count)
