"""Train the last layer of a network, while a moving average of it teaches, both with gradients that nothing uses; with the
argument `frozen` without these gradients."""

import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main() -> None:
    torch.set_num_threads(1)
    is_frozen = sys.argv[1:] == ["frozen"]
    student = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    student[0].requires_grad_(not is_frozen)
    teacher = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.Adam(student[2].parameters())
    for _ in range(14):
        batch = torch.randn(64, 64)
        optimizer.zero_grad()
        with torch.set_grad_enabled(not is_frozen):
            taught = teacher(batch)
        (student(batch) - taught).square().mean().backward()
        optimizer.step()
        teacher.update_parameters(student)


if __name__ == "__main__":
    main()
