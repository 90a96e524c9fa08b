"""Jobs that run torch.profiler themselves, for four steps, before, in the middle of, and after a window of the recorder."""

from collections.abc import Iterator

import torch
from pattern_parts import mlp, parallel, plain_steps
from torch.profiler import profile, schedule


def profiled_before(steps: int) -> Iterator[float]:
    yield from _profiled(steps, first=0)


def profiled_within(steps: int) -> Iterator[float]:
    yield from _profiled(steps, first=5)


def profiled_after(steps: int) -> Iterator[float]:
    yield from _profiled(steps, first=10)


def _profiled(steps: int, first: int) -> Iterator[float]:
    model = parallel(mlp())
    optimizer = torch.optim.AdamW(model.parameters())
    # It counts half steps, and goes on to do so when it has done: its marks are not those of the job's steps.
    with profile(schedule=schedule(wait=2 * first, warmup=2, active=6, repeat=1)) as profiler:
        for loss in plain_steps(model, optimizer, steps):
            profiler.step()
            profiler.step()
            yield loss
    seen = {event.key: event.count for event in profiler.key_averages()}
    yield float(seen["aten::addmm"])
