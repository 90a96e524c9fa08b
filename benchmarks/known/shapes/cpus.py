"""Jobs that compute on CPUs and communicate with gloo."""

from benchmarks.known.build import US, Link
from benchmarks.known.comms import Gloo, Group
from benchmarks.known.shapes.parts import Script, model
from benchmarks.known.shapes.sketch import Sketch


def gloo(sketch: Sketch) -> list[Group]:
    """DDP on CPUs: backward on the thread that calls the autograd engine, buckets reduced concurrently by gloo's threads."""
    sketch.build.device = None
    layers = model(sketch.rng, int(sketch.rng.integers(4, 9)), width_ns=4 * sketch.width_ns)
    handling = float(sketch.rng.choice([0.1, 0.3, 0.8]))
    link = Link(round(float(sketch.rng.uniform(80, 300)) * US), float(sketch.rng.uniform(1, 12)), handling)
    group = Gloo("0", sketch.everyone, link)

    def step(script: Script, number: int) -> None:
        main, scale = script.main, script.scale(number)
        for layer in layers:
            for op, _, ns in layer.kernels:
                with main.op("aten::linear"):
                    script.on_cpu("aten::addmm" if op == "aten::mm" else op, ns * scale)
        ends, waiting = [], 0
        for at, layer in enumerate(reversed(layers)):
            for op, _, ns in reversed(layer.kernels):
                name = op.removeprefix("aten::").title() + "Backward0"
                inner = "aten::mm" if op == "aten::bmm" else op
                with (
                    main.op(f"autograd::engine::evaluate_function: {name}"),
                    main.op(name),
                    main.op(inner, before=2 * ns * scale),
                ):
                    pass
            waiting += layer.bytes // 16
            if at % 3 == 2 or at == len(layers) - 1:
                ends.append(group.start(main, waiting))
                waiting = 0
        for end in ends:
            main.hold(end)
            script.on_cpu("torch.distributed.ddp.reducer::copy_bucket_to_grad", 40 * US)
        with main.annotation("Optimizer.step#SGD.step"):
            script.on_cpu("aten::_foreach_add_", 100 * US)

    sketch.write(step)
    return []
