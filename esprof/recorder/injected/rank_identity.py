"""What a process says of itself when it claims to be a rank."""

import os
from collections.abc import Iterator
from contextlib import suppress

import torch

from ..shared import identity
from ..shared.torch_features import lacking
from .steps import control_groups


def rank_identity(rank: int, world_size: int, process_name: str) -> dict[str, object]:
    """The fields of the row that begins the notes of a rank."""
    device, accelerators = identity.device()
    return {
        "rank": rank,
        "world_size": world_size,
        "host": process_name.rsplit(".", 2)[0],
        "pid": os.getpid(),
        "device": device,
        "accelerators": accelerators,
        "cpus": usable_cpus(),
        "cpu_quota": cpu_quota(),
        "threads": torch.get_num_threads(),
        "versions": identity.versions(),
        "lacks": lacking(),
    }


def usable_cpus() -> list[int]:
    """Numbers of the CPUs that this process may run on, ascending; none where the system does not tell."""
    with suppress(OSError):
        return sorted(os.sched_getaffinity(0))
    return []


def cpu_quota() -> float | None:
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
