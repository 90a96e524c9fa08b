"""Settings of a recording: the launcher writes them, every process of the job reads them."""

import json
import os
from dataclasses import asdict, dataclass

from .names import SETTINGS
from .new_files import write_new

_START_HANG_FACTOR = 12
"""How many times longer than `hang_s` a rank may hang before the end of its first step."""


@dataclass(frozen=True)
class Settings:
    """Windows and limits of one recording. Steps are counted from 0.

    A step ends when the optimizer has stepped. The start of step 0 is unknown, so `skip` is at least 1.
    """

    windows: bool = True
    """Whether windows are scheduled; otherwise they are recorded on request only."""
    skip: int = 5
    """Steps before the warm-up of the first window."""
    warmup: int = 2
    """Warm-up steps of the profiler, whose events are discarded."""
    steps: int = 8
    """Timed steps of a window."""
    stack_steps: int = 2
    """Further steps, recorded with Python stacks and excluded from all timing. They record shapes, too, if `shapes`."""
    every: int = 0
    """Steps from one window to the next; 0 for a single window."""
    skip_s: float = 0
    """Seconds before the first window, instead of `skip`."""
    every_s: float = 0
    """Seconds from one window to the next, instead of `every`."""
    shapes: bool = False
    """Whether the shapes of operands are recorded, which doubles the profiler's cost on a CPU (`shapes_in`)."""
    memory: bool = False
    """Whether the allocations of timed steps are recorded, and the sizes of the model's parameters and states."""
    sample_keys: bool = False
    """Whether the key of each sample that a DataLoader reads is noted."""
    flight_steps: int = 0
    """Number of latest steps to retain; 0 for as many as fit into `max_log`."""
    hang_s: float = 5
    """Seconds after which a step may count as hung; 0 for never."""
    probe_s: float = 0
    """Seconds to measure devices, links, codecs and storage after the first window; 0 to measure nothing."""
    ends_early: bool = False
    """Whether to end the job after the first window and the measurements."""
    probed: tuple[str, ...] = ()
    """Names of the measurement stages to skip."""
    knobs: tuple[tuple[str, str | None], ...] = ()
    """Name and value of each knob to set in the job; None as value only reads it (`esprof.recorder.knobs`)."""
    quiet: bool = False
    """Whether the ranks do not tell on stderr what they measure."""
    max_log: int = 64 << 20
    """Size limit of a process's notes on disk, bytes; the oldest are dropped."""
    max_trace: int = 2 << 30
    """Size limit of a rank's traces on disk, bytes; the oldest windows are dropped."""
    max_memory: int = 4 << 30
    """Memory that a window may take, bytes; a larger window is closed early."""

    def __post_init__(self) -> None:
        if self.skip < 1 or self.warmup < 0 or self.steps < 1 or self.stack_steps < 0:
            raise ValueError(f"skip and steps must be at least 1, warmup and stack_steps at least 0: {self}")
        if self.every and self.every < self.span:
            raise ValueError(f"every must be at least {self.span}: the steps of a window and its warm-up")

    @property
    def first_timed(self) -> int:
        """The first timed step of the first window, if windows are scheduled by step."""
        return self.skip + self.warmup

    @property
    def span(self) -> int:
        """Steps of a window, from its warm-up to the step in which its last trace is written."""
        stacks = self.stack_steps + 1 if self.stack_steps else 0
        return self.warmup + self.steps + 1 + stacks

    @property
    def shapes_in(self) -> str | None:
        """Phase of the steps that record shapes: `stack` or, without such steps, `timed`; None if no step does."""
        if not self.shapes:
            return None
        return "stack" if self.stack_steps else "timed"

    @property
    def probe_at(self) -> int:
        """The first step after the first window: before it the ranks measure, or the job is ended."""
        return self.skip + self.span

    @property
    def start_s(self) -> float:
        """Seconds without progress after which a rank in its first step counts as hung; 0 for never."""
        return _START_HANG_FACTOR * self.hang_s

    @property
    def by_steps(self) -> bool:
        """Whether windows are scheduled by step number only."""
        return self.windows and not (self.skip_s or self.every_s)

    def first_stack(self, first_timed: int) -> int:
        """The first step with stacks of a window with this first timed step; a trace is written in between."""
        return first_timed + self.steps + 1

    def write(self, raw: str) -> None:
        write_new(os.path.join(raw, SETTINGS), json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, raw: str) -> "Settings":
        path = os.path.join(raw, SETTINGS)
        if not os.path.isfile(path):  # Opening a pipe would block.
            raise FileNotFoundError(path)
        with open(path) as file:
            values = json.load(file)
        knobs = tuple((name, value) for name, value in values["knobs"])
        return cls(**values | {"probed": tuple(values["probed"]), "knobs": knobs})
