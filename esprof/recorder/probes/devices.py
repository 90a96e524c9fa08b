"""Measure a rank's device: matrix products, memory, launches, and the threads of its CPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from ..shared import identity, tcp
from .agreement import filled
from .bench import Bench, Once

_DTYPES = ("float32", "bfloat16", "float16")
_SIDES = (128, 256, 512, 1024, 2048, 4096, 8192)
_COPY_SIZES = [1 << power for power in range(16, 27, 2)]
_LAUNCH_COUNTS = (1, 10, 100, 1000)
_ELEMENT_BYTES = 4


def products(bench: Bench) -> None:
    """Measure products of square matrices by data type; their size is in floating-point operations, `2 n³`."""
    for number, name in enumerate(_DTYPES):
        bench.use_share(1 / (len(_DTYPES) - number))
        with torch.no_grad():
            what = bench.mine("matmul", name, "flop")
            sides = [side for side in _SIDES if _ELEMENT_BYTES * side * side <= bench.max_bytes]
            bench.sweep(what, [2 * side**3 for side in sides], partial(_product, bench.device, getattr(torch, name)))


def _product(device: torch.device, dtype: torch.dtype, flop: int) -> Once:
    side = round((flop / 2) ** (1 / 3))
    one, other = (filled(side * side, device, 1 / side, dtype).view(side, side) for _ in range(2))
    out = torch.empty_like(one)
    return lambda: torch.mm(one, other, out=out)


def memory(bench: Bench) -> None:
    """Measure copies and reads of the device's memory, by size in bytes."""

    def copy(size: int) -> Once:
        source = filled(size // _ELEMENT_BYTES, bench.device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)

    def read(size: int) -> Once:
        source = filled(size // _ELEMENT_BYTES, bench.device)
        return lambda: source.sum()

    bench.use_share(0.5)
    bench.sweep(bench.mine("copy", "memory", "bytes"), _COPY_SIZES, copy)
    bench.use_share(1.0)
    bench.sweep(bench.mine("read", "memory", "bytes"), _COPY_SIZES, read)


def launches(bench: Bench) -> None:
    """Measure sequences of tiny operations: on a GPU, the cost of launching a kernel."""
    one = filled(1, bench.device)

    def prepare(calls: int) -> Once:
        def once() -> None:
            for _ in range(calls):
                one.add_(0.0)

        return once

    with torch.no_grad():
        bench.sweep(bench.mine("launch", "operation", "calls"), _LAUNCH_COUNTS, prepare)


def threads(bench: Bench) -> None:
    """Measure one matrix product on 1, 2, 4, … threads, up to the number of the rank's CPUs."""
    side = 512
    one, other = (filled(side * side, torch.device("cpu"), 1 / side).view(side, side) for _ in range(2))
    before = torch.get_num_threads()
    (max_threads,) = bench.agreement.maxima(len(os.sched_getaffinity(0)))

    def prepare(count: int) -> Once:
        torch.set_num_threads(count)
        return lambda: torch.mm(one, other)

    try:
        with torch.no_grad():
            bench.sweep(bench.mine("threads", "float32", "threads"), _powers(max_threads), prepare)
    finally:
        torch.set_num_threads(before)


def condition(bench: Bench) -> None:
    """Write the clocks of the device, why they are throttled, and which other processes use it, as its driver reports, and
    the TCP congestion control of the host."""
    name, _ = identity.device()
    bench.condition(device=name, congestion=tcp.default_control(), **_of_driver(bench.device))


def _of_driver(device: torch.device) -> dict[str, Any]:
    """Fields of `esprof.run.probes.Condition` that a driver reports; `unknown` says why it does not."""
    if device.type != "cuda":
        return {"unknown": "no driver reports it for a CPU"}
    try:
        with _driver() as nvml:
            handle = nvml.nvmlDeviceGetHandleByPciBusId(_bus_id(device))
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            return {
                "clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                "clock_most_mhz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
                "throttled": _throttled(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
                "foreign": [one.pid for one in running if one.pid != os.getpid()],
            }
    except ImportError:
        return {"unknown": "nvidia-ml-py is not installed for the job's Python"}
    except Exception as refusal:  # noqa: BLE001  the class of its errors is defined in pynvml
        return {"unknown": f"the driver does not report it: {refusal}"}


@contextmanager
def _driver() -> Iterator[Any]:
    import pynvml  # type: ignore[import-not-found]  # The job's Python may lack it.

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        with suppress(Exception):
            pynvml.nvmlShutdown()


def _bus_id(device: torch.device) -> bytes:
    found: Any = torch.cuda.get_device_properties(device)
    return f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0".encode()


def _throttled(nvml: Any, mask: int) -> list[str]:
    """Names of the reasons in the bit `mask` for which the clock is throttled."""
    prefix, harmless = (
        "nvmlClocksThrottleReason",
        ("None", "All", "GpuIdle", "ApplicationsClocksSetting", "UserDefinedClocks"),
    )
    found = {name.removeprefix(prefix): getattr(nvml, name) for name in dir(nvml) if name.startswith(prefix)}
    return [name for name, bit in found.items() if name not in harmless and mask & bit]


def _powers(limit: int) -> list[int]:
    """Powers of two below `limit`, and `limit`."""
    return sorted({min(1 << power, limit) for power in range(limit.bit_length() + 1)})
