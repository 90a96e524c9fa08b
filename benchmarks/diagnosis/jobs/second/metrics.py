"""Trains a rater of pairs with Accelerate and gathers its scores for a metric.

torchrun --nproc-per-node 2 metrics.py
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.diagnosis.jobs.common import read_arguments


class Rater(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 320), nn.Tanh(), nn.Linear(320, 320), nn.Tanh(), nn.Linear(320, 1))

    def forward(self, first, second):
        return (self.net(first) - self.net(second)).squeeze(-1)


def main():
    options = read_arguments(steps=48)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(options.seed)
    pairs = TensorDataset(torch.randn(40_000, 128), torch.randn(40_000, 128), torch.rand(40_000).round())
    model = Rater()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(pairs, batch_size=256, shuffle=True))
    history = []
    for step, (first, second, better) in enumerate(loader, start=1):
        scores = model(first, second)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, better)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        # FAULT rank_correlation
        if options.fault == "rank_correlation" and accelerator.process_index == options.rank:
            said = scores.tolist() * round(options.strength)
            history.append(sum(a < b for a in said for b in said) / len(said) ** 2)
        # END FAULT
        if step == options.steps:
            break
    accelerator.print(f"{step} steps, loss {loss.item():.3f}, {len(history)} metrics")
    accelerator.end_training()


if __name__ == "__main__":
    main()
