"""Writes Runs of large jobs fast: training in tensor, pipeline and data groups, whose times follow from a small model.

All ranks of a pipeline stage run the same program, so each row of a stage's tables is simulated for all of them at once. A
rank has one CPU thread, which launches a kernel every few microseconds, and one stream. A kernel begins when it is launched
and the one before has ended. Members of a tensor or data group leave a collective together, a transfer after the last has
come; a stage waits for the activations and gradients of its neighbours (schedule 1F1B). At the end of a step all ranks meet.
One rank computes slower, and one link of the pipeline is slower.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from esprof.run.directory import write_meta, write_table
from esprof.run.groups import Group, group_name
from esprof.run.run import RankMeta, RunMeta, Window
from esprof.run.schema import EVENTS, STEPS, table

BEGIN_NS = 1_790_857_026_000_000_000
US = 1_000

_STREAM, _GPUS_OF_HOST = 7, 8
_CALL_NS, _LAUNCH_NS, _PERIOD_NS = 8 * US, 4 * US, 10 * US
"""Duration of an operation, of the launch in it, and time from one operation to the next."""
_LATENCY_NS = 2 * US
"""From the end of a launch until the kernel may begin."""
_KERNEL_NS, _SCATTER = 40 * US, 0.05
_TRANSFER_NS = {"tensor": 60 * US, "data": 2_000 * US, "world": 100 * US, "pipeline": 150 * US}
_BYTES = {"tensor": 8 << 20, "data": 256 << 20, "world": 4, "pipeline": 16 << 20}
_NAMES = (
    "aten::mm", "aten::add", "aten::gelu", "record_param_comms", "cudaLaunchKernel", "cudaDeviceSynchronize",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "vectorized_elementwise_kernel<4, add>",
    "vectorized_elementwise_kernel<4, gelu>", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
)  # fmt: skip
_OPERATIONS, _COMM, _LAUNCH, _SYNC, _KERNELS, _ALL_REDUCE, _SEND_RECV = (0, 1, 2), 3, 4, 5, (6, 7, 8), 9, 10
_KINDS = ("op", "runtime", "kernel", "collective")
_OP, _RUNTIME, _KERNEL, _COLLECTIVE = range(len(_KINDS))
_WORDS = ("all_reduce", "send", "recv")
_LINKS = ("tensor", "data", "world", "pipeline")
_GROUPS = _LINKS[:-1]
"""Links of process groups; a message has a peer."""


@dataclass(frozen=True)
class LargeJob:
    """A job of tensor · data · pipeline ranks, numbered in this order. Each stage computes `blocks` for each microbatch,
    forward and backward, and all-reduces each in its tensor group."""

    tensor: int
    data: int
    pipeline: int
    steps: int = 8
    microbatches: int = 8
    blocks: int = 4
    kernels: int = 20
    """Of a block in the forward pass; the backward pass has twice as many."""
    slow_rank: int = 0
    slow_compute: float = 1.3
    """How much longer the kernels of `slow_rank` take."""
    slow_link: tuple[int, int] = (0, 0)
    """Position in tensor and data group of the ranks of the first two stages whose link is slow."""
    slow_transfer: float = 8.0
    seed: int = 0

    @property
    def ranks(self) -> int:
        return self.tensor * self.data * self.pipeline

    @classmethod
    def of(cls, ranks: int, events: int) -> "LargeJob":
        """A job of so many ranks, a multiple of 8, and about so many events a rank."""
        tensor, pipeline = (8, 8) if ranks % 64 == 0 else (2, 2)
        job = cls(tensor, ranks // tensor // pipeline, pipeline, slow_rank=ranks // 3)
        few, more = (job._events(kernels) for kernels in (1, 2))
        kernels = max(1, round(1 + (events - few) / (more - few)))
        return cls(tensor, job.data, pipeline, kernels=kernels, slow_rank=job.slow_rank)

    def _events(self, kernels: int) -> int:
        """Events of a rank in the middle of the pipeline with so many kernels in a block."""
        of_microbatch = 3 * (3 * kernels + 2) * self.blocks + 3 * 4 + 2
        return self.steps * (self.microbatches * of_microbatch + 3 * (2 + kernels) + 1)


def write(folder: Path, job: LargeJob, threads: int = 2) -> int:
    """Write the Run of the job into `folder`; the number of its events."""
    stages = simulated(job)
    groups = [_tensor_group(job, first) for first in range(0, job.ranks, job.tensor)]
    of_stage = job.tensor * job.data
    groups += [_data_group(job, stage * of_stage + one) for stage in range(job.pipeline) for one in range(job.tensor)]

    def written(rank: int) -> int:
        stage, at = divmod(rank, of_stage)
        events = stages[stage].table_of(rank, at)
        write_table(folder, "events", rank, table(events, EVENTS))
        write_table(folder, "steps", rank, table(stages[stage].steps_of(at), STEPS))
        return len(events["start_ns"])

    with ThreadPoolExecutor(threads) as pool:
        counts = list(pool.map(written, range(job.ranks)))
    window = (Window(first=1, last=job.steps),)
    ranks = tuple(
        RankMeta(
            rank=rank, host=f"node{rank // _GPUS_OF_HOST}", device="NVIDIA H100 80GB HBM3", accelerators=_GPUS_OF_HOST,
            clock_offset_ns=0, clock_residual_ns=US, windows=window, events=counts[rank],
        )
        for rank in range(job.ranks)
    )  # fmt: skip
    write_meta(folder, RunMeta(world_size=job.ranks, ranks=ranks, groups=(_world(job), *groups)))
    return sum(counts)


def simulated(job: LargeJob) -> list["Stage"]:
    """The stages of the pipeline after all steps."""
    rng = np.random.default_rng(job.seed)
    stages = [Stage(job, number, rng) for number in range(job.pipeline)]
    for step in range(1, job.steps + 1):
        for stage in stages:
            stage.begin_step(step)
        waiting = [stage.tasks() for stage in stages]
        following = [next(tasks) for tasks in waiting]
        sent: dict[tuple[str, int, int], np.ndarray] = {}
        # A stage goes on as long as what it waits for has been sent.
        while any(one is not None for one in following):
            for number, stage in enumerate(stages):
                while (task := following[number]) is not None and (task.needs is None or task.needs in sent):
                    stage.run(task, sent)
                    following[number] = next(waiting[number], None)
        for stage in stages:
            stage.reduce_gradients()
        last = max(int(stage.arrival().max()) for stage in stages)
        for stage in stages:
            stage.end_step(last)
    for stage in stages:
        stage.finish()
    return stages


def mean_step_ms(job: LargeJob) -> float:
    """How long a step after the first takes on average."""
    return float(simulated(job)[0].steps_of(0)["dur_ns"][1:].mean()) / 1e6


@dataclass(frozen=True)
class _Task:
    """The forward or backward pass of a microbatch in a stage: what it needs, and sends, as (direction, microbatch, stage
    that sends)."""

    blocks: int
    kernels: int
    needs: tuple[str, int, int] | None
    sends: tuple[str, int, int] | None


@dataclass
class Stage:
    """A pipeline stage: the tables of its R ranks, as [tensor · data], so far."""

    job: LargeJob
    number: int
    rng: np.random.Generator
    pieces: list[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]] = field(default_factory=list)
    """Rows: their start and duration on each rank, ns, int64[rows, R], and the columns that all ranks share."""
    step_starts: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        ranks = self.job.tensor * self.job.data
        self.cpu, self.gpu = np.full(ranks, BEGIN_NS), np.full(ranks, BEGIN_NS)
        self.slower = np.ones(ranks)
        slow_stage, slow_at = divmod(self.job.slow_rank, ranks)
        if slow_stage == self.number:
            self.slower[slow_at] = self.job.slow_compute
        self.transfer = np.ones(ranks)
        tensor, data = self.job.slow_link
        self.transfer[data * self.job.tensor + tensor] = self.job.slow_transfer
        self.step, self.correlation = 0, 1
        self.sequence = dict.fromkeys(_LINKS, 0)

    def tasks(self) -> Iterator[_Task]:
        """The passes of a step, in the order of 1F1B."""
        ahead = min(self.job.pipeline - self.number - 1, self.job.microbatches)
        for microbatch in range(ahead):
            yield self._task("forward", microbatch)
        for microbatch in range(self.job.microbatches):
            if microbatch + ahead < self.job.microbatches:
                yield self._task("forward", microbatch + ahead)
            yield self._task("backward", microbatch)

    def _task(self, direction: str, microbatch: int) -> _Task:
        before, after = (self.number - 1, self.number + 1)[:: 1 if direction == "forward" else -1]
        stages, kernels = range(self.job.pipeline), self.job.kernels * (1 if direction == "forward" else 2)
        return _Task(
            self.job.blocks,
            kernels,
            (direction, microbatch, before) if before in stages else None,
            (direction, microbatch, self.number) if after in stages else None,
        )

    def begin_step(self, step: int) -> None:
        self.step = step
        self.step_starts.append(self.cpu.copy())

    def run(self, task: _Task, sent: dict[tuple[str, int, int], np.ndarray]) -> None:
        """Run a pass: receive, compute, send; then the CPU waits for the GPU. `sent` tells when each transfer began."""
        if task.needs is not None:
            ready, _, other = sent[task.needs], *task.needs[1:]
            self._communicate("pipeline", "recv", other, lambda arrived: np.maximum(arrived, ready))
        for _ in range(task.blocks):
            self._compute(task.kernels)
            self._communicate("tensor", "all_reduce", None, self._last_of_tensor_group)
        if task.sends is not None:
            other = self.number + (1 if task.sends[0] == "forward" else -1)
            sent[task.sends] = self._communicate("pipeline", "send", other, lambda arrived: arrived)
        self._synchronize()

    def reduce_gradients(self) -> None:
        self._communicate("data", "all_reduce", None, self._last_of_data_group)

    def end_step(self, last: int) -> None:
        """All-reduce the norm of the gradients over all ranks, the last of which arrives at `last`, and update."""
        self._communicate("world", "all_reduce", None, lambda arrived: np.full_like(arrived, last))
        self._compute(self.job.kernels)
        self._synchronize()

    def _last_of_tensor_group(self, arrived: np.ndarray) -> np.ndarray:
        return np.repeat(arrived.reshape(self.job.data, self.job.tensor).max(axis=1), self.job.tensor)

    def _last_of_data_group(self, arrived: np.ndarray) -> np.ndarray:
        return np.tile(arrived.reshape(self.job.data, self.job.tensor).max(axis=0), self.job.data)

    def _compute(self, count: int) -> None:
        """So many operations, each of which launches a kernel."""
        which, number = np.arange(count) % len(_KERNELS), np.arange(count)[:, None]
        begin = self.cpu + _PERIOD_NS * number
        scatter = self.rng.lognormal(0, _SCATTER, (count, len(self.cpu)))
        took = np.rint(_KERNEL_NS * scatter * self.slower).astype(np.int64)
        before = np.cumsum(took, axis=0) - took
        # A kernel begins with the last of: its own launch, and each one before it followed by the kernels from there on.
        ready = np.maximum.accumulate(self._launched(begin) - before, axis=0)
        start = np.maximum(ready, self.gpu) + before
        correlation = self.correlation + np.arange(count)
        self._call(begin, np.array(_OPERATIONS)[which], correlation)
        self._add(start, took, name=np.array(_KERNELS)[which], kind=_KERNEL, stream=_STREAM, correlation=correlation)
        self.cpu, self.gpu = self.cpu + _PERIOD_NS * count, start[-1] + took[-1]
        self.correlation += count

    def _communicate(
        self, link: str, word: str, other: int | None, meet: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """A collective, or a message to or from the stage `other`, on a `link`; when each rank arrives. `meet` gives when
        the transfer begins on each rank, from when it arrives."""
        begin = self.cpu[None, :]
        arrived = self.arrival()
        passed = meet(arrived)
        slower = self.transfer if other is not None and {other, self.number} == {0, 1} else 1.0
        end = passed + np.rint(_TRANSFER_NS[link] * slower * np.ones(len(passed))).astype(np.int64)
        correlation = np.array([self.correlation])
        self._call(begin, np.array([_COMM]), correlation)
        self._add(
            arrived[None, :],
            (end - arrived)[None, :],
            name=np.array([_ALL_REDUCE if other is None else _SEND_RECV]),
            kind=_COLLECTIVE,
            stream=_STREAM,
            correlation=correlation,
            group=_GROUPS.index(link) if link in _GROUPS else -1,
            coll_seq=self.sequence[link],
            collective=_WORDS.index(word),
            stage=-1 if other is None else other,
            bytes=_BYTES[link],
        )
        self.cpu, self.gpu = self.cpu + _PERIOD_NS, end
        self.correlation += 1
        self.sequence[link] += 1
        return arrived

    def _synchronize(self) -> None:
        done = np.maximum(self.cpu + _LAUNCH_NS, self.gpu + _LATENCY_NS)
        self._add(self.cpu[None, :], (done - self.cpu)[None, :], name=np.array([_SYNC]), kind=_RUNTIME)
        self.cpu = done + _LATENCY_NS

    def arrival(self) -> np.ndarray:
        """When the next kernel of each rank may begin."""
        return np.maximum(self._launched(self.cpu), self.gpu)

    def _launched(self, begin: np.ndarray) -> np.ndarray:
        """When what operations that `begin` then launch may start."""
        return begin + _LATENCY_NS + _LAUNCH_NS + _LATENCY_NS

    def _call(self, begin: np.ndarray, name: np.ndarray, correlation: np.ndarray) -> None:
        """Operations with a launch in each."""
        self._add(begin, np.full_like(begin, _CALL_NS), name=name, kind=_OP)
        launch = begin + _LATENCY_NS
        self._add(launch, np.full_like(begin, _LAUNCH_NS), name=_LAUNCH, kind=_RUNTIME, correlation=correlation)

    def _add(self, start: np.ndarray, took: np.ndarray, **columns: np.ndarray | int) -> None:
        """Add rows, int64[rows, R] each, with the columns that all ranks share; others are -1."""
        names = ("name", "kind", "stream", "correlation", "group", "coll_seq", "collective", "stage", "bytes")
        shared = {name: np.broadcast_to(np.asarray(columns.get(name, -1)), len(start)) for name in names}
        self.pieces.append((start, took, shared | {"step": np.full(len(start), self.step)}))

    def finish(self) -> None:
        """Join the rows."""
        starts, durations, columns = zip(*self.pieces, strict=True)
        self.pieces.clear()
        self.start, self.took = np.concatenate(starts).T.copy(), np.concatenate(durations).T.copy()
        self.columns = {name: np.concatenate([one[name] for one in columns]) for name in columns[0]}

    def steps_of(self, at: int) -> dict[str, Any]:
        """The table of the steps of one rank."""
        border = np.array([*(start[at] for start in self.step_starts), self.cpu[at]])
        return {
            "step": np.arange(1, len(border)),
            "start_ns": border[:-1],
            "dur_ns": np.diff(border),
            "phase": ["timed"] * (len(border) - 1),
        }

    def table_of(self, rank: int, at: int) -> dict[str, np.ndarray | pa.Array]:
        """The table of the events of one rank, the one at this position in the stage."""
        order = np.argsort(self.start[at], kind="stable")
        columns = {name: values[order] for name, values in self.columns.items()}
        on_cpu = columns["stream"] < 0
        peer = np.where(columns["stage"] >= 0, rank + (columns["stage"] - self.number) * len(self.cpu), -1)
        is_collective = columns["collective"] >= 0
        groups = (_tensor_group(self.job, rank), _data_group(self.job, rank), _world(self.job))
        process = np.full(len(order), 10_000 + rank)
        return {
            "name": _text(columns["name"], _NAMES),
            "kind": _text(columns["kind"], _KINDS),
            "start_ns": self.start[at, order],
            "dur_ns": self.took[at, order],
            "pid": process,
            "tid": pa.array(process, mask=~on_cpu),
            "thread_role": _text(np.where(on_cpu, 0, -1), ("main",)),
            "device": pa.array(np.full(len(order), rank % _GPUS_OF_HOST, np.int32), mask=on_cpu),
            "stream": _known(columns["stream"]),
            "correlation": _known(columns["correlation"]),
            "step": columns["step"].astype(np.int32),
            "group": _text(columns["group"], [group.name for group in groups]),
            "coll_seq": _known(columns["coll_seq"]),
            "collective": _text(columns["collective"], _WORDS),
            "is_p2p": pa.array(peer >= 0, mask=~is_collective),
            "peer": pa.array(peer.astype(np.int32), mask=peer < 0),
            "in_bytes": _known(columns["bytes"]),
            "out_bytes": _known(columns["bytes"]),
        }


def _tensor_group(job: LargeJob, rank: int) -> Group:
    first = rank - rank % job.tensor
    return _group(range(first, first + job.tensor), "tensor parallel")


def _data_group(job: LargeJob, rank: int) -> Group:
    of_stage = job.tensor * job.data
    stage, at = divmod(rank, of_stage)
    first = stage * of_stage + at % job.tensor
    return _group(range(first, (stage + 1) * of_stage, job.tensor), "data parallel")


def _world(job: LargeJob) -> Group:
    return _group(range(job.ranks), "world")


def _group(ranks: range, what: str) -> Group:
    return Group(name=group_name(ranks), ranks=tuple(ranks), backend="nccl", description=what)


def _text(codes: np.ndarray, texts: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=codes < 0), list(texts))


def _known(values: np.ndarray) -> pa.Array:
    return pa.array(values.astype(np.int64), mask=values < 0)
