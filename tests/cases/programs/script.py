"""What a program is: a training script as a user writes it, and what the elastic runtime should make of it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from esprof.elastic import Assignment, Data, ElasticTrainer, Loaders, Placement, Proof, Updates

N_EST = 4
WIDTH, KINDS = 8, 3
Expected = Literal["equal", "refused", "either", "reported"]
"""Bits that no assignment changes; an error that says why there could be none; whichever of these the runtime can; or other
bits, and a line that names the cause."""


class Points(Dataset):
    """40 points, each of noise of its own: five steps an epoch."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index)), index % KINDS


def net(middle: nn.Module | None = None) -> nn.Module:
    """Two layers with something between them that keeps the shape."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), middle or nn.Tanh(), nn.Linear(WIDTH, KINDS))


def mean_loss(model: nn.Module, batch: Any) -> Tensor:
    points, kinds = batch
    return F.cross_entropy(model(points), kinds)


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


def rank() -> int:
    return dist.get_rank()


@dataclass
class Script:
    """Arguments of a script to ElasticTrainer, and its other actions."""

    model: nn.Module = field(default_factory=net)
    loss: Callable[[nn.Module, Any], Any] = mean_loss
    data: Dataset | Loaders = field(default_factory=Points)
    optimizer: Callable[[nn.Module], Optimizer] = sgd
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
    batches: dict[str, Any] = field(default_factory=dict)
    """Options of `Data`, other than the samples and the batch size."""
    options: dict[str, Any] = field(default_factory=dict)
    """ElasticTrainer's others."""
    prepare: Callable[[ElasticTrainer], None] = lambda trainer: None
    """Called once the trainer is made."""
    between: Callable[[ElasticTrainer, int], None] = lambda trainer, step: None
    """Called after each step, with its number."""

    def trainer(self, assignment: Assignment) -> ElasticTrainer:
        optimizer = self.optimizer(self.model)
        made = ElasticTrainer(
            self.model,
            optimizer,
            self.loss,
            Data(self.data, batch_size=2, **self.batches),
            N_EST,
            updates=Updates(scheduler=self.scheduler and self.scheduler(optimizer)),
            placement=Placement(assignment=assignment),
            **{"proof": Proof(prove_every=1), **self.options},
        )
        self.prepare(made)
        return made


@dataclass(frozen=True)
class Program:
    """A script, created for each run, and its expected result."""

    make: Callable[[], Script]
    expected: Expected
    like: str | None = None
    """The program of the same kind that is always run, where this one is left to the long runs."""


PROGRAMS: dict[str, Program] = {}
"""All of them, by name."""


def _register(expected: Expected) -> Callable[[Callable[[], Script]], Callable[[], Script]]:
    def register(make: Callable[[], Script]) -> Callable[[], Script]:
        assert make.__name__ not in PROGRAMS, make.__name__
        PROGRAMS[make.__name__] = Program(make, expected)
        return make

    return register


equal, refused, either, reported = map(_register, get_args(Expected))


def like(other: str) -> Callable[[Callable[[], Script]], Callable[[], Script]]:
    """Leave the program below to the long runs: what it meets in the runtime, the program `other` always does."""

    def mark(make: Callable[[], Script]) -> Callable[[], Script]:
        PROGRAMS[make.__name__] = replace(PROGRAMS[make.__name__], like=other)
        return make

    return mark
