"""Host staging: how fast copies between host and device are, by size, from pinned memory and from pageable."""

import torch

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.timing import copy_gb_s, seconds

GB = 1e9
KB, MB = 1 << 10, 1 << 20


def measure(kit: Kit) -> None:
    sizes = kit.pick(cuda=(4 * KB, 64 * KB, MB, 16 * MB, 256 * MB), cpu=(4 * KB, MB))
    # Memory can be pinned for a GPU alone.
    for memory in kit.pick(cuda=("pinned", "pageable"), cpu=("pageable",)):
        for size in sizes:
            host = torch.empty(size, dtype=torch.uint8, pin_memory=memory == "pinned")
            there = torch.empty(size, dtype=torch.uint8, device=kit.device)
            for way, (target, source) in {"to the device": (there, host), "to the host": (host, there)}.items():
                times = seconds(kit, lambda: target.copy_(source, non_blocking=True))  # noqa: B023  It is called here.
                rates = [size / GB / took for took in times]
                kit.show("staging", rates, "GB/s", way=way, memory=memory, mb=size / MB)
    for size in sizes:
        kit.show("device_copy", copy_gb_s(kit, size), "GB/s read, and as much written", mb=size / MB)
