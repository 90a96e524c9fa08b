"""How far models differ that ranks train apart: each is scored on the ranks' batches.

In SkewScout (Hsieh et al., ICML 2020) models travel to the data of other ranks. Here a fixed batch of each rank travels to
all ranks, once: a comparison then exchanges scores alone.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import torch
import torch.distributed as dist

from esprof.core.errors import UsageError
from esprof.recorder.api import current_session

_DIGEST_BYTES = 7
"""Bytes of the hash of a batch's shapes: as many as a signed number of 64 bits can hold."""


class ModelTravel:
    """Scores the models of all ranks on a fixed batch of each rank.

        travel = esprof.ModelTravel((images, labels), accuracy)     # on every rank, once
        …
        travel.compare(model, every=8)                              # on every rank, before the models are averaged

    `batch` has the tensors of a fixed batch of this rank, of the same shapes and types on all ranks, on a device that their
    process group can communicate from. `score(model, *batch)` returns the share of samples that the model gets right.

    Raises UsageError without a process group of several ranks, or if shapes or types differ between ranks.
    """

    def __init__(self, batch: Sequence[torch.Tensor], score: Callable[..., float | torch.Tensor]) -> None:
        if not dist.is_initialized() or dist.get_world_size() < 2:
            raise UsageError(
                "models of several ranks are compared, but there is no process group of several ranks",
                remedy="Call torch.distributed.init_process_group first.",
            )
        batch = tuple(batch)
        if not batch:
            raise UsageError("the batch has no tensors", remedy="Pass the inputs and labels of some samples.")
        self._score = score
        self._device = batch[0].device
        _refuse_unlike(batch)
        parts = [_gathered(one) for one in batch]
        self._batches = list(zip(*parts, strict=True))

    def compare(self, model: torch.nn.Module, *, every: int) -> float:
        """Score `model` on the batch of each rank, and return the accuracy loss: by how much models of other ranks score
        lower on a rank's batch than its own model does, mean over all ranks.

        Every rank calls this before an average; `every` is the number of steps since the last one. In a process that is
        recorded the scores are stored, and `esprof diagnose` compares them by `every` (ESP308). Modules are in evaluation
        mode meanwhile, without gradients.

        Raises ValueError on all ranks if a score is not from 0 to 1.
        """
        if every < 1:
            raise ValueError(f"every is {every}, but must be at least 1")
        with _evaluating(model) as plain:
            scores = [float(self._score(plain, *batch)) for batch in self._batches]
        table = torch.stack(_gathered(torch.tensor(scores, dtype=torch.float64, device=self._device))).cpu()
        if not ((table >= 0) & (table <= 1)).all():
            raise ValueError(f"scores must be from 0 to 1, but are {table.tolist()} (by model and batch)")
        own = table.diagonal()
        foreign = (table.sum(dim=0) - own) / (len(table) - 1)
        rank = dist.get_rank()
        _note(every, float(own[rank]), float(foreign[rank]))
        return float((own - foreign).mean())


def _refuse_unlike(batch: Sequence[torch.Tensor]) -> None:
    described = repr([(str(one.dtype), tuple(one.shape)) for one in batch])
    digest = int.from_bytes(blake2b(described.encode(), digest_size=_DIGEST_BYTES).digest(), "big")
    if len({int(one) for one in _gathered(torch.tensor([digest], device=batch[0].device))}) > 1:
        raise UsageError(
            f"batches of the ranks differ in shapes or types; this rank has {described}",
            remedy="Pass as many samples on each rank.",
        )


def _gathered(mine: torch.Tensor) -> list[torch.Tensor]:
    """The tensor of each rank."""
    parts = [torch.empty_like(mine, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine.detach().contiguous())
    return parts


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The model inside DistributedDataParallel, if any, whose forward pass would overwrite buffers of the ranks."""
    plain = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    training = [one for one in plain.modules() if one.training]
    plain.eval()
    try:
        with torch.no_grad():
            yield plain
    finally:
        for one in training:
            one.training = True


def _note(every: int, own: float, foreign: float) -> None:
    session: Any = current_session()
    if session is not None and session.recorder is not None:
        session.log.roll("travels", (time.time_ns(), session.recorder.state.step, every, own, foreign))
