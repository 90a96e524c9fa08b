"""Pipelines: each rank holds as many layers, and passes activations on and gradients back, batch by batch."""

from benchmarks.known.build import US, Thread
from benchmarks.known.comms import Group
from benchmarks.known.shapes.parts import Layer, Script, model
from benchmarks.known.shapes.sketch import Sketch, link


def one_forward_one_backward(sketch: Sketch) -> list[Group]:
    """1F1B: each stage runs ahead by as many batches as there are stages after it."""
    return _pipeline(sketch, chunks=1)


def interleaved(sketch: Sketch) -> list[Group]:
    """Each rank holds two stages, so a batch passes all ranks twice; forward, then backward of all batches."""
    return _pipeline(sketch, chunks=2)


def _pipeline(sketch: Sketch, chunks: int) -> list[Group]:
    world = sketch.build.world
    layers = [
        model(sketch.rng, int(sketch.rng.integers(1, 4)), width_ns=sketch.width_ns) for _ in range(world * chunks)
    ]
    batches = int(sketch.rng.integers(world, 2 * world + 1))
    nbytes = int(sketch.rng.integers(1, 6)) << 20
    group = Group("0", "default_pg", sketch.everyone, 24, link(sketch), numbered=sketch.numbered)

    def step(script: Script, number: int) -> None:
        stage = _Stages(script, layers, group, nbytes, script.scale(number))
        ahead = min(batches, world - 1 - script.rank)
        if chunks > 1:
            for chunk in range(chunks):
                for _ in range(batches):
                    stage.forward(chunk)
            for chunk in reversed(range(chunks)):
                for _ in range(batches):
                    stage.backward(chunk)
        else:
            for _ in range(ahead):
                stage.forward(0)
            for _ in range(batches - ahead):
                stage.forward(0)
                stage.backward(0)
            for _ in range(ahead):
                stage.backward(0)
        script.main.wait(group.start(script.main, "all_reduce", 4))
        script.optimize([layer for chunk in range(chunks) for layer in layers[chunk * world + script.rank]])

    sketch.write(step)
    return [group]


class _Stages:
    """The stages of one rank in one step."""

    def __init__(self, script: Script, layers: list[list[Layer]], group: Group, nbytes: int, scale: float) -> None:
        self.script, self.layers, self.group, self.nbytes, self.scale = script, layers, group, nbytes, scale
        self.main: Thread = script.main
        self.world = script.main.build.world
        self.last = len(layers) - 1

    def forward(self, chunk: int) -> None:
        stage = chunk * self.world + self.script.rank
        if stage:
            self.main.wait(self.group.receive(self.main, (stage - 1) % self.world, self.nbytes))
        for layer in self.layers[stage]:
            self.script.forward(layer, self.scale)
        if stage < self.last:
            self.group.send(self.main, (stage + 1) % self.world, self.nbytes)
        self.main.busy(10 * US)

    def backward(self, chunk: int) -> None:
        stage = chunk * self.world + self.script.rank
        if stage < self.last:
            self.main.wait(self.group.receive(self.main, (stage + 1) % self.world, self.nbytes))
        with self.script.backward() as autograd:
            for layer in reversed(self.layers[stage]):
                self.script.gradient(autograd, layer, self.scale)
        if stage:
            self.group.send(self.main, (stage - 1) % self.world, self.nbytes)
