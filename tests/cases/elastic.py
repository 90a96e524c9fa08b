"""Small elastic jobs, run on one process, on threads instead of processes, or on real processes, and their bits."""

import hashlib
import multiprocessing
import random
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
import torch._dynamo  # Each process would import it at its first optimizer step; so those that are forked have it.
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset, default_collate

from esprof.elastic import Assignment, Data, ElasticTrainer, Gradients, Placement, Proof, Updates
from esprof.elastic.runtime.rng import RngState, derived_seed, preserved, seed_all, seeded
from esprof.elastic.runtime.transport import Transport, Work

T = TypeVar("T")
Parts = Sequence[Sequence[int]]
"""The ESTs of each rank."""
History = Mapping[int, Parts]
"""First step -> ESTs of each rank from that step on; contains step 0."""


@dataclass(frozen=True)
class Job:
    """The training setup: everything that the bits may depend on."""

    model: str = "mlp"
    optimizer: str = "sgd"
    n_est: int = 4
    steps: int = 6
    accumulate: int = 1
    samples: int = 51
    drop_last: bool = True
    clip_norm: float | None = 0.5
    amp: str | None = None
    codecs: tuple[tuple[int, str], ...] = ((0, "none"),)
    """(first step, codec)."""
    reduction: str = "tree"
    bucket_mb: float | None = 0.001
    threads: int = 1
    find_unused: bool = False
    frozen: tuple[str, ...] = ()
    """Names of frozen parameters."""
    prove_every: int | None = None


class Samples(Dataset):
    """Each sample is augmented at random, with every available generator."""

    def __init__(self, length: int, *, tokens: bool) -> None:
        self._length = length
        self._tokens = tokens

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._tokens:
            return torch.randint(0, 11, (6,)), index % 5
        base = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(index))
        return base * random.random() + np.random.rand() + 0.1 * torch.randn(1, 8, 8), index % 5


class Paths(nn.Module):
    """Branches by a sample's value: one of two branches is often unused, a third always."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 400)
        self.ways = nn.ModuleList(nn.Linear(400, 400) for _ in range(3))
        self.head = nn.Linear(400, 5)

    def forward(self, images: Tensor) -> Tensor:
        way = self.ways[int(images.sum() > 0)]
        return self.head(way(torch.tanh(self.body(images.flatten(1)))))


class Gpt(nn.Module):
    """One block of attention with dropout, a causal mask for a buffer, and an output layer tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.position = nn.Parameter(0.02 * torch.randn(6, 8))
        self.attend = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.feed = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8))
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position
        normed = self.norm(x)
        x = x + self.attend(normed, normed, normed, attn_mask=self.mask, need_weights=False)[0]
        return self.out(x + self.feed(x))[:, -1]


def _conv() -> nn.Module:
    head = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*head, nn.Flatten(), nn.Linear(4 * 36, 5))


def _wide() -> nn.Module:
    """1.8 MB, which DDP splits into two buckets after the first step."""
    head = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*head, nn.Flatten(), nn.Linear(4 * 36, 3000), nn.ReLU(), nn.Linear(3000, 5))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 5)),
    "conv": _conv,
    "gpt": Gpt,
    "wide": _wide,
    "paths": Paths,
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def loss_fn(model: nn.Module, batch: Any) -> Tensor:
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def trainer(
    job: Job,
    parts: Parts,
    transport: Transport | None = None,
    dataset: Dataset | None = None,
    loss_fn: Callable[[nn.Module, Any], Tensor] = loss_fn,
    **more: Any,
) -> ElasticTrainer:
    """The job before its first step; `more` is passed to ElasticTrainer."""
    torch.set_num_threads(job.threads)
    model, optimizer = model_and_optimizer(job)
    made = ElasticTrainer(
        model,
        optimizer,
        loss_fn,
        Data(
            dataset or Samples(job.samples, tokens=job.model == "gpt"),
            batch_size=2,
            accumulate=job.accumulate,
            drop_last=job.drop_last,
        ),
        job.n_est,
        updates=Updates(scheduler=StepLR(optimizer, 2, 0.9)),
        gradients=Gradients(
            amp=job.amp,
            codec=job.codecs[0][1],
            reduction=job.reduction,
            bucket_mb=job.bucket_mb,
            clip_norm=job.clip_norm,
            find_unused=job.find_unused,
        ),
        proof=Proof(
            determinism="D0" if job.reduction == "all-reduce" else "D1",
            threads=job.threads,
            prove_every=job.prove_every,
        ),
        placement=Placement(assignment=Assignment.of(parts), transport=transport),
        **more,
    )
    for step, codec in job.codecs[1:]:
        made.set_codec(codec, step)
    return made


