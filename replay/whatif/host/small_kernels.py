"""Storms of small kernels: runs of launches on a CPU thread, most of whose kernels take less time than to launch them."""

from dataclasses import dataclass

import numpy as np

from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind
from esprof.replay.whatif.graph.selections import waits_for_device
from esprof.replay.whatif.host.first_calls import first_calls
from esprof.replay.whatif.host.idle_gaps import long_gaps

MIN_LAUNCHES = 10
"""Fewest launches of a storm: launching a CUDA graph costs as much as launching a few kernels."""

MIN_SHARE_SMALL = 0.5
"""Least share of a storm's kernels that are shorter than their launches: then the median one is."""


@dataclass(frozen=True)
class Storms:
    """The storms of a graph. Arrays of launches have one entry for each launch of a single kernel, by thread and time."""

    launch: np.ndarray
    """Node of the CPU thread before each launch."""
    kernel: np.ndarray
    """Node of its kernel."""
    kernel_ns: np.ndarray
    """Duration of the kernel."""
    host_ns: np.ndarray
    """Recorded work of the CPU thread between the launch before, or the run's begin, and this launch, ns."""
    inside: np.ndarray
    """Mask of the launches that are part of a storm."""
    saved: np.ndarray
    """Mask of the nodes of CPU threads after the first launch of a storm, up to its last one, bool[N]."""

    @property
    def is_small(self) -> np.ndarray:
        """Mask of the launches in storms whose kernels are shorter than the launch."""
        small: np.ndarray = self.inside & (self.kernel_ns < self.host_ns)
        return small


def storms(dfg: Dfg) -> Storms:
    """The storms of all threads.

    A run ends with the step, and where a thread waits for the device, another thread or input data, allocates memory,
    starts a collective or a CUDA graph, or does nothing that was recorded for more than 1 ms: no CUDA graph contains these.
    """
    kernel_of, launches_others = _single_kernels(dfg)
    breaks = launches_others | _breaks(dfg)
    on_thread = np.flatnonzero(dfg.on(LaneKind.CPU) & (dfg.rank >= 0))
    order = on_thread[np.lexsort((dfg.recorded_ns[on_thread], dfg.lane[on_thread]))]
    begins = breaks[order]
    begins[1:] |= (np.diff(dfg.lane[order]) != 0) | (np.diff(dfg.step[order]) != 0)
    run = np.cumsum(begins)
    # Gaps do not count: Python code between operations does not make a kernel small.
    worked_ns = np.cumsum(np.where((breaks | dfg.of(Cls.HOST_GAP))[order], 0, dfg.dur_ns[order]))
    at = np.flatnonzero(kernel_of[order] >= 0)
    before = np.maximum(np.append(-1, at[:-1]), np.searchsorted(run, run[at]) - 1)
    host_ns = worked_ns[at] - np.where(before >= 0, worked_ns[before], 0)
    launch, kernel_ns = order[at], dfg.dur_ns[kernel_of[order[at]]]
    number, count = np.unique(run[at], return_inverse=True, return_counts=True)[1:]
    small = np.bincount(number, kernel_ns < host_ns, len(count))
    inside = ((count >= MIN_LAUNCHES) & (small >= MIN_SHARE_SMALL * count))[number]
    return Storms(launch, kernel_of[launch], kernel_ns, host_ns, inside, _between(dfg, order, at[inside], run))


def _between(dfg: Dfg, order: np.ndarray, at: np.ndarray, run: np.ndarray) -> np.ndarray:
    """Mask of the nodes after the first launch of each run, up to its last; `at` are positions of launches in `order`."""
    first = at[np.unique(run[at], return_index=True)[1]]
    change = np.zeros(len(order) + 1, np.int64)
    change[first + 1] += 1
    change[at[np.append(np.flatnonzero(np.diff(run[at])), len(at) - 1)] + 1 if len(at) else at] -= 1
    mask = np.zeros(dfg.nodes, bool)
    mask[order[np.cumsum(change)[:-1] > 0]] = True
    return mask


def _single_kernels(dfg: Dfg) -> tuple[np.ndarray, np.ndarray]:
    """(the kernel launched alone right after each node of a CPU thread, int[N], -1 for other nodes; mask of the nodes after
    which anything else is launched: collectives, copies across the bus, CUDA graphs)."""
    edges = np.flatnonzero((dfg.pred_kind == Edge.LAUNCH) & dfg.on(LaneKind.CPU)[dfg.pred_idx])
    before, work = dfg.pred_idx[edges], dfg.pred_target[edges]
    is_single = np.bincount(before, minlength=dfg.nodes)[before] == 1
    chosen = is_single & dfg.of(Cls.COMPUTE)[work] & dfg.on(LaneKind.STREAM)[work]
    found, others = np.full(dfg.nodes, -1), np.zeros(dfg.nodes, bool)
    found[before[chosen]], others[before[~chosen]] = work[chosen], True
    return found, others


def _breaks(dfg: Dfg) -> np.ndarray:
    """Mask of the nodes that no CUDA graph contains, bool[N]."""
    breaks: np.ndarray = dfg.of(Cls.WAIT, Cls.DATA, Cls.ALLOCATOR, Cls.COPY, Cls.COMMUNICATION)
    breaks |= long_gaps(dfg) | first_calls(dfg)
    breaks[dfg.pred_target[waits_for_device(dfg)]] = True
    return breaks
