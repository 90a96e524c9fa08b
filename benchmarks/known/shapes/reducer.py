"""DDP gradient by gradient, like torch's reducer: buckets are closed by their bytes, and the accumulation of each gradient
is recorded. With other bucket sizes all other durations stay the same; each byte takes the same time in any bucket."""

from dataclasses import dataclass, replace

import numpy as np

from benchmarks.known.build import US, Thread
from benchmarks.known.comms import Group
from benchmarks.known.shapes.parts import Layer, Script, model
from benchmarks.known.shapes.sketch import Sketch, link

MIB = 1 << 20
USUAL_MB, FIRST_MB = 25, 1
"""Torch closes the first bucket at FIRST_MB and all others at USUAL_MB, unless a size is given: then all at that size."""

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_SCALE = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"


@dataclass(frozen=True)
class _Reducer:
    """`first` and `others` are the sizes, bytes, at which buckets are closed; `key` is the seed of their costs."""

    group: Group
    first: float
    others: float
    key: int
    shapes: bool
    """Whether operations record the shapes of their inputs."""

    def reduce(self, script: Script, layers: list[tuple[Layer, list[int]]], scale: float, number: int) -> None:
        """The backward pass of step `number` over layers, each with the bytes of its gradients."""
        ends: list[int] = []
        count = sum(len(sizes) for _, sizes in layers)
        slowness = self._slowness(script, count, number)
        held, carried, position = 0, 0.0, 0
        with script.backward() as autograd:
            for layer, sizes in reversed(layers):
                script.gradient(autograd, layer, scale)
                for size in sizes:
                    held, carried, position = held + size, carried + size * slowness[position], position + 1
                    with autograd.op(f"autograd::engine::evaluate_function: {_ACCUMULATE}", 2 * US):
                        self._accumulate(autograd, size)
                        if held >= (self.others if ends else self.first) or position == count:
                            with autograd.build.apart(self.key, number, position, script.rank):
                                ends.append(self._start(autograd, held, carried))
                            held, carried = 0, 0.0
            with autograd.build.apart(self.key, number, 0, script.rank):
                for end in ends:
                    autograd.wait(end)

    def _slowness(self, script: Script, count: int, number: int) -> list[float]:
        """ns that a byte of each gradient takes in step `number`: the same on all ranks, and in whatever bucket."""
        noise, rng = script.main.build.noise, np.random.default_rng((self.key, number))
        factors = rng.lognormal(0, noise.link, count) * np.where(
            rng.random(count) < noise.tails, rng.uniform(3, 15, count), 1.0
        )
        return (factors / self.group.link.bytes_per_ns).tolist()

    def _start(self, autograd: Thread, held: int, carried_ns: float) -> int:
        """Launch the all-reduce of `held` bytes, which take `carried_ns`; returns the event of its end."""
        link = replace(self.group.link, bytes_per_ns=held / carried_ns)
        return replace(self.group, link=link).start(autograd, "all_reduce", held)

    def _accumulate(self, autograd: Thread, size: int) -> None:
        elements = size // (2 if self.group.dtype == "BFloat16" else 4)
        described = {"Input Dims": [[elements]]} if self.shapes else {}
        with autograd.op(_ACCUMULATE, 3 * US, args=described):
            pass
        autograd.compute("aten::mul", (_SCALE, 2 * US + size / 1000))


def reducer(sketch: Sketch) -> list[Group]:
    """DDP whose single gradients are recorded; some scripts also average their loss over ranks."""
    rng = sketch.rng
    layers = model(rng, int(rng.integers(4, 13)), width_ns=sketch.width_ns)
    split = [_gradients(sketch, layer) for layer in layers]
    dtype = str(rng.choice(["BFloat16", "Float"]))
    group = Group("0", "default_pg", sketch.everyone, 24, link(sketch), dtype, numbered=sketch.numbered)
    usual = (FIRST_MB if rng.random() < 0.5 else USUAL_MB, USUAL_MB)
    first, others = (sketch.bucket_mb, sketch.bucket_mb) if sketch.bucket_mb else usual
    key, sketch.shapes = int(rng.integers(1 << 30)), bool(rng.random() < 0.7)
    ddp = _Reducer(group, first * MIB, others * MIB, key, sketch.shapes)
    averages = bool(rng.random() < 0.3)

    def step(script: Script, number: int) -> None:
        scale = script.scale(number)
        for layer in layers:
            script.forward(layer, scale)
        ddp.reduce(script, list(zip(layers, split, strict=True)), scale, number)
        if averages:
            script.main.wait(group.start(script.main, "all_reduce", 4))
        script.optimize(layers)

    sketch.write(step)
    return [group]


def _gradients(sketch: Sketch, layer: Layer) -> list[int]:
    """Bytes of the gradients of a layer: of a vector, and of one to three matrices."""
    matrices = int(sketch.rng.integers(1, 4))
    vector = 4 << int(sketch.rng.integers(8, 13))
    cuts = sorted(int(sketch.rng.integers(1, layer.bytes >> 12)) << 12 for _ in range(matrices - 1))
    return [vector, *(end - begin for begin, end in zip([0, *cuts], [*cuts, layer.bytes], strict=True) if end > begin)]
