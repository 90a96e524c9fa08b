"""A small training script that knows nothing of esprof: an MLP, under torchrun or alone."""

import argparse
import io
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    """Deterministic points, so that two runs see the same data; with a file, something of that is read for each, too."""

    def __init__(self, file: str | None) -> None:
        self._file = file

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._file is not None:
            with open(self._file, "rb") as opened:
                opened.read(1024)
        x = torch.linspace(0, 1, 64) * (index % 17)
        return x.sin(), x.cos()[:8]


def fork(model: nn.Module) -> None:
    """Have a forked child work a little, and step an optimizer of its own."""
    child = os.fork()
    if child == 0:
        own = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            own.step()
        print("child", sum(p.sum().item() for p in model.parameters()).hex(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start-method", default=None)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep in each step")
    parser.add_argument("--exit", type=int, default=0, help="exit code")
    parser.add_argument("--hard-exit", action="store_true", help="end by os._exit")
    parser.add_argument("--save-every", type=int, default=0, help="steps between two saves")
    parser.add_argument("--read", help="a file to read with each point")
    parser.add_argument("--fork", action="store_true", help="fork a child every ten steps")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    distributed = "RANK" in os.environ
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0
    model: nn.Module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    if distributed:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(
        Points(options.read),
        batch_size=options.batch,
        num_workers=options.workers,
        multiprocessing_context=options.start_method,
        persistent_workers=options.persistent,
    )
    for _ in range(options.epochs):
        for step, (x, y) in enumerate(loader):
            if step == options.steps:
                break
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            time.sleep(options.pause)
            optimizer.step()
            if rank == 0:
                print(f"step {step} loss {loss.item().hex()}", flush=True)
            if options.save_every and step % options.save_every == 0:
                torch.save(model.state_dict(), io.BytesIO())
            if options.fork and step % 10 == 5:
                fork(model)
    if options.hard_exit:
        os._exit(options.exit)
    if distributed:
        dist.destroy_process_group()
        time.sleep(0.5)  # gloo's threads need Python's lock once more, or PyTorch 2.13 may abort the process
    sys.exit(options.exit)


if __name__ == "__main__":
    main()
