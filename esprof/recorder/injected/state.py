"""State of the current step: written by the training thread, read by the background writer."""

import threading
from collections import deque

_MAX_RECENT_STEPS = 1000


class StepState:
    """Current step of a rank. Each field is assigned atomically, so other threads never see a partial value."""

    __slots__ = (
        "native_thread",
        "pauses",
        "rank",
        "recent",
        "sampled_closely",
        "start_ns",
        "step",
        "thread",
        "window_opens",
        "world_size",
    )

    def __init__(self) -> None:
        self.rank = 0
        self.world_size = 1
        self.step = 0
        """Number of the current step; 0 until the first one ends."""
        self.pauses = False
        """Whether the current step has not started yet, because the job waits for work."""
        self.start_ns = 0
        """Start of the current step, ns since the Unix epoch."""
        self.thread = 0
        """Identifier of the training thread."""
        self.native_thread = 0
        """The kernel's thread id of the training thread."""
        self.sampled_closely = False
        """Whether a window with stacks is open."""
        self.window_opens = threading.Event()
        """Set when one opens. The sampler, which waits for it, clears it."""
        self.recent: deque[int] = deque(maxlen=_MAX_RECENT_STEPS)
        """Durations of the latest steps without a profiler, ns."""
