"""Writes programs: what a line of a training script makes torch do on a thread and a stream, with durations drawn once."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from benchmarks.known.program import (
    MAIN,
    NOBODY,
    Await,
    Busy,
    Call,
    Close,
    Cost,
    CostId,
    GroupCollective,
    Instruction,
    Kernel,
    Kind,
    Ns,
    Open,
    Post,
    Program,
    Record,
    Step,
    Sync,
    Wait,
)

COMPUTE = 7
"""The stream that torch calls the default one."""
US = 1_000


@dataclass(frozen=True)
class Noise:
    """How durations scatter: the sigmas of lognormal factors, and how often something takes several times as long."""

    cpu: float = 0.15
    gpu: float = 0.02
    link: float = 0.05
    tails: float = 0.0


@dataclass(frozen=True)
class Plant:
    """A cause that makes one rank late: its work of one `kind` takes `factor` times as long, or `extra_ns` more a step."""

    rank: int
    kind: Kind
    factor: float = 1.0
    extra_ns: Ns = 0


@dataclass
class Build:
    """A program being written. `world` ranks; `device` None for jobs that compute on CPUs."""

    world: int
    rng: np.random.Generator
    noise: Noise = field(default_factory=Noise)
    plant: Plant | None = None
    device: str | None = "NVIDIA A100-SXM4-80GB"
    costs: list[Cost] = field(default_factory=list)
    collectives: list[GroupCollective] = field(default_factory=list)
    keyed: dict[object, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ranks = [Rank(self, number) for number in range(self.world)]

    def program(self, *, spacing_ns: Ns = 0, queue: int = 1024) -> Program:
        threads = tuple({name: tuple(one.code) for name, one in rank.threads.items()} for rank in self.ranks)
        devices = (self.device,) * self.world if self.device else ()
        return Program(threads, tuple(self.costs), tuple(self.collectives), devices, spacing_ns, queue)

    @contextmanager
    def apart(self, *key: int) -> Iterator[None]:
        """Draw what is written within by the key alone: whatever it is, all else is drawn as it would be without it. Links
        do not scatter."""
        outside = self.rng, self.noise
        self.rng, self.noise = np.random.default_rng(key), replace(self.noise, link=0.0, tails=0.0)
        yield
        self.rng, self.noise = outside

    def cost(self, kind: Kind, rank: int, name: str, ns: float, scatter: float = 0.0) -> CostId:
        drawn = ns * float(self.rng.lognormal(0, scatter)) if scatter else ns
        if self.noise.tails and kind is not Kind.KERNEL and self.rng.random() < self.noise.tails:
            drawn *= float(self.rng.uniform(3, 15))
        whole, excess = round(drawn), 0
        if self.plant and rank == self.plant.rank and kind is self.plant.kind:
            excess = round(whole * (self.plant.factor - 1))
        self.costs.append(Cost(kind, rank, name, whole + excess, excess))
        return len(self.costs) - 1

    def collective(self, key: object, members: tuple[int, ...], name: str, link: "Link", nbytes: int) -> int:
        """Number of the collective with that key; the first caller draws its durations."""
        if key not in self.keyed:
            self.keyed[key] = len(self.collectives)
            handling = tuple(
                self.cost(Kind.HANDLING, rank, name, link.handling_ns_per_byte * nbytes, self.noise.cpu)
                for rank in (members if link.handling_ns_per_byte else ())
            )
            latency = self.cost(Kind.LATENCY, NOBODY, name, link.latency_ns)
            carried = self.cost(Kind.BYTES, NOBODY, name, nbytes / link.bytes_per_ns, self.noise.link)
            self.collectives.append(GroupCollective(members, latency, carried, handling))
        return self.keyed[key]


@dataclass(frozen=True)
class Link:
    latency_ns: Ns = 20 * US
    bytes_per_ns: float = 100.0
    handling_ns_per_byte: float = 0.0


class Rank:
    """The threads of one rank and their shared state."""

    def __init__(self, build: Build, number: int) -> None:
        self.build, self.number = build, number
        self.threads: dict[str, Thread] = {}
        self.events, self.flags = count(), count()
        self.sequence: dict[object, int] = defaultdict(int)

    def thread(self, name: str = MAIN) -> "Thread":
        return self.threads.setdefault(name, Thread(self, name))


class Thread:
    """Writes the code of one CPU thread. Durations are means; each one is drawn at random."""

    def __init__(self, rank: Rank, name: str) -> None:
        self.rank, self.build, self.name = rank, rank.build, name
        self.code: list[Instruction] = []
        self.open: list[str] = []

    def cost(self, kind: Kind, name: str, ns: float, scatter: float) -> CostId:
        return self.build.cost(kind, self.rank.number, name, ns, scatter)

    @contextmanager
    def op(
        self, name: str, before: float = 3 * US, after: float = US, args: Mapping[str, object] | None = None
    ) -> Iterator[None]:
        """An operation that takes `before` until what is within begins, and `after` when it has ended."""
        self.code.append(Open(name, "cpu_op", args or {}))
        self.open.append(name)
        self.busy(before)
        yield
        self.busy(after)
        self.open.pop()
        self.code.append(Close())

    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        self.code.append(Open(name, "user_annotation"))
        yield
        self.code.append(Close())

    def busy(self, ns: float) -> None:
        """Work of the operation that is open; outside of any, Python code of which nothing is recorded."""
        kind = Kind.CPU if self.open else Kind.GAP
        name = self.open[-1] if self.open else "python"
        if ns:
            self.code.append(Busy(self.cost(kind, name, ns, self.build.noise.cpu)))

    def sleep(self, ns: float, excess: Ns = 0) -> None:
        """Nothing recorded for exactly that long, of which a planted cause made `excess`."""
        self.build.costs.append(Cost(Kind.GAP, self.rank.number, "sleep", round(ns) + excess, excess))
        self.code.append(Busy(len(self.build.costs) - 1))

    def step(self, number: int | None) -> None:
        self.code.append(Step(number))

    def call(
        self,
        name: str,
        *commands: Kernel | Record | Wait,
        ns: float = 5 * US,
        kind: Kind = Kind.CPU,
        category: str = "cuda_runtime",
    ) -> None:
        cost = self.cost(kind, name, ns, self.build.noise.cpu)
        delay = -1
        if any(isinstance(command, Kernel) for command in commands):
            delay = self.build.cost(Kind.DELAY, self.rank.number, name, 2 * US, 0.1)
        self.code.append(Call(name, cost, commands, delay, category))

    def work(self, name: str, ns: float, stream: int = COMPUTE, kind: Kind = Kind.KERNEL) -> Kernel:
        """A kernel to be launched: for `launch`, or for a graph."""
        return Kernel(stream, name, self.cost(kind, name, ns, self.build.noise.gpu))

    def launch(self, kernel: Kernel, call: str = "cudaLaunchKernel") -> None:
        self.call(
            call, kernel, category="cuda_driver" if call.startswith("cu") and call[2].isupper() else "cuda_runtime"
        )

    def graph(self, commands: Sequence[Kernel | Record | Wait]) -> None:
        """Launch a CUDA graph: one call for all that it holds."""
        self.call("cudaGraphLaunch", *commands, ns=12 * US)

    def compute(self, op: str, *kernels: tuple[str, float], stream: int = COMPUTE, cpu: float = 12 * US) -> None:
        """An operation that launches kernels."""
        with self.op(op, before=cpu * 0.7, after=cpu * 0.3):
            for name, ns in kernels:
                self.launch(self.work(name, ns, stream))

    def record(self, stream: int = COMPUTE) -> int:
        event = next(self.rank.events)
        self.call("cudaEventRecord", Record(event, stream), ns=US)
        return event

    def wait(self, event: int, stream: int = COMPUTE) -> None:
        self.call("cudaStreamWaitEvent", Wait(stream, event), ns=US)

    def sync(
        self, *, event: int = -1, stream: int = -1, kind: Kind = Kind.CPU, name: str = "", ns: float = 4 * US
    ) -> None:
        if not name:
            name = "Event" if event >= 0 else "Stream" if stream >= 0 else "Device"
            name = f"cuda{name}Synchronize"
        self.code.append(Sync(name, self.cost(kind, name, ns, self.build.noise.cpu), event, stream))

    def copy(self, direction: str, nbytes: int, stream: int = COMPUTE) -> None:
        """`HtoD` or `DtoH`, of pinned memory."""
        names = {"HtoD": "Memcpy HtoD (Pinned -> Device)", "DtoH": "Memcpy DtoH (Device -> Pinned)"}
        cost = self.cost(Kind.COPY, names[direction], 1.5 * US + nbytes / 20, self.build.noise.gpu)
        copy = Kernel(stream, names[direction], cost, -1, "gpu_memcpy", {"bytes": nbytes})
        self.call("cudaMemcpyAsync", copy, ns=7 * US)

    def item(self, stream: int = COMPUTE) -> None:
        with self.op("aten::item"), self.op("aten::_local_scalar_dense"):
            if self.build.device:
                self.copy("DtoH", 4, stream)
                self.sync(stream=stream)

    def post(self) -> int:
        flag = next(self.rank.flags)
        self.code.append(Post(flag))
        return flag

    def hold(self, flag: int) -> None:
        """Until the flag is up, and then the time that waking up takes."""
        self.code.append(Await(flag))
        self.busy(8 * US)
