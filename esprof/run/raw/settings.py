"""What is recorded, and within which bounds: written by the launcher, read by every process of the job."""

import json
import os
from dataclasses import asdict, dataclass

from .names import SETTINGS
from .new_files import write_new

_START_HANG_FACTOR = 12
"""How many times longer than in a step a rank may stand still before its first step is over."""


@dataclass(frozen=True)
class Settings:
    """The plan of one recording. Steps of the job are counted from 0.

    A step ends when the job's optimizer has stepped, so step 0 has no beginning to be seen: `skip` is at least 1.
    """

    windows: bool = True
    """Whether windows are planned at all; if not, they are taken on demand only."""
    skip: int = 5
    """Steps before the first window is prepared."""
    warmup: int = 2
    """Steps in which the profiler warms up; what it sees then is thrown away."""
    steps: int = 8
    """Timed steps of a window."""
    stack_steps: int = 2
    """Steps recorded once more, with Python stacks; left out of all timing."""
    every: int = 0
    """Steps from window to window; 0 takes one window only."""
    skip_s: float = 0
    """Seconds before the first window, instead of `skip`."""
    every_s: float = 0
    """Seconds from window to window, instead of `every`."""
    shapes: bool = False
    """Whether the shapes of operands are recorded: on a CPU they make half of the profiler's cost."""
    flight_steps: int = 0
    """Steps whose notes are kept; 0 keeps as many as fit into `max_log`."""
    hang_s: float = 5
    """Seconds after which a step may count as hung; 0 for never."""
    probe_s: float = 0
    """Seconds for measuring what devices, links, codecs and storage can do, once the first window is closed; 0 for not."""
    ends_early: bool = False
    """Whether the job is ended behind the first window, and what is measured there."""
    probed: tuple[str, ...] = ()
    """What need not be measured again, by the names of its stages."""
    knobs: tuple[tuple[str, str | None], ...] = ()
    """Name and value of what is set in the job, None for what is only read back (`esprof.recorder.knobs`)."""
    max_log: int = 64 << 20
    """Bytes of notes that a process keeps on disk: the newest."""
    max_trace: int = 2 << 30
    """Bytes of unread traces that a rank keeps on disk: the newest windows."""
    max_memory: int = 4 << 30
    """Bytes by which a window may make a process grow before it is closed early."""

    def __post_init__(self) -> None:
        if self.skip < 1 or self.warmup < 0 or self.steps < 1 or self.stack_steps < 0:
            raise ValueError(f"skip and steps must be at least 1, warmup and stack_steps at least 0: {self}")
        if self.every and self.every < self.span:
            raise ValueError(f"a window takes {self.span} steps with its warm-up: every must not be less")

    @property
    def first_timed(self) -> int:
        """The first timed step of the first window, if it is planned by steps."""
        return self.skip + self.warmup

    @property
    def span(self) -> int:
        """Steps from the warm-up of a window to the one in which the last of its traces is written."""
        stacks = self.stack_steps + 1 if self.stack_steps else 0
        return self.warmup + self.steps + 1 + stacks

    @property
    def probe_at(self) -> int:
        """The step before which is measured, or the job is ended, on all ranks: the first behind the first window."""
        return self.skip + self.span

    @property
    def start_s(self) -> float:
        """Seconds without any progress after which a rank that has ended no step yet counts as hung; 0 for never."""
        return _START_HANG_FACTOR * self.hang_s

    @property
    def by_steps(self) -> bool:
        """Whether windows are planned by the number of the step alone."""
        return self.windows and not (self.skip_s or self.every_s)

    def write(self, raw: str) -> None:
        write_new(os.path.join(raw, SETTINGS), json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, raw: str) -> "Settings":
        with open(os.path.join(raw, SETTINGS)) as file:
            values = json.load(file)
        knobs = tuple((name, value) for name, value in values["knobs"])
        return cls(**values | {"probed": tuple(values["probed"]), "knobs": knobs})
