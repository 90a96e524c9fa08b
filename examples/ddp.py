"""Train a small network with DistributedDataParallel. `elastic.py` is the elastic version of this job.

torchrun --nproc-per-node 4 examples/ddp.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

KINDS = 4


class Stripes(Dataset[tuple[Tensor, int]]):
    """Noisy pictures of stripes, as wide as their kind says."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        kind = index % KINDS
        noise = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(index))
        return noise + (torch.arange(16) // (kind + 1) % 2), kind


def network() -> nn.Module:
    features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
    return nn.Sequential(features, nn.Flatten(), nn.Linear(128, KINDS))


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    pictures, kinds = batch
    return nn.functional.cross_entropy(model(pictures), kinds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = Stripes()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss of worker 0 is {loss.item():.4f}")
    dist.destroy_process_group()
    time.sleep(0.5)  # PyTorch 2.13 may abort a process that ends right after its last collective on gloo.


if __name__ == "__main__":
    main()
