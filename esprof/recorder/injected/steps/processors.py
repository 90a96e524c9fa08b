"""The CPUs that this process may use."""

import os
from collections.abc import Iterator
from contextlib import suppress

from . import control_groups


def usable() -> list[int]:
    """Numbers of the CPUs that this process may run on, ascending; none where the system does not tell."""
    with suppress(OSError):
        return sorted(os.sched_getaffinity(0))
    return []


def quota() -> float | None:
    """How many CPUs the control groups around this process let it use at a time, on average; None where they let it use
    all."""
    with suppress(OSError, ValueError):
        return min(_quotas(control_groups.files("cpu", "cpu.max", "cpu.cfs_quota_us")), default=None)
    return None


def _quotas(files: Iterator[str]) -> Iterator[float]:
    """The quotas that stand in these files of control groups, as far as there are any: time and period in v2 (`cpu.max`),
    time alone in v1, with the period in a file beside it."""
    for path in files:
        with suppress(OSError, ValueError), open(path) as file:
            words = file.read().split()
            if len(words) == 1:
                with open(os.path.join(os.path.dirname(path), "cpu.cfs_period_us")) as beside:
                    words += beside.read().split()
            allowed, period = (int(word) for word in words)  # Without a quota the time is `max`, or -1 in v1.
            if allowed > 0 < period:
                yield allowed / period
