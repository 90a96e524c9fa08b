"""Train a compiled model with a graph break under torch.profiler. It is compiled again in steps 4 and 6, whose batches have
sizes of their own."""

import sys

import torch
from torch.profiler import ProfilerActivity, profile, schedule

BATCHES = (32, 32, 32, 32, 48, 32, 40, 32)


class Broken(torch.nn.Module):
    """Two layers and a graph break between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(batch))
        torch._dynamo.graph_break()
        return self.second(hidden).sum()


def main(trace: str) -> None:
    model = Broken()
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=6, repeat=1),
        on_trace_ready=lambda made: made.export_chrome_trace(trace),
    ) as profiler:
        for size in BATCHES:
            compiled(torch.randn(size, 64)).backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


if __name__ == "__main__":
    main(sys.argv[1])
