"""Trains a convolutional network in one process, on pictures in memory, and keeps records of what it does.

python single.py --files /tmp/single
"""

import gc
import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.diagnosis.jobs.common import read_arguments

CLASSES = 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.third = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.head = nn.Linear(64, CLASSES)

    def forward(self, pictures):
        return self.head(self.third(self.second(self.first(pictures))).mean((2, 3)))


# FAULT python_hook
class Histogram:
    def __init__(self, share):
        self.share = share
        self.counts = {}

    def __call__(self, module, inputs, output):
        flat = output.detach().flatten()
        for value in flat[: int(self.share * 100_000)].tolist():
            key = int(value * 10)
            self.counts[key] = self.counts.get(key, 0) + 1


# END FAULT


def main():
    options = read_arguments(steps=48, needs_files=True)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    options.files.mkdir(parents=True, exist_ok=True)
    samples = TensorDataset(torch.randn(2048, 3, 32, 32), torch.randint(CLASSES, (2048,)))
    loader = DataLoader(samples, batch_size=24, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # FAULT python_hook
    if options.fault == "python_hook":
        model.second.register_forward_hook(Histogram(options.strength))
    # END FAULT
    # FAULT backward_hook
    if options.fault == "backward_hook":

        def wait_for_debugger(module, inputs, outputs):
            time.sleep(options.strength / 1000)

        model.second.register_full_backward_hook(wait_for_debugger)
    # END FAULT
    records = []
    # FAULT gc_collect
    if options.fault == "gc_collect":
        records = [{"sample": index, "seen": []} for index in range(round(options.strength * 100_000))]
    # END FAULT
    log = (options.files / "log.txt").open("a")
    for step, (pictures, labels) in enumerate(loader, start=1):
        seen = [{"label": label, "step": [step]} for label in labels.tolist() * 100]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        log.write(f"{step} {loss.item():.4f} {len(seen)} {len(records)}\n")
        # FAULT fsync_log
        if options.fault == "fsync_log":
            for name, value in list(model.named_parameters()) * round(options.strength):
                log.write(f"{step} {name} {value.norm().item():.4f}\n")
                log.flush()
                os.fsync(log.fileno())
        # END FAULT
        # FAULT gc_history
        if options.fault == "gc_history":
            records += [{"label": label, "step": [step]} for label in labels.tolist() * round(options.strength)]
        # END FAULT
        # FAULT gc_collect
        if options.fault == "gc_collect":
            gc.collect()
        # END FAULT
        if step == options.steps:
            break
    print(f"{step} steps, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
