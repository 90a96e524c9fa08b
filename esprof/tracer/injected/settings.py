"""Which steps are recorded, and how: written by the launcher, read by every process of the job."""

import json
import os
from dataclasses import asdict, dataclass

_FILE = "settings.json"


@dataclass(frozen=True)
class Settings:
    """The plan of one recording, in steps of the job, which are counted from 0.

    A step ends when the job's optimizer has stepped, so step 0 has no beginning to be seen: `skip` is at least 1.
    """

    skip: int = 5
    """Steps before anything is switched on."""
    warmup: int = 2
    """Steps in which the profiler warms up; what it sees then is thrown away."""
    steps: int = 8
    """Timed steps."""
    stack_steps: int = 2
    """Steps recorded once more, with Python stacks; left out of all timing."""

    def __post_init__(self) -> None:
        if self.skip < 1 or self.warmup < 0 or self.steps < 1 or self.stack_steps < 0:
            raise ValueError(f"skip and steps must be at least 1, warmup and stack_steps at least 0: {self}")

    @property
    def first_timed(self) -> int:
        return self.skip + self.warmup

    @property
    def after_timed(self) -> int:
        """The step in which the timed window is written to disk."""
        return self.first_timed + self.steps

    @property
    def first_stack(self) -> int:
        return self.after_timed + 1

    @property
    def after_stack(self) -> int:
        """The step in which the window with stacks is written to disk, if there is one."""
        return self.first_stack + self.stack_steps

    def is_over(self, step: int) -> bool:
        """Whether every window is written by `step`."""
        return step >= (self.after_stack if self.stack_steps else self.after_timed)

    def phase(self, step: int) -> str:
        """What the recorder does during `step`: `plain`, `warmup`, `timed`, `export` or `stack`."""
        if self.skip <= step < self.first_timed:
            return "warmup"
        if self.first_timed <= step < self.after_timed:
            return "timed"
        if self.first_stack <= step < self.after_stack:
            return "stack"
        if step == self.after_timed or (step == self.after_stack and self.stack_steps):
            return "export"
        return "plain"

    def write(self, raw: str) -> None:
        with open(os.path.join(raw, _FILE), "w") as file:
            json.dump(asdict(self), file)

    @classmethod
    def read(cls, raw: str) -> "Settings":
        with open(os.path.join(raw, _FILE)) as file:
            return cls(**json.load(file))
