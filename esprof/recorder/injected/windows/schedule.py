"""Phase of the recording in each step. Ranks with the same orders compute the same phases."""

from ....run.raw.settings import Settings

_MAX_ORDERS_STORED = 8


class WindowSchedule:
    """The planned windows and the ordered windows.

    A window is identified by its base, the first step of its warm-up. It consists of `warmup` steps, the timed steps, a step
    in which their trace is written, the steps with stacks, and a step in which their trace is written.
    """

    def __init__(self, settings: Settings) -> None:
        self._plan = settings
        self._ordered: tuple[int, ...] = ()

    def order(self, at: int) -> bool:
        """Add a window with base `at`. False if it would overlap another one. Any thread may call this."""
        overlapping = range(at - self._plan.span + 1, at + self._plan.span)
        if any(base in overlapping for base in self._ordered) or any(self._is_planned(step) for step in overlapping):
            return False
        self._ordered = (*self._ordered[-_MAX_ORDERS_STORED:], at)
        return True

    def forget(self) -> None:
        """Drop the ordered windows when the count of steps restarts."""
        self._ordered = ()

    def base(self, step: int) -> int | None:
        """The base of the window that `step` belongs to, if any."""
        for base in self._ordered:
            if base <= step < base + self._plan.span:
                return base
        plan = self._plan
        if not plan.by_steps or step < plan.skip:
            return None
        base = plan.skip + ((step - plan.skip) // plan.every * plan.every if plan.every else 0)
        return base if step < base + plan.span else None

    def phase(self, step: int) -> str:
        """What the recorder does during `step`: `plain`, `warmup`, `timed`, `export` or `stack`."""
        base = self.base(step)
        if base is None:
            return "plain"
        at, timed_end = step - base, self._plan.warmup + self._plan.steps
        if at < self._plan.warmup:
            return "warmup"
        if at < timed_end:
            return "timed"
        if at == timed_end or at == self._plan.span - 1:
            return "export"
        return "stack"

    def _is_planned(self, base: int) -> bool:
        plan = self._plan
        if not plan.by_steps or base < plan.skip:
            return False
        return (base - plan.skip) % plan.every == 0 if plan.every else base == plan.skip
