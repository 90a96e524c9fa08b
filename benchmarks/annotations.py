"""What the recorder's marks cost a call, in µs. One JSON line a figure.

    python -m benchmarks.annotations [--repeats 9]

A message over gloo is called bare, with the recorder outside of a window, and in one; a module in a window with its mark and
without it. The calls do nothing themselves. Each figure is what a call takes more than the bare one: the median of the
repeats, which are interleaved, with the least and the most.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.figures import show
from esprof.recorder.injected.log.circuit_breaker import CircuitBreaker
from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.steps.messages import annotated, sent
from esprof.recorder.injected.windows.module_events import ModuleEvents

CALLS = 3_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        for _ in range(repeats):
            for name, took in (*of_messages(), *of_modules()):
                found.setdefault(name, []).append(took)
        dist.destroy_process_group()
    for name, each in found.items():
        details = {"repeats": repeats, "least": min(each), "most": max(each), "torch": torch.__version__}
        show(name, median(each), "us", details | {"cpus": os.cpu_count()})


def of_messages() -> Iterator[tuple[str, float]]:
    """What a call of `isend` takes more, without a profiler and with one."""
    tensor = torch.zeros(1)

    def bare(tensor: object, dst: int) -> None: ...

    marked = annotated(bare, sent, CircuitBreaker("messages", Log()))
    before = _us(lambda: bare(tensor, 0))
    yield "message_outside_window_us", _us(lambda: marked(tensor, 0)) - before
    with _profiler():
        yield "message_in_window_us", _us(lambda: marked(tensor, 0)) - before


def of_modules() -> Iterator[tuple[str, float]]:
    """What a call of a module takes more in a window."""
    module, value, events = nn.Identity(), torch.zeros(1), ModuleEvents(Log())
    with _profiler():
        before = _us(lambda: module(value))
        events.start()
        took = _us(lambda: module(value))
        events.stop()
    yield "module_in_window_us", took - before


@contextmanager
def _profiler() -> Iterator[None]:
    profiler = profile(activities=[ProfilerActivity.CPU])
    profiler.prepare_trace()
    profiler.start_trace()
    yield
    profiler.stop_trace()


def _us(call: Callable[[], object]) -> float:
    """Time of a call, µs."""
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began) / CALLS * 1e6


if __name__ == "__main__":
    main()
