"""The training loop that all jobs share."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.jobs.arguments import Arguments
from benchmarks.jobs.files import FileSamples, Sample, prepare


@dataclass(frozen=True)
class Task:
    """What is learnt, and from what: how sample number N is written to a file and read again, the model, the loss."""

    name: str
    suffix: str
    write: Callable[[Path, int], None]
    read: Callable[[Path], Sample]
    model: Callable[[Arguments], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]


def run(task: Task, arguments: Arguments) -> None:
    """Train on this process's share of the samples.

    At the end rank 0 prints one JSON line: `job`, `step_ms`, the wall time of each step from the end of the one before,
    and `loss`, its own loss at each step.
    """
    dist.init_process_group("gloo")
    torch.manual_seed(arguments.seed)
    step_ms, losses = train(task, arguments)
    if dist.get_rank() == 0:
        print(json.dumps({"job": task.name, "step_ms": step_ms, "loss": losses}), flush=True)
    dist.destroy_process_group()
    # Gloo's threads outlive the group, and drop the last collective under Python's lock: where the interpreter is already
    # on its way out, PyTorch 2.13 aborts the process. So they get the lock first.
    time.sleep(0.5)


def train(task: Task, arguments: Arguments) -> tuple[list[float], list[float]]:
    """Returns time in ms and loss of each step."""
    batches = endless(*loading(task, arguments))
    model = DistributedDataParallel(task.model(arguments), bucket_cap_mb=arguments.bucket_mb)
    if arguments.fp16:
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step_ms, losses = [], []
    before = time.perf_counter()
    for inputs, targets in itertools.islice(batches, arguments.steps):
        optimizer.zero_grad()
        loss = task.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        now = time.perf_counter()
        step_ms.append(round(1e3 * (now - before), 3))
        before = now
    return step_ms, losses


def loading(task: Task, arguments: Arguments) -> tuple[DataLoader[Sample], DistributedSampler[Sample]]:
    """The loader of whole batches of this rank's share of the samples, and what shuffles them."""
    samples = FileSamples(prepare(arguments.files, arguments.samples, task.suffix, task.write), task.read)
    sampler: DistributedSampler[Sample] = DistributedSampler(samples, seed=arguments.seed, drop_last=True)
    if len(sampler) < arguments.batch:
        raise SystemExit(f"{len(sampler)} samples a rank do not fill a batch of {arguments.batch}")
    workers = arguments.workers
    loader = DataLoader(
        samples, arguments.batch, sampler=sampler, num_workers=workers, persistent_workers=workers > 0, drop_last=True
    )
    return loader, sampler


def endless(loader: DataLoader[Sample], sampler: DistributedSampler[Sample]) -> Iterator[Sample]:
    """The loader's batches, epoch after epoch, each in an order of its own."""
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader
