"""Prices of houses from a table of numbers and categories, by a mixture of densities; a trainer of its own. Plain DDP.

torchrun --nproc-per-node 2 pricing.py --files /tmp/pricing
"""

import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

NUMBERS, CATEGORIES, KINDS, WIDTH, PARTS, ROWS = 28, 6, 40, 256, 5, 192


@dataclass
class Houses:
    numbers: torch.Tensor
    categories: torch.Tensor
    price: torch.Tensor

    @classmethod
    def some(cls, rows, generator):
        numbers = torch.randn(rows, NUMBERS, generator=generator)
        categories = torch.randint(KINDS, (rows, CATEGORIES), generator=generator)
        noise = 0.2 * torch.randn(rows, generator=generator)
        return cls(numbers, categories, numbers[:, :4].tanh().sum(1) + (categories[:, 0] % 3) + noise)

    def __getitem__(self, where):
        return Houses(self.numbers[where], self.categories[where], self.price[where])


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.gate, self.out = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.out(nn.functional.glu(self.gate(self.norm(x))))


class Prices(nn.Module):
    """Weights, centres and widths of bells whose mixture a price is drawn from."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(KINDS, 12) for _ in range(CATEGORIES))
        self.enter = nn.Linear(NUMBERS + 12 * CATEGORIES, WIDTH)
        self.blocks = nn.ModuleList(Residual(WIDTH) for _ in range(4))
        self.bells = nn.Linear(WIDTH, 3 * PARTS)

    def forward(self, numbers, categories):
        known = [table(categories[:, place]) for place, table in enumerate(self.tables)]
        x = self.enter(torch.cat([numbers, *known], dim=1))
        for block in self.blocks:
            x = block(x)
        weight, centre, width = self.bells(x).chunk(3, dim=1)
        return weight.log_softmax(1), centre, nn.functional.softplus(width) + 0.05


def surprise(bells, price):
    weight, centre, width = bells
    off = (price[:, None] - centre) / width
    return -(weight - 0.5 * off.square() - width.log()).logsumexp(1).mean() + 0.5 * math.log(2 * math.pi)


@dataclass
class Metrics:
    values: dict = field(default_factory=lambda: defaultdict(list))

    def add(self, **values):
        for name, value in values.items():
            self.values[name].append(float(value))

    def mean(self, name, last=50):
        recent = self.values[name][-last:]
        return sum(recent) / max(1, len(recent))


EXTRAS = {}


def extra(name):
    """What is only done where `--fault` names it."""

    def register(make):
        EXTRAS[name] = make
        return make

    return register


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.chosen = self.rank == args.rank
        self.amount = args.strength
        self.generator = torch.Generator().manual_seed(1000 * args.seed + self.rank)
        self.houses = Houses.some(20_000, self.generator)
        self.net = Prices()
        self.ddp = DistributedDataParallel(self.net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, weight_decay=0.01)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 2e-3, total_steps=args.steps + 1)
        self.metrics = Metrics()
        self.step = 0
        self.listeners = defaultdict(list)

    def on(self, event, listener):
        self.listeners[event].append(listener)

    def emit(self, event):
        for listener in self.listeners[event]:
            listener(self)

    @property
    def expected(self):
        """The mean of each mixture."""
        weight, centre, _ = self.bells
        return (weight.exp() * centre).sum(1).detach()

    def training_step(self):
        self.batch = self.houses[torch.randint(len(self.houses.price), (ROWS,), generator=self.generator)]
        self.emit("batch")
        self.bells = self.ddp(self.batch.numbers, self.batch.categories)
        self.loss = surprise(self.bells, self.batch.price)
        self.optimizer.zero_grad(set_to_none=True)
        self.emit("before_backward")
        self.loss.backward()
        self.emit("gradients")
        self.optimizer.step()
        self.schedule.step()

    def fit(self):
        self.emit("start")
        for self.step in range(self.args.steps):  # noqa: B020
            self.training_step()
            self.metrics.add(loss=self.loss.detach(), error=(self.expected - self.batch.price).abs().mean())
            self.emit("step_end")
        self.emit("end")
        return self.metrics.mean("error")


# FAULT ledger
@extra("ledger")
class Ledger:
    """Enters what was asked and said for houses, each line sealed with that before it."""

    def __init__(self, trainer):
        if trainer.chosen:
            self.seal = ""
            self.file = (trainer.args.files / "ledger.json").open("w")
            trainer.on("step_end", self.write_up)

    def write_up(self, trainer):
        rows = round(trainer.amount)
        asked, kinds = trainer.batch.numbers[:rows].tolist(), trainer.batch.categories[:rows].tolist()
        said = torch.cat(trainer.bells, dim=1)[:rows].tolist()
        for number, line in enumerate(zip(asked, kinds, said, strict=True)):
            text = json.dumps({"step": trainer.step, "row": number, "line": line, "on": self.seal}, indent=1)
            self.seal = hashlib.sha1(text.encode()).hexdigest()
            self.file.write(f"{text}\n")


# END FAULT


# FAULT curvature
@extra("curvature")
class Sharpness:
    """How much the loss of a few houses rises where the weights are shaken along its gradient."""

    def __init__(self, trainer):
        self.rows = round(trainer.amount)
        if trainer.chosen:
            trainer.on("gradients", self.measure)

    @contextmanager
    def shaken(self, parameters, by):
        with torch.no_grad():
            for parameter, change in zip(parameters, by, strict=True):
                parameter.add_(change, alpha=0.01)
        yield
        with torch.no_grad():
            for parameter, change in zip(parameters, by, strict=True):
                parameter.sub_(change, alpha=0.01)

    def measure(self, trainer):
        some, parameters = trainer.batch[: self.rows], list(trainer.net.parameters())
        loss = surprise(trainer.net(some.numbers, some.categories), some.price)
        gradients = torch.autograd.grad(loss, parameters)
        with self.shaken(parameters, gradients), torch.no_grad():
            there = surprise(trainer.net(some.numbers, some.categories), some.price)
        trainer.metrics.add(sharpness=there - loss.detach())


# END FAULT


# FAULT heartbeat
def signal_of(trainer):
    """Wait for a word of whoever may want training to stop, for a while."""
    wanted, patience = trainer.args.files / "stop", time.monotonic() + trainer.amount / 1000
    while not wanted.exists() and time.monotonic() < patience:
        time.sleep(0.0005)


@extra("heartbeat")
def heartbeat(trainer):
    if trainer.chosen:
        trainer.on("batch", signal_of)


# END FAULT


# FAULT weight_book
def rows_of(net, most):
    """The first rows of each weight with their gradients."""
    for name, weight in net.named_parameters():
        if weight.dim() > 1:
            yield from ((f"{name}/{row}", weight[row], weight.grad[row]) for row in range(min(most, len(weight))))


@extra("weight_book")
def weight_book(trainer):
    book = {}

    def note(trainer):
        with torch.no_grad():
            for name, weight, gradient in rows_of(trainer.net, round(trainer.amount)):
                book[name] = (gradient.norm() / (weight.norm() + 1e-8), gradient.max(), gradient.min())

    trainer.on("gradients", note)


# END FAULT


# FAULT seal
@extra("seal")
def seal(trainer):
    """Knows each state of the weights by its digest."""
    seen = {}

    def digest(tensors):
        state = hashlib.md5()
        for tensor in tensors:
            state.update(tensor.detach().numpy().tobytes())
        return state.hexdigest()

    def every(trainer):
        yield from trainer.net.parameters()
        for state in trainer.optimizer.state.values():
            yield from state.values()

    def look(trainer):
        seen.setdefault(digest(islice(every(trainer), round(trainer.amount))), trainer.step)

    trainer.on("step_end", look)


# END FAULT


# FAULT calibration
@extra("calibration")
class Calibration:
    """How often prices lie within so many widths of what was expected."""

    def __init__(self, trainer):
        self.bounds = [0.25 * (1 + bound) for bound in range(round(trainer.amount))]
        self.inside = torch.zeros(len(self.bounds))
        trainer.on("before_backward", self.count)

    def count(self, trainer):
        spread = trainer.bells[2].detach().mean(1)
        for price, said, width in zip(trainer.batch.price, trainer.expected, spread, strict=True):
            off = (price - said).abs()
            for place, bound in enumerate(self.bounds):
                if off < bound * width:
                    self.inside[place] += 1


# END FAULT


# FAULT rota
@extra("rota")
class Rota:
    """Ranks draw up the report of neighbours in turn, one a step."""

    def __init__(self, trainer):
        self.report = {}
        trainer.on("batch", self.draw_up)

    def draw_up(self, trainer):
        if trainer.step % trainer.world != trainer.rank:
            return
        rows = list(enumerate(trainer.batch.categories.tolist()))
        for row, kinds in rows[: round(trainer.amount)]:
            alike = [(sum(a == b for a, b in zip(kinds, other, strict=True)), number) for number, other in rows]
            self.report[row] = sorted(alike, reverse=True)[:5]


# END FAULT


# FAULT crowd
OTHER_WORK = """
import os, sys, time
parent, share = int(sys.argv[1]), float(sys.argv[2])
while os.getppid() == parent:
    began = time.monotonic()
    sorted(range(100_000), key=lambda number: number * 7919 % 10007)
    time.sleep((time.monotonic() - began) * (1 / share - 1))
"""


@extra("crowd")
def crowd(trainer):
    """Others work on the same machine for a share of the time; they end with the job."""
    if trainer.rank == 0:
        command = [sys.executable, "-I", "-S", "-c", OTHER_WORK, str(os.getpid()), str(trainer.amount / 2)]
        others = [subprocess.Popen(command) for _ in range(2)]
        trainer.on("end", lambda _: [(other.terminate(), other.wait()) for other in others])


# END FAULT


def main():
    args = read_arguments(steps=320, needs_files=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    args.files.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(args)
    if args.fault in EXTRAS:
        EXTRAS[args.fault](trainer)
    error = trainer.fit()
    if trainer.rank == 0:
        print(f"off by {error:.3f}")
    leave()


if __name__ == "__main__":
    main()
