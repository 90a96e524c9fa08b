"""Jobs without an optimizer's steps: evaluation over a loader, calls of a model, a server, a training before or after."""

import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import esprof

BATCH, STEPS = 16, 40


class Scaled(Dataset):
    """Samples that a module has gone over, as transforms do."""

    def __init__(self, count: int) -> None:
        self._samples = torch.randn(count, 64)
        self._scale = nn.LayerNorm(64)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Tensor:
        return self._scale(self._samples[index]).detach()


def data(batches: int = STEPS, workers: int = 0) -> DataLoader:
    return DataLoader(Scaled(batches * BATCH), BATCH, num_workers=workers)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).eval()


@torch.no_grad()
def evaluation() -> Iterator[Tensor]:
    net = model()
    for _ in range(2):
        for batch in data(STEPS // 2, workers=1):
            yield net(batch)


@torch.no_grad()
def evaluation_with_an_optimizer() -> Iterator[Tensor]:
    net = model()
    torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in data(2 * STEPS):
        yield net(batch)


@torch.inference_mode()
def calls() -> Iterator[Tensor]:
    encoder, net = nn.Linear(64, 64), model()
    for _ in range(STEPS):
        yield net(encoder(torch.randn(BATCH, 64)))


@torch.inference_mode()
def compiled() -> Iterator[Tensor]:
    net = torch.compile(model(), fullgraph=True, backend="eager")
    for _ in range(STEPS):
        yield net(torch.randn(BATCH, 64))


@torch.inference_mode()
def server() -> Iterator[Tensor]:
    net = model()
    for _ in range(STEPS):
        time.sleep(0.02)
        with esprof.step():
            for _ in range(3):
                answer = net(torch.randn(BATCH, 64))
        yield answer


def training_after_evaluation() -> Iterator[Tensor]:
    yield from evaluation()
    yield from training()


def server_after_training() -> Iterator[Tensor]:
    yield from training()
    yield from server()


def training() -> Iterator[Tensor]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for batch in data():
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.detach()


if __name__ == "__main__":
    torch.manual_seed(1)
    for number, result in enumerate(globals()[sys.argv[1]]()):
        print(number, result.sum().item().hex())
