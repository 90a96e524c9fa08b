"""A small elastic job with every option of ElasticTrainer open, for tests of how it stops and goes on."""

import torch
from torch import nn

from esprof.elastic import Assignment, ElasticTrainer
from tests.cases.elastic import Samples, loss_fn, on_threads, state_hash

N_EST = 4


class Net(nn.Module):
    """Its BatchNorm and dropout show when a buffer or a generator was forgotten."""

    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(3 * 36, classes)

    def forward(self, images):
        return self.head(self.drop(torch.relu(self.norm(self.conv(images)))).flatten(1))


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def small_trainer(
    n_est=N_EST, *, loss=loss_fn, model=None, optimizer=adamw, scheduler=None, classes=5, threads=1, **options
):
    """`model` and `scheduler` make one, of nothing and of the optimizer; `options` are ElasticTrainer's."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = model() if model else Net(classes)
    made = optimizer(model.parameters())
    options = {"batch_size": 2, "clip_norm": 1.0, "bucket_mb": 0.001} | options
    samples = Samples(61, tokens=False)
    return ElasticTrainer(model, made, loss, samples, n_est, scheduler=scheduler and scheduler(made), **options)


def bits(trainer, steps):
    """The losses of each of the next `steps`, and what the job is after it."""
    return [(trainer.step().losses, state_hash(trainer.model, trainer.optimizer)) for _ in range(steps)]


def bits_of_ranks(parts, steps=3, **options):
    """The same of each rank of a job whose ESTs run as `parts` has it; ranks are threads."""

    def body(transport):
        return bits(small_trainer(transport=transport, assignment=Assignment.of(parts), **options), steps)

    return on_threads(len(parts), body)
