"""Actions in processes of their own: one alone, or several in a process group over gloo."""

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def in_a_process(action: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(action, arguments)


def in_processes(action: Callable[[int], None], world: int, repeats: int) -> None:
    """Run `action(repeats)` on so many processes that have found each other."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        arguments = (action, world, repeats, Path(folder, "store"))
        processes = [context.Process(target=_worker, args=(rank, *arguments)) for rank in range(world)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


def _worker(rank: int, action: Callable[[int], None], world: int, repeats: int, store: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), world), rank=rank, world_size=world)
    action(repeats)
    dist.destroy_process_group()
    time.sleep(0.1)  # PyTorch 2.13 may abort a process that ends right after its last collective on gloo.
