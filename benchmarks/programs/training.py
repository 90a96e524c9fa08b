"""What a program is: what a script passes to `ElasticTrainer`, and what it does between two steps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from esprof.elastic import Data, ElasticTrainer
from tests.cases.programs.script import mean_loss, sgd

N_EST, EPOCHS, STEPS = 4, 4, 120
LATE, MANY = 60, 80
"""The step after which most programs go wrong, and the number of calls after which a count matters."""


class Points(Dataset):
    """960 points of eight kinds: 30 steps an epoch of four ESTs with eight points each."""

    def __init__(self):
        self.points = torch.randn(960, 16, generator=torch.Generator().manual_seed(1))
        self.kinds = (self.points @ torch.randn(16, 8, generator=torch.Generator().manual_seed(2))).argmax(dim=1)

    def __len__(self):
        return 960

    def __getitem__(self, index: int):
        return self.points[index], self.kinds[index]


class Changed(Points):
    """Points that `by(dataset, index, point)` changes; `attributes` are those of the dataset."""

    def __init__(self, by: Callable[[Any, int, Tensor], Tensor], **attributes: Any):
        super().__init__()
        self.by = by
        vars(self).update(attributes)

    def __getitem__(self, index: int):
        point, kind = super().__getitem__(index)
        return self.by(self, index, point), kind


def mlp(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), *middle, nn.ReLU(), nn.Linear(32, 8))


@dataclass
class Training:
    """The parts of a script."""

    model: nn.Module = field(default_factory=mlp)
    loss: Any = mean_loss
    """One, or a list of several that alternate."""
    data: Dataset = field(default_factory=Points)
    optimizer: Any = sgd
    """Makes an optimizer, or a list of several, of the model."""
    batches: dict[str, Any] = field(default_factory=dict)
    """Options of `Data`, other than the dataset."""
    options: dict[str, Any] = field(default_factory=dict)
    """ElasticTrainer's others, or what makes them of the optimizer."""
    between: Callable[[ElasticTrainer, int], object] = lambda trainer, step: None
    """Called after each step, with its number. What is true ends the training."""
    end: Callable[[], object] = lambda: None
    """Called at the end."""

    def trainer(self) -> ElasticTrainer:
        optimizer = self.optimizer(self.model)
        options = self.options(optimizer) if callable(self.options) else self.options
        data = Data(self.data, **{"batch_size": 8, **self.batches})
        return ElasticTrainer(self.model, optimizer, self.loss, data, N_EST, **options)


@dataclass(frozen=True)
class Program:
    make: Callable[[], Training]
    is_right: bool


PROGRAMS: dict[str, Program] = {}
"""All programs, by name."""


def right(make: Callable[[], Training]) -> Callable[[], Training]:
    """One whose bits can depend on nothing but the number of ESTs."""
    PROGRAMS[make.__name__] = Program(make, is_right=True)
    return make


def late(make: Callable[[], Training]) -> Callable[[], Training]:
    """One that does something late that elastic training has to move, refuse or notice."""
    PROGRAMS[make.__name__] = Program(make, is_right=False)
    return make
