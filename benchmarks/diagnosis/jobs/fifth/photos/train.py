"""Classify photos by a small residual network. Plain DDP, a loader with one worker a rank.

torchrun --nproc-per-node 2 train.py --files /tmp/photos
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import CLASSES, Photos, prepare
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH = 16


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outside)
        self.short = nn.Conv2d(inside, outside, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.first_norm(self.first(images)), inplace=True)
        return F.relu(self.second_norm(self.second(out)) + self.short(images), inplace=True)


# FAULT exact_end
class Exact(nn.Module):
    """Layers that compute with twice the digits: without them a loss was once not a number."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers).double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images.double()).float()


# END FAULT


def network(fault: str) -> nn.Sequential:
    # FAULT exact_end
    wrap = Exact if fault == "exact_end" else nn.Sequential
    # END FAULT
    return nn.Sequential(
        nn.Conv2d(3, 24, 5, 2, 2, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(inplace=True),
        Residual(24, 24, 1),
        Residual(24, 48, 2),
        Residual(48, 48, 1),
        wrap(Residual(48, 96, 2)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, CLASSES),
    )


class LayerWatch:
    """Keeps statistics of what each layer puts out, to see dead units early."""

    def __init__(self, model: nn.Module, quantiles: int) -> None:
        self.marks = torch.linspace(0.01, 0.99, quantiles)
        self.seen: dict[str, dict[str, float]] = {}
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Conv2d | nn.BatchNorm2d):
                layer.register_forward_hook(self.hook(name))

    # FAULT layer_watch
    def hook(self, name: str):
        def keep(layer, inputs, output) -> None:
            values = output.detach().flatten()[: 1 << 12]
            row = {"mean": values.mean().item(), "std": values.std().item()}
            row["dead"] = (values == 0).float().mean().item()
            for mark in self.marks:
                row[f"q{mark.item():.2f}"] = values.quantile(mark).item()
            self.seen[name] = row

        return keep

    # END FAULT


def meters_of(logits: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor, how_many: int) -> dict[str, torch.Tensor]:
    """Loss, accuracy, and recall of single classes."""
    best = logits.argmax(1)
    meters = {"loss": loss.detach(), "accuracy": (best == labels).float().mean()}
    for number in range(how_many):
        of_class = labels == number % CLASSES
        meters[f"recall {number}"] = (best[of_class] == labels[of_class]).float().sum() / of_class.sum().clamp(min=1)
    return meters


def main() -> None:
    options = read_arguments(54, needs_files=True)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    if rank == 0:
        prepare(options.files, int(options.strength) if options.fault == "full_decode" else 0)
    dist.barrier()

    at_fault = options.fault != "cold_shelf" or rank == options.rank
    photos = Photos(options.files, options.fault if at_fault else "none", options.strength)
    sampler = DistributedSampler(photos, world, rank, seed=options.seed)
    loader = DataLoader(photos, BATCH, sampler=sampler, num_workers=1, drop_last=True, persistent_workers=True)

    net = network(options.fault)
    watch = LayerWatch(net, int(options.strength)) if options.fault == "layer_watch" else None
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)

    step = 0
    while step < options.steps:
        sampler.set_epoch(step)
        for images, labels in loader:
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            # FAULT meters
            if options.fault == "meters":
                for name, value in meters_of(logits.detach(), labels, loss, int(options.strength)).items():
                    dist.all_reduce(value, op=dist.ReduceOp.SUM)
                    line = f"{name}: {value.item() / world:.4f}"
                    if rank == 0 and step % 20 == 0:
                        print(line)
            # END FAULT
            step += 1
            if step == options.steps:
                break
    if rank == 0:
        print(f"loss {loss.item():.3f}", len(watch.seen) if watch else "")
    leave()


if __name__ == "__main__":
    main()
