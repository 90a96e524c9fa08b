"""Times of short work on the device."""

import time
from collections.abc import Callable

import torch

from benchmarks.gpu.kit import Kit

REPEATS, WARMUP = 20, 3
GB = 1e9


def seconds(kit: Kit, action: Callable[[], object]) -> list[float]:
    """What each of some repeats took, s: on a GPU by its own events, so that launching counts where it is longer."""
    for _ in range(WARMUP):
        action()
    return [_on_gpu(action) if kit.device == "cuda" else _on_cpu(action) for _ in range(REPEATS)]


def _on_gpu(action: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    action()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def _on_cpu(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def copy_gb_s(kit: Kit, size: int) -> list[float]:
    """How fast so many bytes are copied on the device."""
    source = torch.empty(size, dtype=torch.uint8, device=kit.device)
    target = torch.empty_like(source)
    return [size / GB / took for took in seconds(kit, lambda: target.copy_(source))]
