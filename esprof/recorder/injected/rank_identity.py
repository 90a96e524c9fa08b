"""Identity that a process logs when it becomes a rank."""

import os
from collections.abc import Iterator
from contextlib import suppress

import torch

from ..shared import identity
from ..shared.torch_features import lacking
from .steps import control_groups


def rank_identity(rank: int, world_size: int, process_name: str) -> dict[str, object]:
    """Fields of the first row in the notes of a rank."""
    device, accelerators = identity.device()
    return {
        "rank": rank,
        "world_size": world_size,
        "host": process_name.rsplit(".", 2)[0],
        "pid": os.getpid(),
        "device": device,
        "accelerators": accelerators,
        "cpus": usable_cpus(),
        "gpu_cpus": gpu_cpus(),
        "cpu_quota": cpu_quota(),
        "threads": torch.get_num_threads(),
        "versions": identity.versions(),
        "lacks": lacking(),
    }


def usable_cpus() -> list[int]:
    """Numbers of the CPUs that this process may run on, ascending; empty if unknown."""
    with suppress(OSError):
        return sorted(os.sched_getaffinity(0))
    return []


def gpu_cpus() -> list[int]:
    """Numbers of the host's CPUs near the GPU of this process, ascending; empty if unknown."""
    if not torch.cuda.is_initialized():
        return []
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    with suppress(AttributeError, OSError, ValueError):  # Older versions of torch know no address.
        address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"  # type: ignore[attr-defined]
        with open(f"/sys/bus/pci/devices/{address}/local_cpulist") as file:
            return numbers_in(file.read())
    return []


def numbers_in(ranges: str) -> list[int]:
    """The numbers in a list of the kernel, such as `0-3,8`. Raises ValueError if it is none."""
    found: list[int] = []
    for part in ranges.strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def cpu_quota() -> float | None:
    """Average number of CPUs that the control groups of this process allow it to use; None without a quota."""
    with suppress(OSError, ValueError):
        return min(_quotas(control_groups.files("cpu", "cpu.max", "cpu.cfs_quota_us")), default=None)
    return None


def _quotas(files: Iterator[str]) -> Iterator[float]:
    """Yield the quotas in these files of control groups, in CPUs. A file holds time and period in cgroup v2 (`cpu.max`),
    only the time in v1, which has the period in a second file."""
    for path in files:
        with suppress(OSError, ValueError), open(path) as file:
            words = file.read().split()
            if len(words) == 1:
                with open(os.path.join(os.path.dirname(path), "cpu.cfs_period_us")) as period_file:
                    words += period_file.read().split()
            allowed, period = (int(word) for word in words)  # Without a quota the time is `max`, or -1 in v1.
            if allowed > 0 < period:
                yield allowed / period
