"""Train three layers under torch.profiler, two of which are checkpointed: `checkpointed.py TRACE reentrant|other|none`."""

import sys

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint


class Layers(torch.nn.Module):
    """Layers of equal cost."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.LayerNorm(512), torch.nn.GELU()) for _ in range(3)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if self.how != "none" and number:
                hidden = checkpoint(layer, hidden, use_reentrant=self.how == "reentrant")
            else:
                hidden = layer(hidden)
        return hidden.square().mean()


def main(trace: str, how: str) -> None:
    torch.manual_seed(0)
    model = Layers(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=2, warmup=1, active=6, repeat=1),
        on_trace_ready=lambda made: made.export_chrome_trace(trace),
    ) as profiler:
        for _ in range(9):
            model(torch.randn(256, 512)).backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
