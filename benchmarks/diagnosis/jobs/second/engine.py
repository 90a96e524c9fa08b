"""Forecasts noisy waves with a recurrent network; an engine calls its stages, batches come from a generator. Plain DDP.

torchrun --nproc-per-node 2 engine.py
"""

import json
import multiprocessing
import random
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

HORIZON = 8


class Forecaster(nn.Module):
    def __init__(self, hidden: int = 160) -> None:
        super().__init__()
        self.inner = nn.LSTM(4, hidden, num_layers=1, batch_first=True)
        self.mix = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, HORIZON)
        self.between: Callable[[Tensor], Tensor] | None = None

    def forward(self, waves: Tensor) -> Tensor:
        states, _ = self.inner(waves)
        if self.between is not None:
            states = self.between(states)
        return self.out(torch.relu(self.mix(states)))[:, -1]


# FAULT custom_function
class Checked(torch.autograd.Function):
    """Identity, whose backward looks at each value of the gradient."""

    looks = 1

    @staticmethod
    def forward(context, states):
        return states.clone()

    @staticmethod
    def backward(context, gradient):
        for _ in range(Checked.looks):
            if any(value != value for value in gradient.flatten().tolist()):
                raise ArithmeticError("not a number")
        return gradient


# END FAULT


# FAULT pre_hook
def describe(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    rows = inputs[0].detach()[: module.described].reshape(-1, inputs[0].shape[-1])
    module.last_description = json.dumps({"rows": rows.tolist(), "module": type(module).__name__})


# END FAULT


class Engine:
    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.rank = dist.get_rank()
        self.is_hit = self.rank == options.rank
        self.step = 0
        network = Forecaster()
        self.wire(network)
        self.model = DistributedDataParallel(network)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
        self.chance = random.Random(options.seed * 77 + self.rank)
        self.pause = threading.Event()

    def wire(self, network: Forecaster) -> None:
        # FAULT custom_function
        if self.options.fault == "custom_function" and self.is_hit:
            Checked.looks = round(self.options.strength)
            network.between = Checked.apply
        # END FAULT
        # FAULT pre_hook
        if self.options.fault == "pre_hook":
            network.mix.described = round(self.options.strength)
            network.mix.register_forward_pre_hook(describe)
        # END FAULT

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        rows, length = 24, 40
        # FAULT long_sequences
        if self.options.fault == "long_sequences" and self.is_hit:
            length = round(length * self.options.strength)
        # END FAULT
        while True:
            now = length
            # FAULT buckets_of_length
            if self.options.fault == "buckets_of_length":
                now = round(length * self.chance.choice([1 - self.options.strength, 1, 1 + self.options.strength]))
            # END FAULT
            phase = torch.rand(rows, 1, 4) * 6.28
            times = torch.arange(now + HORIZON).view(1, -1, 1) / 7
            waves = torch.sin(times + phase) + 0.1 * torch.randn(rows, now + HORIZON, 4)
            yield waves[:, :now], waves[:, now:, 0]

    def before_forward(self) -> None:
        # FAULT lock_wait
        if self.options.fault == "lock_wait" and self.is_hit and self.step % 7 != 3:
            self.pause.wait(self.options.strength / 1000)
        # END FAULT
        # FAULT early_stretch
        if self.options.fault == "early_stretch" and self.is_hit and 6 <= self.step < 26:
            self.pause.wait(self.options.strength / 1000)
        # END FAULT

    def after_backward(self) -> None:
        # FAULT rare_stall
        if self.options.fault == "rare_stall" and self.chance.random() < 0.04:
            deadline = time.perf_counter() + self.options.strength / 1000
            while time.perf_counter() < deadline:
                sum(range(1000))
        # END FAULT
        # FAULT loops
        if self.options.fault == "loops":
            repeats = 20 if self.is_hit else 1
            for _ in range(round(repeats * self.options.strength)):
                sum(value * value for value in range(4000))
        # END FAULT
        # FAULT turn
        if self.options.fault == "turn" and self.step % dist.get_world_size() == self.rank:
            weights = [p.detach().flatten().tolist() for p in self.model.parameters()]
            self.largest = max(max(values) for values in weights * round(self.options.strength))
        # END FAULT

    def run(self) -> float:
        loss = torch.zeros(())
        for waves, future in self.batches():
            self.before_forward()
            loss = mse_loss(self.model(waves), future)
            loss.backward()
            self.after_backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1
            if self.step == self.options.steps:
                return loss.item()
        raise AssertionError("batches do not end")


# FAULT neighbour
def crunch(until: float) -> None:
    while time.time() < until:
        sorted(range(100_000), key=lambda value: -value)


# END FAULT


def main() -> None:
    options = read_arguments(steps=64)
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    engine = Engine(options)
    # FAULT neighbour
    if options.fault == "neighbour" and engine.rank == 1:
        for _ in range(round(options.strength)):
            context = multiprocessing.get_context("spawn")
            context.Process(target=crunch, args=(time.time() + 120,), daemon=True).start()
    # END FAULT
    loss = engine.run()
    if engine.rank == 0:
        print(f"loss {loss:.4f}")
    leave()


if __name__ == "__main__":
    main()
