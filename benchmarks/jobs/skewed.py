"""Handwritten digits, some of them dealt to the ranks by label: trained together by DDP, then apart for some steps.

The data are the 1,797 digits of scikit-learn. Rank 0 prints one JSON line. For each number of steps apart it has the
accuracy losses that `esprof.ModelTravel` finds, the mean time of a step with its share of an average, and the accuracy on
digits that no rank trains on.
"""

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from statistics import mean

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.parallel import DistributedDataParallel

import esprof
from benchmarks.jobs.loop import worker

BATCH, FIXED, TESTED = 32, 128, 297
"""Samples of a batch, of the fixed batch of `esprof.ModelTravel`, and of the test."""


class Digits:
    """The digits of this rank: images (samples, 1, 8, 8), and their labels."""

    def __init__(self, share: float, rank: int, ranks: int) -> None:
        """`share` of the digits are dealt by label, the others one after the other."""
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
        labels = torch.tensor(digits.target)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        self.test = images[order[:TESTED]], labels[order[:TESTED]]
        order = order[TESTED:]
        by_label, others = order.split([round(share * len(order)), len(order) - round(share * len(order))])
        mine = torch.cat([by_label[labels[by_label] % ranks == rank], others[rank::ranks]])
        self.images, self.labels = images[mine], labels[mine]
        self.random = torch.Generator().manual_seed(rank)

    @property
    def fixed(self) -> tuple[Tensor, Tensor]:
        chosen = torch.arange(FIXED) % len(self.labels)
        return self.images[chosen], self.labels[chosen]

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            chosen = torch.randint(len(self.labels), (BATCH,), generator=self.random)
            yield self.images[chosen], self.labels[chosen]


def network(norm: str, width: int) -> nn.Module:
    norms = {"batch": nn.BatchNorm2d, "group": lambda channels: nn.GroupNorm(4, channels)}
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), norms[norm](16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), norms[norm](32), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, width), nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return (model(images).argmax(dim=1) == labels).float().mean()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    esprof.labels(labels)
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


def train(options: argparse.Namespace) -> dict[str, object]:
    digits = Digits(options.share, dist.get_rank(), dist.get_world_size())
    model = network(options.norm, options.width)
    together = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    travel = esprof.ModelTravel(digits.fixed, accuracy)
    batches = digits.batches()
    for images, labels in itertools.islice(batches, options.together):
        step(together, optimizer, images, labels)
    found: dict[str, object] = {}
    for every in options.apart:
        losses, took_s = [], 0.0
        for _ in range(options.averages):
            began = time.perf_counter()
            for images, labels in itertools.islice(batches, every):
                step(model, optimizer, images, labels)
            took_s += time.perf_counter() - began
            losses.append(travel.compare(model, every=every))
            began = time.perf_counter()
            average_parameters(iter(model.parameters()), dist.group.WORLD)
            took_s += time.perf_counter() - began
        model.eval()
        tested = float(accuracy(model, *digits.test))
        model.train()
        step_ms = 1e3 * took_s / (every * options.averages)
        found[str(every)] = {"losses": losses, "step_ms": step_ms, "tested": tested, "mean_loss": mean(losses)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.0, help="share of the digits that are dealt by label")
    parser.add_argument("--norm", choices=("batch", "group"), default="group")
    parser.add_argument("--width", type=int, default=64, help="width of the hidden layer")
    parser.add_argument("--together", type=int, default=40, help="steps of DDP before the ranks train apart")
    parser.add_argument("--apart", type=int, nargs="*", default=[4, 32], help="numbers of steps before an average")
    parser.add_argument("--averages", type=int, default=5, help="averages for each of these numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with worker(0):
        found = train(options)
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
