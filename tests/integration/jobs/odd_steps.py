"""Optimizers used in less common ways: two of them in turn, and one inside a compiled function."""

import sys

import torch
from steps import losses, model_and_optimizer


def alternating(count: int) -> None:
    model, first = model_and_optimizer()
    second = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in losses(model, count):
        first.step()
        second.step()
        second.step()


def compiled(count: int) -> None:
    model, optimizer = model_and_optimizer()

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    for loss in losses(model, count):
        step()
        print(loss.item().hex())


if __name__ == "__main__":
    {"alternating": alternating, "compiled": compiled}[sys.argv[1]](20)
