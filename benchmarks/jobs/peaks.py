"""Train one of six small models: `python -m benchmarks.jobs.peaks NAME`; with `--measure CHANGE…`, print each one's peak.

A peak is the most bytes that the allocator has given to tensors in the last steps, as one profile of the whole training
counts them: neither the recorder nor any size of a tensor is asked.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from benchmarks.jobs.cnn import layer
from benchmarks.jobs.gpt import BYTES, CONTEXT, GPT

STEPS, LAST = 14, 4
CLASSES = 10


class Listed(nn.Module):
    """`stem`, then each of `layers`, then `head`."""

    def __init__(self, stem: nn.Module, layers: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.layers, self.head = stem, nn.Sequential(*layers), head

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(self.stem(x)))
        return logits


class Checkpointed(nn.Module):
    """A layer that is computed again in the backward pass."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, x, use_reentrant=False)
        return out


@dataclass(frozen=True)
class PeakJob:
    """A model, its optimizer, a batch of (inputs, targets), and how many batches make a step."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer]
    samples: Callable[[int], tuple[Tensor, Tensor]]
    batch: int
    micro_batches: int = 1

    def train(self, batch: int, steps: int, *, recompute: bool = False, parts: int = 1) -> Iterator[None]:
        """Each of the batches of a step is divided into so many parts."""
        model = self.model()
        if recompute:
            name = next(name for name in ("blocks", "layers") if hasattr(model, name))
            setattr(model, name, nn.Sequential(*(Checkpointed(one) for one in getattr(model, name))))
        optimizer = self.optimizer(model)
        for _ in range(steps):
            for _ in range(self.micro_batches * parts):
                inputs, targets = self.samples(batch // parts)
                F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield


def _mlp(width: int, depth: int) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))
        for _ in range(depth)
    ]
    return Listed(nn.Linear(64, width), layers, nn.Linear(width, CLASSES))


def _cnn() -> nn.Module:
    layers: list[nn.Module] = [nn.Sequential(layer(32, 32, 1), layer(32, 32, 1)) for _ in range(3)]
    return Listed(layer(3, 32, 2), layers, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)))


def _vectors(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 64), torch.randint(CLASSES, (count,))


def _pictures(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, 32, 32), torch.randint(CLASSES, (count,))


def _texts(count: int) -> tuple[Tensor, Tensor]:
    text = torch.randint(BYTES, (count, CONTEXT + 1))
    return text[:, :-1], text[:, 1:]


def _adam(model: nn.Module) -> Optimizer:
    return Adam(model.parameters(), lr=1e-3)


def _adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=1e-3)


def _momentum(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.01, momentum=0.9)


JOBS = {
    "mlp": PeakJob(lambda: _mlp(128, 4), _adam, _vectors, 256),
    "wide mlp": PeakJob(lambda: _mlp(512, 3), _momentum, _vectors, 32),
    "cnn": PeakJob(_cnn, _momentum, _pictures, 8),
    "cnn in micro-batches": PeakJob(_cnn, _adam, _pictures, 4, micro_batches=2),
    "gpt": PeakJob(lambda: GPT(64, 4), _adamw, _texts, 8),
    "gpt in micro-batches": PeakJob(lambda: GPT(128, 3), _adam, _texts, 4, micro_batches=2),
}


def changed(job: PeakJob, change: str) -> tuple[int, bool, int]:
    """Batch, whether layers are computed again, and parts of a batch under a what-if of `batch=`, `recompute=full` and
    `accumulate=`."""
    batch, recompute, parts = job.batch, False, 1
    for term in change.split(","):
        name, _, value = term.partition("=")
        if name == "batch":
            batch = round(batch * float(value.removesuffix("x")))
        elif name == "accumulate":
            parts = int(value)
        recompute |= name == "recompute"
    return batch, recompute, parts


def peak_of(job: PeakJob, change: str) -> int:
    """Most bytes of the allocator in the last steps of a training."""
    batch, recompute, parts = changed(job, change)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for number, _ in enumerate(job.train(batch, LAST + 2, recompute=recompute, parts=parts)):
            if number == 1:
                with torch.profiler.record_function("from here on"):
                    pass
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    from_us = min(float(event["ts"]) for event in events if event["name"] == "from here on")
    memory = [event for event in events if event["name"] == "[memory]"]
    totals = [event["args"]["Total Allocated"] for event in memory if float(event["ts"]) > from_us]
    first = min(memory, key=lambda event: float(event["ts"]))["args"]
    return int(max(totals) - (first["Total Allocated"] - first["Bytes"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=JOBS)
    parser.add_argument("--measure", nargs="*", metavar="CHANGE")
    parser.add_argument("--batch", type=float, default=1, metavar="FACTOR", help="train with so many times the samples")
    parser.add_argument("--parts", type=int, default=1, help="divide each batch into so many parts")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    job = JOBS[options.name]
    if options.measure is None:
        for _ in job.train(round(options.batch * job.batch), options.steps, parts=options.parts):
            pass
        return
    print(json.dumps({change: peak_of(job, change) for change in options.measure}))


if __name__ == "__main__":
    main()
