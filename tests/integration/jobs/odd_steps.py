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


class Counted(Broken):
    """Counts how often dynamo compiles in each call of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.compiled: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = torch._dynamo.utils.counters["frames"]["total"]
        out: torch.Tensor = self.model(x)
        self.compiled.append(torch._dynamo.utils.counters["frames"]["total"] - before)
        return out


def compiled(count: int) -> None:
    """Print the losses, and how often dynamo compiled: in each call of the model, and in all."""
    model, optimizer = model_and_optimizer()
    counted = Counted(torch.compile(nn.Sequential(Broken(model)), backend="eager"))

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    for loss in losses(counted, count):
        step()
        print(loss.item().hex())
    print(counted.compiled, torch._dynamo.utils.counters["frames"]["total"])


if __name__ == "__main__":
    {"alternating": alternating, "compiled": compiled}[sys.argv[1]](20)
