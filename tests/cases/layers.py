"""Layers with times made by hand or at random, and a plain search over all ways to split them."""

import random
from collections.abc import Iterator

from esprof.analyzers.advisors.job.growth import Model
from esprof.analyzers.advisors.parallel.problem import Problem, Recompute, Split, Stage
from esprof.analyzers.advisors.parallel.profile import Devices, Layer, LayerProfile, PassTimes


def layer(name: str, forward_us: float = 10.0, kind: str = "V100", **sizes: int) -> Layer:
    """A layer whose backward takes twice its forward, half of that for weights."""
    sizes = {"output_bytes": 0, "parameter_bytes": 0} | sizes
    times = PassTimes(forward_us=forward_us, backward_us=2 * forward_us, weights_us=forward_us)
    return Layer(name=name, times={kind: times}, **sizes)


def random_problem(seed: int) -> Problem:
    """Up to five layers on up to five devices of two types, most of them with too little memory for all layers."""
    draw = random.Random(seed)
    layers = tuple(
        Layer(
            name=str(number),
            times={
                kind: PassTimes(forward_us=draw.uniform(1, 9) * speed, backward_us=draw.uniform(1, 20) * speed)
                for kind, speed in (("fast", 1.0), ("slow", 2.0))
            },
            output_bytes=draw.randrange(20_000),
            kept_bytes=draw.randrange(50_000),
            parameter_bytes=draw.randrange(100_000),
        )
        for number in range(draw.randint(1, 5))
    )
    memory_gb = {kind: draw.choice((1.5e-4, 4e-4, 2e-3)) for kind in ("fast", "slow")}
    devices = Devices(
        devices={kind: Model(count=count, memory_gb=memory_gb[kind]) for kind, count in _counts(draw).items()},
        network_gb_per_s=draw.choice((1.0, 10.0)),
        server_gb_per_s=50.0,
        per_server=2,
    )
    profile = LayerProfile(layers=layers, optimizer_factor=draw.choice((0.0, 2.0)))
    return Problem.of(profile, devices, draw.choice((1, 3, 8)), draw.choice(list(Recompute)))


def every_split(problem: Problem) -> Iterator[Split]:
    """All splits that have the memory that 1F1B needs, found by plain recursion."""

    def from_layer(first: int, left: tuple[int, ...]) -> Iterator[Split]:
        if first == problem.layers:
            yield ()
        for end in range(first + 1, problem.layers + 1):
            for kind, there in enumerate(left):
                for replicas in range(1, there + 1):
                    rest = tuple(count - replicas * (kind == other) for other, count in enumerate(left))
                    used = range(problem.counts[kind] - there, problem.counts[kind] - there + replicas)
                    is_local = len({device // problem.per_server for device in used}) == 1
                    stage = Stage(first, end, kind, replicas, is_local)
                    yield from ((stage, *behind) for behind in from_layer(end, rest))

    def fits(split: Split) -> bool:
        held = [min(problem.microbatches, len(split) - place) for place in range(len(split))]
        needed = [problem.memory_bytes([stage], most) for stage, most in zip(split, held, strict=True)]
        return all(size <= problem.memory[stage.kind] for size, stage in zip(needed, split, strict=True))

    yield from filter(fits, from_layer(0, tuple(problem.counts.tolist())))


def _counts(draw: random.Random) -> dict[str, int]:
    return {"fast": draw.randint(1, 3), "slow": draw.randint(1, 2)}
