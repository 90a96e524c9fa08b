"""Train a small model beside a large state, which is saved every so many steps.

python -m benchmarks.jobs.saves --files FOLDER [--how torch|thread|dcp|async] [--state-mb MB] [--every N] [--steps N]
    [--times FILE]

`--times` gets the seconds of each step as JSON. `--every 0` never saves.
"""

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

Save = Callable[[dict[str, Any], Path], None]


def written(state: dict[str, Any], path: Path) -> None:
    """Save and wait until the file is on disk."""
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


class InThread:
    """Copies the state and writes it in a thread of its own, one at a time."""

    def __init__(self) -> None:
        self._writer: threading.Thread | None = None

    def __call__(self, state: dict[str, Any], path: Path) -> None:
        if self._writer is not None:
            self._writer.join()
        copied = {name: value.clone() for name, value in state.items()}
        self._writer = threading.Thread(target=written, args=(copied, path))
        self._writer.start()


class InBackground:
    """`torch.distributed.checkpoint.async_save`, one at a time."""

    def __init__(self) -> None:
        self._last: Future[Any] | None = None

    def __call__(self, state: dict[str, Any], path: Path) -> None:
        if self._last is not None:
            self._last.result()
        saving = dcp.async_save(state, checkpoint_id=path)
        assert isinstance(saving, Future), "its state is staged when it returns"
        self._last = saving


WAYS: dict[str, Callable[[], Save]] = {
    "torch": lambda: written,
    "thread": InThread,
    "dcp": lambda: lambda state, path: dcp.save(state, checkpoint_id=path),
    "async": InBackground,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, required=True)
    parser.add_argument("--how", choices=WAYS, default="torch")
    parser.add_argument("--state-mb", type=int, default=64)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--times", type=Path)
    options = parser.parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    options.files.mkdir(parents=True, exist_ok=True)
    save, took = WAYS[options.how](), []
    torch.manual_seed(0)
    state = {"large": torch.rand(options.state_mb << 18)}
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.rand(768, 512)
    before = time.perf_counter()
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if options.every and step % options.every == 0:
            save(state, options.files / f"checkpoint-{step // options.every % 2}")
        now = time.perf_counter()
        took.append(now - before)
        before = now
    if options.times:
        options.times.write_text(json.dumps(took))


if __name__ == "__main__":
    main()
