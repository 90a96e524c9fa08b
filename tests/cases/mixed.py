"""Profiles of layers by type, microbatch and tensor degree: made by hand in the published form, or at random; and a plain
search over all plans."""

import json
import random
from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

from esprof.analyzers.advisors.job.growth import Model
from esprof.analyzers.advisors.parallel.mixed.pricing import MixedPricing
from esprof.analyzers.advisors.parallel.mixed.profile import MixedPlan, MixedProfile, MixedStage, Replica, ShardSizes
from esprof.analyzers.advisors.parallel.mixed.search import Cut, cuts
from esprof.analyzers.advisors.parallel.profile import Devices

LAYERS = 4


def published_times(**speed: float) -> dict[str, Any]:
    """Times of a model `tiny` on types as fast as given, by microbatch (2), tensor degree (1, 2) and layer: s."""
    return {
        "tiny": {
            kind: {
                "2": {
                    str(tensor): {
                        str(layer): [0.001 / fast / tensor, 0.002 / fast / tensor, 0.0001] for layer in range(LAYERS)
                    }
                    for tensor in (1, 2)
                }
            }
            for kind, fast in speed.items()
        }
    }


def published_sizes() -> dict[str, Any]:
    """Sizes of its layers, by tensor degree."""
    one = {"params_floats": 1, "act_output_floats": 1, "act_output_bytes": 1_000}
    return {
        "tiny": {
            str(tensor): {
                str(layer): one | {"params_bytes": 8_000 // tensor, "act_mem_bytes": 4_000 // tensor}
                for layer in range(LAYERS)
            }
            for tensor in (1, 2)
        }
    }


def published_plan(*stages: tuple[list[int], list[tuple[str, int]]], **more: Any) -> dict[str, Any]:
    """A plan whose stages have these layers and replicas (type, tensor degree)."""
    pipeline = {
        "num_stages": len(stages),
        "layers_per_stage": [layers for layers, _ in stages],
        "tmp_per_stage": [[[[[kind, tensor, "zone"]], tensor] for kind, tensor in replicas] for _, replicas in stages],
        "dp": [len(replicas) for _, replicas in stages],
    }
    return {"zone": "zone", "pipeline_list": [pipeline], "mbs": 2, "gbs": 16, "red_grads": 0.1, "N": 2} | more


def written(folder: Path, **files: Any) -> list[Path]:
    """Write each as JSON; return the paths."""
    paths = [folder / f"{name}.json" for name in files]
    for path, content in zip(paths, files.values(), strict=True):
        path.write_text(json.dumps(content))
    return paths


def random_mixed(seed: int) -> tuple[MixedPricing, int]:
    """Up to four layers on up to five devices of two types, most of them with too little memory for all; a batch."""
    draw = random.Random(seed)
    layers, degrees = draw.randint(1, 4), (1, 2)
    sizes = {
        tensor: tuple(
            ShardSizes(
                parameter_bytes=draw.randrange(100_000) // tensor,
                output_bytes=draw.randrange(20_000),
                kept_bytes=draw.randrange(50_000) // tensor,
            )
            for _ in range(layers)
        )
        for tensor in degrees
    }
    times = {
        kind: {
            microbatch: {
                tensor: tuple(
                    (draw.uniform(1, 9) * slow * microbatch * 1e-6, draw.uniform(1, 20) * slow * 1e-6, 1e-7)
                    for _ in range(layers)
                )
                for tensor in degrees
            }
            for microbatch in (1, 2)
        }
        for kind, slow in (("fast", 1.0), ("slow", 2.0))
    }
    counts = {"fast": draw.randint(1, 3), "slow": draw.randint(1, 2)}
    memory_gb = {kind: draw.choice((1.5e-4, 4e-4, 2e-3)) for kind in counts}
    devices = Devices(
        devices={kind: Model(count=count, memory_gb=memory_gb[kind]) for kind, count in counts.items()},
        network_gb_per_s=draw.choice((1.0, 10.0)),
        server_gb_per_s=50.0,
        per_server=2,
    )
    return MixedPricing(MixedProfile(model="random", times=times, sizes=sizes), devices), draw.choice((2, 6, 12))


def every_mixed_plan(pricing: MixedPricing, batch: int) -> Iterator[tuple[MixedPlan, int]]:
    """All plans that have the memory, with their microbatches, found by plain recursion."""
    for cut in cuts(pricing, batch):
        for stages in _from_layer(cut, 0, tuple(cut.units.items())):
            plan = MixedPlan(cut.microbatch, stages)
            if all(_fits(cut, stage, min(cut.microbatches, len(stages) - place)) for place, stage in enumerate(stages)):
                yield plan, cut.microbatches


def _from_layer(cut: Cut, first: int, left: tuple[tuple[Replica, int], ...]) -> Iterator[tuple[MixedStage, ...]]:
    if first == cut.layers:
        yield ()
    there = [kind for kind, count in left for _ in range(count)]
    for mix in combinations_with_replacement(dict.fromkeys(there), cut.pipelines):
        rest = tuple((kind, count - mix.count(kind)) for kind, count in left)
        if min(count for _, count in rest) >= 0:
            for end in range(first + 1, cut.layers + 1):
                yield from ((MixedStage(first, end, mix), *behind) for behind in _from_layer(cut, end, rest))


def _fits(cut: Cut, stage: MixedStage, held: int) -> bool:
    return all(
        cut.pricing.memory_bytes(kind, cut.microbatch, held)[stage.first, stage.end]
        <= cut.pricing.devices.memory_bytes(kind.device)
        for kind in stage.replicas
    )
