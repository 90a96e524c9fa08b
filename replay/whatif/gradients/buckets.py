"""DDP's gradient buckets: which gradients shared a bucket, and the graph with other bucket sizes.

DDP fills a bucket with gradients in the order in which they become ready, and closes it once it holds `bucket_cap_mb` (torch
`Reducer::rebuild_buckets`; Li et al., VLDB 2020, §4.2). A trace with shapes contains each gradient's size at its
`AccumulateGrad`, so the recorded buckets are checked against this rule before others are predicted. Without shapes, buckets
between GPUs can still be merged.
"""

from collections import defaultdict
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from esprof.core.types import Bytes
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.whatif.gradients import gloo_buckets, nccl_buckets
from esprof.replay.whatif.gradients.backward import BackwardPass, NotBuckets
from esprof.replay.whatif.graph.overlay import Overlay
from esprof.run.run import Run

MIB = 1 << 20


class Rebucketed(NamedTuple):
    """A graph with other bucket sizes."""

    dfg: Dfg
    are_merged: bool
    """Whether the new buckets are merged recorded ones. DDP may close buckets a few gradients sooner."""


def rebucket(run: Run, dfg: Dfg, bucket_mb: float) -> Rebucketed:
    """The graph predicted for `bucket_cap_mb=bucket_mb`. Raises NotBuckets if the run does not contain what that needs."""
    if run.missing_ranks:
        raise NotBuckets("ranks are missing, so their arrival at other buckets is unknown")
    find = nccl_buckets.backward_passes if dfg.has_gpu() else gloo_buckets.backward_passes
    # Backward passes of different ranks belong together if they share their all-reduces.
    by_collectives: dict[tuple[int, ...], list[BackwardPass]] = defaultdict(list)
    for one in find(run, dfg):
        by_collectives[tuple(sorted(dfg.collective[list(one.arrivals)].tolist()))].append(one)
    counts, dur = {}, dfg.dur_ns.copy()
    for old, together in by_collectives.items():
        if len({one.sizes for one in together}) > 1:
            raise NotBuckets("gradients differ between ranks in size or order")
        counts[old] = _filled(together[0], bucket_mb * MIB)
        for one in together:
            _add_launch_costs(dur, one, counts[old])
    overlay = Overlay(replace(dfg, dur_ns=dur))
    for old, together in by_collectives.items():
        overlay.dropped |= _collective_nodes(dfg, old, together)
    for old, together in by_collectives.items():
        _exchange(overlay, together, counts[old])
    are_merged = not all(one.are_gradients for together in by_collectives.values() for one in together)
    return Rebucketed(overlay.compile(), are_merged)


def fill(sizes: tuple[Bytes, ...], cap: float) -> list[int]:
    """Number of gradients in each bucket; a bucket is closed once it holds `cap` bytes or more."""
    counts, held, number = [], 0, 0
    for size in sizes:
        held, number = held + size, number + 1
        if held >= cap:
            counts.append(number)
            held = number = 0
    return counts + [number] * (number > 0)


def _filled(one: BackwardPass, cap: float) -> list[int]:
    """Number of pieces in each bucket of `cap` bytes. Raises NotBuckets if recorded buckets would have to be split.

    The first recorded bucket may have been closed at a smaller size (torch's `_DEFAULT_FIRST_BUCKET_BYTES`), and the last
    one was closed by the end of the pass. The buckets between them, if any, show the size at which buckets were closed.
    """
    full = min(one.sizes[1:-1], default=max(one.sizes))
    if not one.are_gradients and cap < full:
        raise NotBuckets(
            f"buckets below {full / MIB:.4g} MiB would split recorded buckets, and the sizes of single gradients were not "
            "recorded (record with --shapes)"
        )
    return fill(one.sizes, cap)


def _add_launch_costs(dur_ns: np.ndarray, one: BackwardPass, counts: list[int]) -> None:
    """Update `dur_ns`, ns[N], with the CPU time for launching one all-reduce per bucket; `counts` are pieces per bucket."""
    completes = set(accumulate(counts))
    for number, cost in enumerate(one.launch_costs, start=1):
        more = cost.took_ns * ((number in completes) - cost.recorded)
        for node in reversed(cost.nodes):
            changed = max(0, int(dur_ns[node]) + more)
            more -= changed - int(dur_ns[node])
            dur_ns[node] = changed


def _collective_nodes(dfg: Dfg, old: tuple[int, ...], together: list[BackwardPass]) -> np.ndarray:
    """Mask of the nodes of the collectives `old`, bool[N]. Raises NotBuckets if other passes take part in them as well."""
    nodes: np.ndarray = np.isin(dfg.collective, old)
    if np.count_nonzero(nodes & dfg.of(Cls.COMMUNICATION)) != sum(len(one.all_reduces) for one in together):
        raise NotBuckets("ranks do not share the same all-reduces")
    return nodes


def _exchange(overlay: Overlay, together: list[BackwardPass], counts: list[int]) -> None:
    """Add the new buckets of one step on all ranks that share them; `counts` are pieces per bucket."""
    dfg = overlay.dfg
    last = list(accumulate(counts))
    for first, behind in zip([0, *last], last, strict=False):
        size = sum(together[0].sizes[first:behind])
        collective = overlay.add_collective(dfg.label(together[0].all_reduces[0]), together[0].step, size)
        for one in together:
            ties, lanes = one.ready[behind - 1], (dfg.lane[one.arrivals[0]], dfg.lane[one.all_reduces[0]])
            ready = max(int(dfg.recorded_ns[tie.node] + dfg.dur_ns[tie.node]) for tie in ties)
            arrive, all_reduce = overlay.add_member(
                collective, (int(lanes[0]), int(lanes[1])), one.communication_ns(first, behind), ready
            )
            for tie in ties:
                # Nodes of the recorded buckets are dropped.
                if not overlay.dropped[tie.node]:
                    overlay.link(tie.node, arrive, tie.kind, tie.lag_ns)
            for tie in one.readers[first]:
                overlay.link(all_reduce, tie.node, tie.kind, tie.lag_ns)
