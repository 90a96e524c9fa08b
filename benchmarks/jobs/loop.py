"""The training loop that all jobs share."""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.jobs.arguments import Arguments
from benchmarks.jobs.files import FileSamples, Sample, prepare
from esprof import apply_plan
from esprof.core.plan import CompressionBody, read_plan
from esprof.elastic.compress import compress
from esprof.elastic.compress.sharded import compress_sharded

LEARNING_RATE = 1e-3


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
    """Train on this process's share of the samples, and `say` how it went."""
    with worker(arguments.seed):
        say(task.name, *train(task, arguments))


@contextmanager
def worker(seed: int) -> Iterator[None]:
    """Take part in a gloo job, from the same random numbers as all its ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    yield
    dist.destroy_process_group()
    # Gloo's threads outlive the group, and drop the last collective under Python's lock: where the interpreter is already
    # on its way out, PyTorch 2.13 aborts the process. So they get the lock first.
    time.sleep(0.5)


def say(job: str, step_ms: list[float], losses: list[float]) -> None:
    """On rank 0, print one JSON line: `job`, `step_ms`, the wall time of each step from the end of the one before, and
    `loss`, this rank's own at each step."""
    if dist.get_rank() == 0:
        print(json.dumps({"job": job, "step_ms": step_ms, "loss": losses}), flush=True)


def train(task: Task, arguments: Arguments) -> tuple[list[float], list[float]]:
    """Returns time in ms and loss of each step."""
    batches = itertools.islice(endless(*loading(task, arguments)), arguments.steps)
    if arguments.zero:
        model = listed_sharded(task.model(arguments), regather=arguments.zero == 3)
    else:
        model = sharded(task, arguments) if arguments.sharded else replicated(task, arguments)
    return timed(steps(batches, model, optimizer_of(model, arguments), task.loss))


def optimizer_of(model: nn.Module, arguments: Arguments) -> Optimizer:
    if arguments.shared_update:
        return ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, lr=LEARNING_RATE
        )
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def sharded(task: Task, arguments: Arguments) -> nn.Module:
    """The model of FSDP2, each of its children sharded, and then the whole; `--compress` is bf16 or a plan's file."""
    model, mesh = task.model(arguments), init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*model.children(), model):
        fully_shard(part, mesh=mesh)
    if arguments.compress.endswith(".json"):
        return apply_plan(model, arguments.compress)
    if arguments.compress:
        compress_sharded(model)
    return model


def listed_sharded(model: nn.Module, *, regather: bool) -> nn.Module:
    """The model of FSDP2 that the what-ifs `zero=2` and `3` predict: each entry of its largest list sharded, and then the
    whole. `regather`: the entries give up their parameters after the forward pass."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    lists = [one for one in model.modules() if isinstance(one, nn.Sequential | nn.ModuleList)]
    for part in max(lists, key=lambda one: sum(weight.numel() for weight in one.parameters())):
        fully_shard(part, mesh=mesh, reshard_after_forward=regather)
    fully_shard(model, mesh=mesh)
    return model


def replicated(task: Task, arguments: Arguments) -> nn.Module:
    """The model of DDP."""
    model = DistributedDataParallel(task.model(arguments), bucket_cap_mb=arguments.bucket_mb)
    if arguments.compress == "noop":
        model.register_comm_hook(None, noop_hook)
    elif arguments.compress:
        compress(model, compression_of(arguments.compress))
    if arguments.fp16:
        model.register_comm_hook(None, fp16_compress_hook)
    return model


def compression_of(spec: str) -> str | CompressionBody:
    """A codec's text, or what the plan of a file says."""
    if not spec.endswith(".json"):
        return spec
    part = read_plan(Path(spec)).parts.compression
    assert part is not None, "a plan that compresses"
    return part.body


def steps(
    batches: Iterable[Sample], model: nn.Module, optimizer: Optimizer, criterion: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[float]:
    """Make a step with each batch; yields its loss."""
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        yield loss.item()


def timed(losses: Iterable[float]) -> tuple[list[float], list[float]]:
    """The time in ms that each of `losses` takes to come, and the losses."""
    step_ms, found = [], []
    before = time.perf_counter()
    for loss in losses:
        found.append(loss)
        now = time.perf_counter()
        step_ms.append(round(1e3 * (now - before), 3))
        before = now
    return step_ms, found


def loading(task: Task, arguments: Arguments) -> tuple[DataLoader[Sample], DistributedSampler[Sample]]:
    """The loader of whole batches of this rank's share of the samples, and what shuffles them."""
    paths = prepare(arguments.files, arguments.samples, task.suffix, task.write)
    samples = FileSamples(paths, task.read, arguments.sample_ms / 1e3)
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
