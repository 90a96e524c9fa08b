"""Train a small network with logical workers on any number of processes: the elastic version of `ddp.py`.

torchrun --nproc-per-node 2 examples/elastic.py --workers 4
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from esprof.elastic import Data, ElasticTrainer

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
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--telemetry", help="the Run directory to write")
    options = parser.parse_args()
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = Data(Stripes(), batch_size=16)
    trainer = ElasticTrainer(model, optimizer, loss_of, data, n_est=options.workers, telemetry=options.telemetry)
    for result in trainer.fit(options.epochs):
        if dist.get_rank() == 0 and trainer.next_step % trainer.order.steps_per_epoch == 0:
            print(f"epoch {result.epoch}: loss of worker 0 is {result.losses[0]:.4f}")
    dist.destroy_process_group()
    time.sleep(0.5)  # PyTorch 2.13 may abort a process that ends right after its last collective on gloo.


if __name__ == "__main__":
    main()
