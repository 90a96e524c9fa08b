"""Inference: no optimizer tells the steps, so the job does, and names the stages of its work."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from pattern_parts import BATCH, WIDTH, batches, mlp
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import esprof


class Encoded(Dataset):
    """Inputs that a worker has to decode."""

    def __init__(self, inputs: Tensor) -> None:
        self._inputs = inputs

    def __len__(self) -> int:
        return len(self._inputs)

    @esprof.stage("decode")
    def __getitem__(self, index: int) -> Tensor:
        return self._inputs[index].tanh()


@torch.inference_mode()
def inference(steps: int) -> Iterator[float]:
    model = mlp().eval()
    inputs = torch.stack([batch for batch, _ in batches(steps)]).view(-1, WIDTH)
    for batch in DataLoader(Encoded(inputs), BATCH, num_workers=1):
        with esprof.stage("classify"):
            confidence = model(batch).softmax(1).amax(1).mean()
        if dist.is_initialized():
            dist.all_reduce(confidence)
        esprof.step()
        yield confidence.item()
