"""Train a picture classifier by DistributedDataParallel. The job of docs/tutorial.md: most of its step is lost to one line.

torchrun --nproc-per-node 2 train.py
"""

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STEPS = 60
CLASSES = 10


class Pictures(Dataset[tuple[Tensor, int]]):
    """Noisy stripes, as wide as their class says, read from storage one by one."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return read_picture(index), index % CLASSES


def read_picture(index: int) -> Tensor:
    time.sleep(0.002)  # What a network file system takes to answer.
    noise = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(index))
    return noise + (torch.arange(32) // (index % CLASSES + 1) % 2)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(8)),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 256),
        nn.ReLU(),
        nn.Linear(256, CLASSES),
    )


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = Pictures()
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data), num_workers=0)
    for step, (pictures, classes) in zip(range(STEPS), loader, strict=False):
        loss = nn.functional.cross_entropy(model(pictures), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()
    time.sleep(0.5)  # PyTorch 2.13 may abort a process that ends right after its last collective on gloo.


if __name__ == "__main__":
    main()
