"""Common sections of the scripts of most jobs: models, batches, ends of steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from benchmarks.known.build import COMPUTE, US, Build, Thread
from benchmarks.known.program import AUTOGRAD, MAIN, Busy, Kind

MS = 1_000 * US

_KERNELS = (
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_nn_align8>",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::AddFunctor>>",
)
_OPS = ("aten::mm", "aten::gelu", "aten::native_layer_norm", "aten::bmm", "aten::add")


@dataclass(frozen=True)
class Layer:
    """The kernels of one layer: (operation, kernel, ns of work). Backward takes twice as long."""

    kernels: tuple[tuple[str, str, float], ...]
    bytes: int
    """Bytes of its parameters."""


@dataclass(frozen=True)
class Habits:
    """What a script does in each step in addition to its model; drawn for each job."""

    warmup: int = 2
    """Steps before the window."""
    steps: int = 6
    item_every: int = 1
    """Reads the loss at the end of every n-th step; 0 never."""
    event_sync: bool = False
    """Waits for an event of the previous step, like scripts that stay one step ahead."""
    workers: int | None = 0
    """Number of workers of the DataLoader; None if batches are already in memory."""
    batch_ns: int = 300 * US
    sleep_ns: int = 0
    """Unrecorded Python code, once per step."""
    uneven: float = 0.0
    """Relative extra work of one rank in each step; a different rank in each step."""
    cpu_per_op_ns: int = 12 * US
    allocator_ns: int = 0
    """Time of the allocator in each step for freeing memory, which waits for the device, and allocating more."""


def model(rng: np.random.Generator, layers: int, *, width_ns: float) -> list[Layer]:
    """Layers of some kernels each; the longest kernels take up to `width_ns`."""
    found = []
    for _ in range(layers):
        picked = rng.integers(0, len(_KERNELS), int(rng.integers(2, 5)))
        kernels = tuple((_OPS[at], _KERNELS[at], width_ns * float(rng.uniform(0.15, 1.0))) for at in picked)
        found.append(Layer(kernels, int(rng.integers(1, 24)) << 20))
    return found


@dataclass
class Script:
    """The training script of one rank, being written."""

    main: Thread
    habits: Habits
    events: list[int] = field(default_factory=list)
    batches: int = 0
    taken: list[int] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.main.rank.number

    def scale(self, number: int) -> float:
        """Work of this rank in a step relative to the other ranks."""
        world = self.main.build.world
        return 1 + (self.habits.uneven if self.habits.uneven and number % world == self.rank else 0.0)

    def forward(self, layer: Layer, scale: float = 1.0, stream: int = COMPUTE) -> None:
        for op, kernel, ns in layer.kernels:
            self.main.compute(op, (kernel, ns * scale), stream=stream, cpu=self.habits.cpu_per_op_ns)

    def on_cpu(self, op: str, ns: float) -> None:
        """An operation that computes where it is called."""
        with self.main.op(op, before=ns):
            pass

    @contextmanager
    def backward(self) -> Iterator[Thread]:
        """The thread that computes gradients while the main one waits."""
        autograd = self.main.rank.thread(AUTOGRAD)
        self.main.busy(20 * US)
        autograd.hold(self.main.post())
        yield autograd
        self.main.hold(autograd.post())

    def gradient(self, thread: Thread, layer: Layer, scale: float = 1.0, stream: int = COMPUTE) -> None:
        for op, kernel, ns in reversed(layer.kernels):
            name = op.removeprefix("aten::").title() + "Backward0"
            with thread.op(f"autograd::engine::evaluate_function: {name}"), thread.op(name, before=2 * US):
                thread.compute(op, (kernel, ns * 2 * scale), stream=stream, cpu=self.habits.cpu_per_op_ns)

    def optimize(self, layers: list[Layer], stream: int = COMPUTE) -> None:
        with self.main.annotation("Optimizer.step#AdamW.step"):
            self.main.busy(30 * US)
            for layer in layers[::4]:
                name = (
                    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
                )
                nbytes = 4 * layer.bytes
                self.main.compute("aten::_fused_adamw_", (name, max(2 * US, nbytes / 1500)), stream=stream)
        with self.main.annotation("Optimizer.zero_grad#AdamW.zero_grad"):
            self.main.busy(15 * US)

    def finish(self, number: int) -> None:
        """The end of a step: allocator, synchronization and sleeps."""
        if self.habits.allocator_ns and self.main.build.device:
            self.main.sync(kind=Kind.ALLOCATOR, name="cudaFree", ns=self.habits.allocator_ns / 2)
            self.main.call("cudaMalloc", kind=Kind.ALLOCATOR, ns=self.habits.allocator_ns / 2)
        if self.habits.item_every and number % self.habits.item_every == 0:
            self.main.item()
        if self.habits.event_sync and self.main.build.device:
            self.events.append(self.main.record())
            if len(self.events) > 1:
                self.main.sync(event=self.events[-2])
        self.main.busy(25 * US)
        plant = self.main.build.plant
        is_planted = plant is not None and plant.rank == self.rank and plant.kind is Kind.GAP
        extra = plant.extra_ns if plant and is_planted else 0
        if self.habits.sleep_ns or extra:
            self.main.sleep(self.habits.sleep_ns, extra)

    # Batches

    def batch(self, nbytes: int = 4 << 20) -> None:
        """The next batch, made here or by a worker, and copied to the device."""
        if self.habits.workers is None:
            return
        single = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        several = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        with self.main.annotation(several if self.habits.workers else single):
            if self.habits.workers:
                self._take()
            else:
                self._make(self.main)
                with self.main.op("aten::stack"), self.main.op("aten::cat", before=20 * US):
                    pass
        if self.main.build.device:
            with self.main.op("aten::to"), self.main.op("aten::_to_copy"), self.main.op("aten::copy_"):
                self.main.copy("HtoD", nbytes)

    def _make(self, thread: Thread) -> None:
        thread.code.append(Busy(thread.cost(Kind.LOAD, "batch", self.habits.batch_ns, 0.2)))

    def _take(self, prefetch: int = 2) -> None:
        """Take a batch; workers make batches in round-robin order, and each may have `prefetch` of them ready."""
        assert self.habits.workers
        worker = self.main.rank.thread(f"loader{self.batches % self.habits.workers}")
        ahead = self.habits.workers * prefetch
        if self.batches >= ahead:
            # The loader requests this batch when the batch `ahead` earlier has been taken.
            worker.hold(self.taken[self.batches - ahead])
        self._make(worker)
        self.main.hold(worker.post())
        self.taken.append(self.main.post())
        self.batches += 1


def scripts(build: Build, habits: Habits, body: Callable[[Script, int], None]) -> None:
    """Write all steps of all ranks; `body` writes one step of a script without its batch and its end."""
    for rank in build.ranks:
        script = Script(rank.thread(MAIN), habits)
        for number in range(habits.warmup + habits.steps):
            script.main.step(number)
            script.batch()
            body(script, number)
            script.finish(number)
        script.main.step(None)
        if build.device:
            script.main.sync()
