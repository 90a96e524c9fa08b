"""Steps of less common kinds: of two optimizers in turn, and compiled ones."""

import sys

import torch
from steps import losses, model_and_optimizer
from torch import nn


def alternating(count: int) -> None:
    model, first = model_and_optimizer()
    second = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in losses(model, count):
        first.step()
        second.step()
        second.step()


class Broken(nn.Module):
    """A model that cannot be compiled as a whole."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        out: torch.Tensor = self.model(x)
        return out


def compiled(count: int) -> None:
    """Print the losses, and how often dynamo was asked to compile."""
    model, optimizer = model_and_optimizer()
    whole = torch.compile(nn.Sequential(Broken(model)), backend="eager")

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    for loss in losses(whole, count):
        step()
        print(loss.item().hex())
    print(torch._dynamo.utils.counters["frames"]["total"])


if __name__ == "__main__":
    {"alternating": alternating, "compiled": compiled}[sys.argv[1]](20)
