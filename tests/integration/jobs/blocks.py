"""Train four blocks: `blocks.py BATCH none|full`; `full` checkpoints each."""

import sys

import torch
from torch.utils.checkpoint import checkpoint


class Residual(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 4 * width),
            torch.nn.GELU(),
            torch.nn.Linear(4 * width, width),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.inner(hidden)


class Tower(torch.nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.blocks = torch.nn.ModuleList(Residual(32) for _ in range(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.how == "full" else block(hidden)
        return hidden.square().mean()


def main(batch: int, how: str) -> None:
    torch.set_num_threads(1)
    model = Tower(how)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(8):
        model(torch.randn(batch, 32)).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
