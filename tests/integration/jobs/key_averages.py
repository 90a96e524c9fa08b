"""A job that profiles two steps of its own, exports the trace, and prints what torch.profiler makes of it.

Arguments: the file for the trace, and for the modules and lines in it.
"""

import json
import sys

import torch
from steps import model_and_optimizer
from torch.profiler import ProfilerActivity, profile, record_function


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with record_function("forward"):
        loss = model(torch.ones(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def profiled(file: str, stacks: bool) -> dict[str, tuple[int, float, float]]:
    """Profile two steps and export them to `file`: (calls, own, total time in µs) of each name."""
    model, optimizer = model_and_optimizer()
    train(model, optimizer)
    with profile(activities=[ProfilerActivity.CPU], with_stack=stacks, record_shapes=True) as profiler:
        for _ in range(2):
            train(model, optimizer)
    profiler.export_chrome_trace(file)
    return {
        event.key: (event.count, event.self_cpu_time_total, event.cpu_time_total) for event in profiler.key_averages()
    }


if __name__ == "__main__":
    table = profiled(sys.argv[1], stacks=False)
    profiled(sys.argv[2], stacks=True)
    print(json.dumps(table))
