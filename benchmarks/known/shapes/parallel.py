"""Jobs whose ranks do the same on their own batches: DDP, FSDP, ZeRO, tensor within data parallelism, mixtures of experts,
several compute streams."""

from collections.abc import Callable
from dataclasses import replace

from benchmarks.known.build import US, Thread
from benchmarks.known.comms import Group
from benchmarks.known.program import Kernel, Record, Wait
from benchmarks.known.shapes.parts import Layer, Script, model
from benchmarks.known.shapes.sketch import Sketch, link

_SIDE = 13
"""A second compute stream."""


def _layers(sketch: Sketch, least: int = 6, most: int = 13) -> list[Layer]:
    return model(sketch.rng, int(sketch.rng.integers(least, most)), width_ns=sketch.width_ns)


def _everyone(sketch: Sketch) -> Group:
    return Group("0", "default_pg", sketch.everyone, 24, link(sketch), numbered=sketch.numbered)


def buckets(
    script: Script,
    layers: list[Layer],
    group: Group,
    per_bucket: int,
    scale: float,
    before: Callable[[Thread], None] | None = None,
) -> None:
    """Backward as DDP does it: gradients of some layers each are reduced while those of the next are computed."""
    ends: list[int] = []
    filled: list[Layer] = []
    with script.backward() as autograd:
        for at, layer in enumerate(reversed(layers)):
            script.gradient(autograd, layer, scale)
            filled.append(layer)
            if len(filled) == per_bucket or at == len(layers) - 1:
                kernel = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"
                autograd.compute("aten::mul", (kernel, 8 * US))
                ends.append(group.start(autograd, "all_reduce", sum(one.bytes for one in filled)))
                filled.clear()
        for end in ends:
            autograd.wait(end)


def ddp(sketch: Sketch) -> list[Group]:
    """Gradients in buckets, reduced during the backward pass."""
    layers, group = _layers(sketch), _everyone(sketch)
    per_bucket = int(sketch.rng.integers(2, 5))

    def step(script: Script, number: int) -> None:
        scale = script.scale(number)
        for layer in layers:
            script.forward(layer, scale)
        buckets(script, layers, group, per_bucket, scale)
        script.optimize(layers)

    sketch.write(step)
    return [group]


def fsdp(sketch: Sketch) -> list[Group]:
    """Parameters are gathered one layer ahead, gradients scattered, each on a stream of its own."""
    return _sharded(sketch, apart=True)


def queue(sketch: Sketch) -> list[Group]:
    """Like `fsdp`, but in one process group, whose stream runs all collectives in order; `sketch.apart` separates kinds."""
    return _sharded(sketch, apart=sketch.apart)


def _sharded(sketch: Sketch, *, apart: bool) -> list[Group]:
    layers = _layers(sketch, 5, 10)
    gather = _everyone(sketch)
    scatter = gather
    if apart:
        scatter = Group("1", "reduce_scatter", sketch.everyone, 28, gather.link, numbered=sketch.numbered)

    def step(script: Script, number: int) -> None:
        scale = script.scale(number)
        _gathered(script.main, gather, layers, lambda layer: script.forward(layer, scale))
        ends: list[int] = []
        with script.backward() as autograd:

            def back(layer: Layer) -> None:
                script.gradient(autograd, layer, scale)
                # Before a third scatter begins, the buffers of the first are needed again.
                if len(ends) > 1:
                    autograd.wait(ends[-2], scatter.stream)
                ends.append(scatter.start(autograd, "reduce_scatter", layer.bytes))

            _gathered(autograd, gather, layers[::-1], back)
            autograd.wait(ends[-1])
        script.optimize(layers)

    sketch.write(step)
    return [gather, scatter] if apart else [gather]


def _gathered(thread: Thread, group: Group, layers: list[Layer], use: Callable[[Layer], None]) -> None:
    """Use each layer when its parameters have come; those of the next are asked for before."""
    coming = group.start(thread, "all_gather", layers[0].bytes)
    for at, layer in enumerate(layers):
        mine = coming
        if at + 1 < len(layers):
            coming = group.start(thread, "all_gather", layers[at + 1].bytes)
        thread.wait(mine)
        use(layer)


