"""What it costs in memory that a window records shapes (`esprof record --shapes`), and what new memory costs here.

    python -m benchmarks.shapes [--steps 20]

Trains a small GPT under torch.profiler, without shapes and with them, each in a process of its own, and prints JSON lines:
by how much the process grows each step, and how long a step takes. Then it touches memory page by page: where a hypervisor
takes back what a machine has not used, pages that it has to bring back take far longer than others.
"""

import argparse
import itertools
import mmap
import multiprocessing
import time
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.figures import show
from benchmarks.jobs.arguments import Arguments
from benchmarks.jobs.gpt import CONTEXT, model

_PAGE = 4096
_PIECE = 64 << 20
_WARM_UP = 5
"""Steps that do not count: the first ones under the profiler grow by what the later ones use again."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--gib", type=int, default=4, help="memory to be touched")
    options = parser.parse_args()
    for shapes in (False, True):
        with multiprocessing.get_context("spawn").Pool(1) as apart:
            grown, took = apart.apply(train, (options.steps, shapes))
        context = {"shapes": shapes, "step_ms": round(took, 1), "steps": options.steps}
        show("profiled_growth_per_step", grown, "MB", context)
    pages = touched(options.gib << 30)
    show("page_touched", median(pages), "us", {"quickest": min(pages), "slowest": max(pages), "gib": options.gib})


def train(steps: int, shapes: bool) -> tuple[float, float]:
    """(by how many MB the process grew each step, median step in ms)."""
    torch.set_num_threads(1)
    arguments = Arguments(
        hidden=256,
        layers=4,
        batch=16,
        steps=steps,
        bucket_mb=25.0,
        workers=0,
        files=Path(),
        samples=0,
        fp16=False,
        sharded=False,
        compress="",
        seed=0,
    )
    gpt = model(arguments)
    optimizer = torch.optim.AdamW(gpt.parameters())
    tokens = torch.randint(0, 50, (arguments.batch, CONTEXT))
    sizes, ends = [], [time.perf_counter()]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=shapes):
        for _ in range(steps):
            optimizer.zero_grad()
            gpt(tokens).square().mean().backward()
            optimizer.step()
            sizes.append(resident())
            ends.append(time.perf_counter())
    took = [1e3 * (end - begin) for begin, end in itertools.pairwise(ends)]
    return (sizes[-1] - sizes[_WARM_UP]) / (steps - 1 - _WARM_UP) / 1e6, median(took[_WARM_UP:])


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def touched(size: int) -> list[float]:
    """What it took to touch a page for the first time, us, of each piece of so much new memory."""
    took = []
    with mmap.mmap(-1, size) as memory:
        for piece in range(0, size, _PIECE):
            began = time.perf_counter()
            for at in range(piece, piece + _PIECE, _PAGE):
                memory[at] = 1
            took.append((time.perf_counter() - began) / (_PIECE // _PAGE) * 1e6)
    return took


if __name__ == "__main__":
    main()
