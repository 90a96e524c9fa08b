"""The thresholds of graph building, each with its reason, and the switches that leave a rule out. Times in ns."""

from dataclasses import dataclass

from esprof.core.types import NS_PER_MS, NS_PER_US, Ns

MAX_BLOCKING_OWN: Ns = 20 * NS_PER_US
"""What a blocking call may keep as its own work; the rest of its time must come from an edge."""

MIN_WAITING_CALL: Ns = 60 * NS_PER_US
"""A synchronising call longer than this has waited for something."""

MAX_SYNC_EARLY: Ns = 60 * NS_PER_US
"""A call may return this much before the kernel for which it waited ends, by the clocks of CPU and GPU, which differ by
tens of microseconds on one rank. A tighter bound misses real waits, and a wait matched in part misleads more than none."""

MAX_SYNC_LATE: Ns = 100 * NS_PER_US
"""A call may return this much after the kernel for which it waited ended, by the clocks of CPU and GPU, which differ by
tens of microseconds on one rank. A tighter bound misses real waits, and a wait matched in part misleads more than none."""

MIN_HIDDEN_WAIT: Ns = 500 * NS_PER_US
"""Silence before `cudaEventElapsedTime` or `cudaFree` longer than this hides a wait that the profiler did not record."""

MAX_WAKE_UP: Ns = NS_PER_MS
"""A thread that waited runs again at most this long after its cause, where nothing else shows that it waited."""

MIN_HAND_OVER: Ns = 100 * NS_PER_US
"""A pause of one CPU thread longer than this, during which its partner thread worked, is a hand-over."""

MAX_STREAM_GAP: Ns = 5 * NS_PER_US
"""Largest pause between two kernels of a busy stream that is the GPU's own."""

DEFAULT_LAUNCH_LATENCY: Ns = 5 * NS_PER_US
"""From a launch to its kernel on an idle stream, where the trace shows too few to tell."""

MIN_LATENCIES = 20
"""Kernels on idle streams from which on their latencies tell that of a launch."""

LATENCY_QUANTILE = 0.05
"""Quantile of the latencies on idle streams that is the launch's own: what is longer may have waited. Of jobs limited by
their GPU, the median is milliseconds."""

MIN_KERNEL_LATENESS: Ns = 20 * NS_PER_US
"""A kernel that starts this much later than all its known reasons allow has one that was not recorded."""

MAX_FOLLOWING_PAUSE: Ns = 12 * NS_PER_US
"""A late kernel that starts at most this long after a kernel of another stream ended has waited for that kernel."""

MIN_CUT_WORK: Ns = 200 * NS_PER_US
"""If the first kernel of a stream starts this long after its launch, work that was not recorded occupied the stream. On an
idle stream, kernels and CUDA graphs start within some ten µs."""

MIN_FULL_QUEUE = 900
"""Outstanding launches from which on the GPU's launch queue (about 1,000 deep) was full at times."""

MAX_WAIT_OVERLAP: Ns = 5 * NS_PER_US
"""A stream wait whose source ends this much after its target started was paired wrongly."""

MIN_ABSENT_RATIO = 1.5
"""A collective that takes this many times as long as those alike, once all members that are here have come, waited for one
that the run lacks."""

MIN_CONTENDED_SHARE = 0.8
"""Share of a late start that other streams' kernels must cover for contention to be its reason."""


@dataclass(frozen=True)
class Rules:
    """Which rules of graph building are applied: all, except to measure what a rule is worth by leaving it out."""

    rendezvous: bool = True
    """Whether collectives start when the last rank has come; if not, each call takes as long as it was recorded to."""
    syncs_by_time: bool = True
    """Whether waits of the CPU get a cause found by time; if not, they stay where they were recorded, as residual."""
    stream_waits: bool = True
    """Whether streams wait for one another, by events or by time."""
    likely_waits: bool = True
    """Whether a wait of which only the call was recorded is paired with what it is likely to be for."""
    launch_latency: bool = True
    """Whether a kernel waits for its launch no longer than launches take; if not, for as long as it was recorded to."""
    launch_queue: bool = True
    """Whether launches wait for room in the queue of their stream."""


ALL_RULES = Rules()
