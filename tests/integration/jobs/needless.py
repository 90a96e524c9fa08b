"""Train a student whose second layer computes in float64, after a teacher that is asked twice, with gradients."""

import torch
from torch import nn


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.exact = nn.Linear(64, 64), nn.Linear(64, 64).double()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.exact(self.first(hidden).relu().double()).float()


def main() -> None:
    torch.set_num_threads(1)
    teacher, student = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), Student()
    optimizer = torch.optim.Adam(student.parameters())
    for _ in range(12):
        batch = torch.randn(64, 64)
        taught = teacher(batch) + teacher(batch)
        (student(batch) - taught).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
