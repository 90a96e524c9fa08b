"""Ways to be fed: a training and a validation loader, two loaders side by side, a stream of unknown length."""

from collections.abc import Iterator

import torch
from pattern_parts import BATCH, batches, loss_of, mlp, parallel
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class Stream(IterableDataset):
    """Samples until there are no more."""

    def __init__(self, samples: list[tuple[Tensor, Tensor]]) -> None:
        self._samples = samples

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from self._samples


def validation(steps: int) -> Iterator[float]:
    """A pass over the validation set after every third step, without gradients."""
    model = parallel(mlp())
    optimizer = torch.optim.AdamW(model.parameters())
    training = DataLoader(_samples(steps), BATCH, num_workers=1)
    validating = DataLoader(_samples(2), BATCH)
    for step, batch in enumerate(training):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        yield loss.item()
        if step % 3 == 2:
            model.eval()
            with torch.no_grad():
                yield torch.stack([loss_of(model, held_out) for held_out in validating]).mean().item()
            model.train()


def zipped(steps: int) -> Iterator[float]:
    """Labelled and other batches from two loaders, one with a worker and one without."""
    model = parallel(mlp())
    optimizer = torch.optim.AdamW(model.parameters())
    labelled, others = DataLoader(_samples(steps), BATCH, num_workers=1), DataLoader(_samples(steps), BATCH)
    for batch, (inputs, _) in zip(labelled, others, strict=True):
        optimizer.zero_grad()
        loss = loss_of(model, batch) + 0.1 * model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.item()


def stream(steps: int) -> Iterator[float]:
    model = parallel(mlp())
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in DataLoader(Stream(list(_samples(steps))), BATCH, num_workers=1):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        yield loss.item()


def _samples(count: int) -> TensorDataset:
    inputs, labels = zip(*batches(count), strict=True)
    return TensorDataset(torch.cat(inputs), torch.cat(labels))