def curve(
    job: Job,
    history: History,
    transport: Transport | None = None,
    meddle: Callable[[ElasticTrainer], None] = lambda _: None,
) -> list[str]:
    """The job's bits after every step, including the losses of its ESTs; `meddle` corrupts the trainer before the first."""
    made = trainer(job, history[0], transport)
    meddle(made)
    bits = []
    for step in range(job.steps):
        if step and step in history:
            made.assign(Assignment.of(history[step]))
        losses = made.step().losses
        bits.append(state_hash(made.state.model, made.state.optimizers[0]) + "".join(loss.hex() for loss in losses))
    return bits


@cache
def static_curve(job: Job) -> list[str]:
    """The bits of one process that runs all ESTs from first to last."""
    return curve(job, {0: [range(job.n_est)]})


def state_hash(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Hash of all parameters, buffers and optimizer states."""
    digest = hashlib.sha256()
    states = [value for state in optimizer.state.values() for _, value in sorted(state.items())]
    for tensor in [*model.parameters(), *model.buffers(), *states]:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def spoiled_curve(job: Job, history: History, what: str) -> list[str]:
    """The same without one of the measures that make the bits independent of the assignment, and without verification."""
    job = replace(job, prove_every=0)
    if what == "a residual for each EST":
        return curve(job, history, meddle=_share_residuals)
    assert what == "generators for each EST"
    restore, RngState.restore = RngState.restore, lambda state, device: None
    try:
        return curve(job, history)
    finally:
        RngState.restore = restore


def _share_residuals(elastic: ElasticTrainer) -> None:
    """Each EST of a process continues with the state that the previous one has left."""
    shared: dict[str, Any] = {}
    for context in elastic.state.contexts.values():
        context.codec = shared


def model_and_optimizer(job: Job) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = MODELS[job.model]()
    for name in job.frozen:
        model.get_parameter(name).requires_grad_(False)
    return model, OPTIMIZERS[job.optimizer](model.parameters())


def stock_curve(job: Job) -> list[str]:
    """Bits of `DistributedDataParallel` on this rank of the default group, which has the batches of one EST."""
    torch.set_num_threads(job.threads)
    model, optimizer = model_and_optimizer(job)
    options: dict[str, Any] = {"find_unused_parameters": job.find_unused, "bucket_cap_mb": job.bucket_mb}
    ddp = nn.parallel.DistributedDataParallel(model, **options)
    scheduler = StepLR(optimizer, 2, 0.9)
    seed_all(dist.get_rank())
    batches = stock_batches(job, dist.get_rank())
    bits = []
    for number in range(job.steps):
        optimizer.zero_grad()
        mine = batches[number * job.accumulate : (number + 1) * job.accumulate]
        for micro, batch in enumerate(mine):
            holds_back = micro < job.accumulate - 1
            with ddp.no_sync() if holds_back else nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=job.amp == "bf16"):
                    loss = loss_fn(ddp, batch)
                (loss / job.accumulate).backward()
        if job.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
        optimizer.step()
        scheduler.step()
        bits.append(state_hash(model, optimizer))
    return bits


def stock_batches(job: Job, rank: int) -> list[Any]:
    """A rank's batches, drawn by torch's own sampler; samples are made with the seeds of the elastic runtime."""
    data = Samples(job.samples, tokens=False)
    sampler = torch.utils.data.DistributedSampler(data, job.n_est, rank, drop_last=True)
    batches: list[Any] = []
    epoch = 0
    while len(batches) < job.steps * job.accumulate:
        sampler.set_epoch(epoch)
        indices = list(sampler)
        for at in range(0, len(indices) // (2 * job.accumulate) * 2 * job.accumulate, 2):
            batch = []
            for index in indices[at : at + 2]:
                with seeded(derived_seed(0, epoch, index)):
                    batch.append(data[index])
            batches.append(default_collate(batch))
        epoch += 1
    return batches


# Threads for processes.


def on_threads(world: int, body: Callable[[Transport], T]) -> list[T]:
    """Results of `body` on each of `world` ranks, which are threads.

    One thread runs at a time, from one wait for a collective to the next, since they share the generators that a trainer
    switches.
    """
    rendezvous = _ThreadRendezvous(world)
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        with rendezvous.condition:
            try:
                results[rank] = body(ThreadTransport(rank, rendezvous))
            except BaseException as error:  # noqa: BLE001 Whatever it is, the other ranks must not wait for this one.
                rendezvous.fail(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if rendezvous.error is not None:
        raise rendezvous.error
    return results


class _ThreadRendezvous:
    """Rendezvous of threads for collectives: the n-th collective of each thread is the same one."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.condition = threading.Condition()
        self.error: BaseException | None = None
        self._there: dict[int, dict[int, Any]] = defaultdict(dict)
        self._done: set[int] = set()

    def join(self, number: int, rank: int, what: Any, collective: Callable[[list[Any]], None]) -> None:
        """Add the input of a rank; the last rank to arrive runs the collective."""
        there = self._there[number]
        there[rank] = what
        if len(there) == self.world:
            collective([there[rank] for rank in range(self.world)])
            del self._there[number]
            self._done.add(number)
            self.condition.notify_all()

    def wait(self, number: int) -> None:
        assert self.condition.wait_for(lambda: self.error is not None or number in self._done, timeout=60), (
            "a rank is missing"
        )
        if self.error is not None:
            raise RuntimeError("another rank has failed")

    def fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self.condition.notify_all()


class ThreadTransport:
    """A transport between threads."""

    def __init__(self, rank: int, rendezvous: _ThreadRendezvous) -> None:
        self.rank = rank
        self.world = rendezvous.world
        self._rendezvous = rendezvous
        self._count = 0

    def exchange(self, out: Tensor, out_sizes: list[int], send: Tensor, sizes: list[int]) -> Work:
        return self._start((out.split(out_sizes), send.split(sizes)), _exchange)

    def gather(self, out: Tensor, mine: Tensor) -> Work:
        return self._start((out, mine), _gather)

    def share(self, whole: Tensor) -> Work:
        return self.gather(whole, whole.chunk(self.world)[self.rank])

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        return self._start(tensor, lambda tensors: [tensor.copy_(tensors[source]) for tensor in tensors])

    def add(self, tensor: Tensor) -> Work:
        return self._start(tensor, lambda tensors: [t.copy_(total) for total in [sum(tensors)] for t in tensors])

    def _start(self, what: Any, collective: Callable[[list[Any]], Any]) -> Work:
        self._count += 1
        self._rendezvous.join(self._count, self.rank, what, collective)
        return _Pending(self._rendezvous, self._count)


@dataclass
class _Pending:
    rendezvous: _ThreadRendezvous
    number: int

    def wait(self) -> None:
        with preserved():  # Other threads draw meanwhile.
            self.rendezvous.wait(self.number)


def _exchange(ranks: list[tuple[list[Tensor], list[Tensor]]]) -> None:
    for target, (out, _) in enumerate(ranks):
        for source, (_, send) in enumerate(ranks):
            if source != target:
                out[source].copy_(send[target])


def _gather(ranks: list[tuple[Tensor, Tensor]]) -> None:
    whole = torch.cat([mine for _, mine in ranks])
    for out, _ in ranks:
        out.copy_(whole)


# Real processes.

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.cases.elastic"])


def on_processes(world: int, function: Callable[..., T], calls: Sequence[tuple[Any, ...]]) -> list[list[T]]:
    """Results of each call of a module's function, by rank, on `world` processes of one gloo group."""
    processes, results, _store = _started(world, function, calls)
    by_rank: dict[int, list[T]] = {}
    try:
        for _ in processes:
            rank, returned, error = results.get(timeout=240)
            assert not error, error
            by_rank[rank] = returned
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
    return [[by_rank[rank][call] for rank in range(world)] for call in range(len(calls))]


def on_doomed_processes(world: int, function: Callable[..., Any], call: tuple[Any, ...], dies: int) -> int | None:
    """Exit code of the rank that is killed by the call; then the others are killed, as a launcher would do."""
    processes, _results, _store = _started(world, function, [call])
    processes[dies].join(240)
    code = processes[dies].exitcode
    for process in processes:
        process.kill()
        process.join()
    return code


def _started(world: int, function: Any, calls: Sequence[tuple[Any, ...]]) -> tuple[list[Any], Any, dist.TCPStore]:
    """Running processes, the queue of their results, and the store of their group, which must be kept alive."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results: Any = _FORKS.Queue()
    processes = [
        _FORKS.Process(target=_rank, args=(rank, world, store.port, function, calls, results)) for rank in range(world)
    ]
    for process in processes:
        process.start()
    return processes, results, store


def _rank(rank: int, world: int, port: int, function: Any, calls: Sequence[tuple[Any, ...]], results: Any) -> None:
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        returned = [function(*call) for call in calls]
        dist.destroy_process_group()
        results.put((rank, returned, ""))
        time.sleep(0.1)  # Gloo may abort a process that ends right after its last collective.
    except BaseException:  # noqa: BLE001 The test shows it, whatever it is.
        results.put((rank, [], traceback.format_exc()))