def zero(sketch: Sketch) -> list[Group]:
    """Optimizer states in shares: gradients scattered at the end of backward, parameters gathered after the step."""
    layers, group = _layers(sketch), _everyone(sketch)

    def step(script: Script, number: int) -> None:
        scale = script.scale(number)
        for layer in layers:
            script.forward(layer, scale)
        with script.backward() as autograd:
            for layer in reversed(layers):
                script.gradient(autograd, layer, scale)
        halves = (layers[: len(layers) // 2], layers[len(layers) // 2 :])
        for half in halves:
            script.main.wait(group.start(script.main, "reduce_scatter", sum(layer.bytes for layer in half)))
        script.optimize(layers[:2])
        for half in halves:
            script.main.wait(group.start(script.main, "all_gather", sum(layer.bytes for layer in half)))

    sketch.write(step)
    return [group]


def tensor(sketch: Sketch) -> list[Group]:
    """Two ranks share each layer and add up what they have after it; those with the same share reduce gradients."""
    layers = _layers(sketch, 5, 9)
    pairs = [(rank, rank + 1) for rank in range(0, sketch.build.world, 2)]
    shares = [tuple(range(share, sketch.build.world, 2)) for share in (0, 1)]
    near, far = link(sketch, 0.3), link(sketch)
    tp = [Group(f"{1 + at}", "tp", ranks, 24, near, numbered=sketch.numbered) for at, ranks in enumerate(pairs)]
    dp = [Group(f"{11 + at}", "dp", ranks, 28, far, numbered=sketch.numbered) for at, ranks in enumerate(shares)]

    def step(script: Script, number: int) -> None:
        inner, outer = tp[script.rank // 2], dp[script.rank % 2]
        scale = script.scale(number)
        for layer in layers:
            script.forward(layer, scale)
            script.main.wait(inner.start(script.main, "all_reduce", layer.bytes // 4))
        ends = []
        with script.backward() as autograd:
            for at, layer in enumerate(reversed(layers)):
                script.gradient(autograd, layer, scale)
                end = inner.start(autograd, "all_reduce", layer.bytes // 4)
                if at % 3 == 2 or at == len(layers) - 1:
                    ends.append(outer.start(autograd, "all_reduce", 2 * layer.bytes))
                autograd.wait(end)
            for end in ends:
                autograd.wait(end)
        script.optimize(layers)

    sketch.write(step)
    return [*tp, *dp]


def experts(sketch: Sketch) -> list[Group]:
    """Tokens go to experts on other ranks and come back, in forward and backward."""
    layers, group = _layers(sketch, 4, 8), _everyone(sketch)
    tokens = int(sketch.rng.integers(1, 8)) << 20

    def step(script: Script, number: int) -> None:
        scale = script.scale(number)
        for layer in layers:
            script.main.wait(group.start(script.main, "all_to_all", tokens))
            script.forward(layer, scale)
            script.main.wait(group.start(script.main, "all_to_all", tokens))
        with script.backward() as autograd:
            for layer in reversed(layers):
                autograd.wait(group.start(autograd, "all_to_all", tokens))
                script.gradient(autograd, layer, scale)
                autograd.wait(group.start(autograd, "all_to_all", tokens))
            autograd.wait(group.start(autograd, "all_reduce", layers[0].bytes))
        script.optimize(layers)

    sketch.write(step)
    return [group]


def streams(sketch: Sketch) -> list[Group]:
    """DDP whose model computes a branch of every other layer on a second stream."""
    layers, group = _layers(sketch), _everyone(sketch)

    def step(script: Script, number: int) -> None:
        scale = script.scale(number)
        for at, layer in enumerate(layers):
            if at % 2:
                script.main.wait(script.main.record(), _SIDE)
                script.forward(layer, 0.6 * scale, _SIDE)
                script.forward(layer, 0.8 * scale)
                script.main.wait(script.main.record(_SIDE))
            else:
                script.forward(layer, scale)
        buckets(script, layers, group, 3, scale)
        script.optimize(layers)

    sketch.write(step)
    return [group]


def backlog(sketch: Sketch) -> list[Group]:
    """A script that waits for nothing and is soon as far ahead of its GPU as the queue of launches allows."""
    layers, group = model(sketch.rng, 12, width_ns=60 * US), _everyone(sketch)
    sketch.habits = replace(
        sketch.habits,
        # Under a what-if that leaves little between GPU and CPU, too, the queue has to be full by the first recorded step.
        warmup=60,
        item_every=0,
        event_sync=False,
        workers=None,
        sleep_ns=0,
        cpu_per_op_ns=4 * US,
        allocator_ns=0,
    )

    def step(script: Script, number: int) -> None:
        scale = script.scale(number)
        for _ in range(3):
            for layer in layers:
                script.forward(layer, scale)
        buckets(script, layers, group, 4, scale)
        script.optimize(layers)

    sketch.write(step)
    return [group]


def graphs(sketch: Sketch) -> list[Group]:
    """The whole step, including its all-reduces, is one CUDA graph; each batch is copied into its input."""
    layers, group = _layers(sketch), _everyone(sketch)

    def step(script: Script, number: int) -> None:
        scale, main = script.scale(number), script.main
        body = captured(main, layers, group, scale)
        kernel = "void at::native::vectorized_elementwise_kernel<4, at::native::direct_copy_kernel_cuda>"
        main.compute("aten::copy_", (kernel, 4 * US), cpu=30 * US)
        main.graph(body)

    sketch.write(step)
    return [group]


def pieces(sketch: Sketch) -> list[Group]:
    """Layers as CUDA graphs with eager code between them, like decoding in inference servers; tensor parallel over all."""
    layers, group = _layers(sketch), _everyone(sketch)

    def step(script: Script, number: int) -> None:
        main, scale = script.main, script.scale(number)
        for layer in layers:
            main.graph(tuple(main.work(kernel, ns * scale) for _, kernel, ns in layer.kernels))
            main.compute(
                "vllm::unified_attention", ("flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>", sketch.width_ns)
            )
            main.wait(group.start(main, "all_reduce", 1 << 18))

    sketch.write(step)
    return [group]


def captured(main: Thread, layers: list[Layer], group: Group, scale: float) -> list[Kernel | Record | Wait]:
    """The commands of a whole step: forward, backward, and gradients reduced concurrently."""
    commands: list[Kernel | Record | Wait] = [
        main.work(name, ns * scale) for layer in layers for _, name, ns in layer.kernels
    ]
    ends = []
    for at, layer in enumerate(reversed(layers)):
        commands += [main.work(name, 2 * ns * scale) for _, name, ns in reversed(layer.kernels)]
        if at % 3 == 2 or at == len(layers) - 1:
            reduced, end = group.captured(main, "all_reduce", 3 * layer.bytes)
            commands += reduced
            ends.append(end)
    return [*commands, *ends]
