"""Where the training thread is: written by it, read by the background writer."""

from collections import deque

_MAX_RECENT_STEPS = 1000


class StepState:
    """The running step of a rank. Each field is replaced at once, so that another thread never sees half of it."""

    __slots__ = (
        "native_thread",
        "pauses",
        "rank",
        "recent",
        "sampled_closely",
        "start_ns",
        "step",
        "thread",
        "world_size",
    )

    def __init__(self) -> None:
        self.rank = 0
        self.world_size = 1
        self.step = 0
        """The running step; 0 where none has ended yet."""
        self.pauses = False
        """Whether the running step has not begun yet: the job waits for work."""
        self.start_ns = 0
        """When the running step began, in ns since the Unix epoch."""
        self.thread = 0
        """Identifier of the training thread."""
        self.native_thread = 0
        """The kernel's number of the training thread."""
        self.sampled_closely = False
        """Whether a window with stacks is open."""
        self.recent: deque[int] = deque(maxlen=_MAX_RECENT_STEPS)
        """Durations of the latest steps without profiler, in ns."""
