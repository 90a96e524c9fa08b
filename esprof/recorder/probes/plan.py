"""The measurements, their order, and the share of the budget for each."""

import json
import math
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...run.raw import names
from ..shared.talk import say
from ..shared.torch_features import dump_collectives
from . import backward, codecs, collectives, congestion, devices, exchanges, sparsity, storage
from .agreement import Agreement
from .bench import Bench

_MAX_SIZES_OF_JOB = 6
"""Sizes of the job's own collectives that are measured for each kind, at most: the largest ones."""

_MIN_SIZE_FOR_CODECS = 1 << 14
"""Smallest all-reduce, bytes, for which codecs and overlap are measured."""

_MIN_SCATTER_SIZE = 1 << 10
"""Smallest reduce-scatter, bytes, for which codecs are measured: a smaller one carries a loss or a count."""

_KINDS = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "send": "send_recv",
}
"""Substring of a collective's name in PyTorch's Flight Recorder -> its kind."""


@dataclass(frozen=True)
class ProbeStage:
    """A group of related measurements."""

    name: str
    weight: float
    """Its share of the remaining budget, relative to the weights of the stages that follow."""
    run: Callable[[], None]


def measure(raw: str, rank: int, world: int, budget_s: float, done: Sequence[str], *, quiet: bool) -> None:
    """Measure all stages except those in `done` within about `budget_s` seconds, on all ranks together.

    Unless `quiet`, rank 0 names each stage on stderr.

    Each result is written to the notes of this rank at once, so a later failure does not lose it.
    """
    agreement = Agreement(world)
    bench = Bench(os.path.join(raw, names.probes_of(rank)), rank, agreement, budget_s, _device())
    is_complete = False
    try:
        with torch.random.fork_rng([bench.device] if bench.device.type == "cuda" else []), torch.enable_grad():
            stages = [stage for stage in _stages(bench, raw) if stage.name not in done]
            while stages:
                stage = stages[0]
                if rank == 0 and not quiet:
                    say(f"probing {stage.name} ({bench.elapsed_s:.0f} s of {budget_s:g} s)")
                bench.begin_stage(stage.weight / sum(one.weight for one in stages))
                stage.run()
                bench.end_stage(stage.name)
                stages.pop(0)
        is_complete = True
        agreement.close()  # Not after a failure: other ranks may still wait in the groups.
    finally:
        bench.close(is_complete=is_complete)


def _stages(bench: Bench, raw: str) -> list[ProbeStage]:
    wanted = _sizes_of_job(bench)
    buckets = wanted.get("all_reduce", [])
    large = [size for size in buckets if size >= _MIN_SIZE_FOR_CODECS]
    # Gloo implements a reduce-scatter as an all-reduce, and records it under that name.
    of_scatters = {size for size in (*buckets, *wanted.get("reduce_scatter", [])) if size >= _MIN_SCATTER_SIZE}
    scattered = sorted(of_scatters)[-_MAX_SIZES_OF_JOB:]
    coders = codecs.registered(bench)
    passes: list[backward.RepeatedBackward] = []

    def a_pass() -> backward.RepeatedBackward:
        if not passes:
            passes.append(backward.RepeatedBackward(bench))
        return passes[0]

    found = [
        ProbeStage("devices", 0.5, lambda: devices.condition(bench)),
        ProbeStage("matrix products", 2, lambda: devices.products(bench)),
        ProbeStage("memory", 1, lambda: devices.memory(bench)),
        ProbeStage("launches", 0.5, lambda: devices.launches(bench)),
        ProbeStage("threads", 0.5, lambda: devices.threads(bench)),
        ProbeStage("backward passes", 0.5, lambda: backward.alone(bench, a_pass())),
    ]
    if sparsity.is_possible(bench):
        found.append(ProbeStage("2:4 weights", 2, lambda: sparsity.products(bench)))
    if bench.agreement.groups:
        # The job's own size comes first, as the budget may run out.
        overlapping = [*large[-1:], 1 << 16]
        found += [
            ProbeStage("all-reduces", 5, lambda: collectives.all_reduce(bench, buckets)),
            ProbeStage(
                "all-reduces during backward passes",
                8,
                lambda: backward.during_all_reduce(bench, a_pass(), overlapping),
            ),
            ProbeStage("two all-reduces at once", 1, lambda: collectives.all_reduce_twice(bench, [])),
            ProbeStage("other collectives", 4, lambda: collectives.others(bench, wanted)),
            ProbeStage("TCP congestion controls", 8, lambda: congestion.by_control(bench, wanted)),
        ]
    (is_sharded,) = bench.agreement.maxima(int(_has_shards()))
    if coders and bench.agreement.groups and is_sharded:
        found.append(ProbeStage("sharded gradients", 3, lambda: exchanges.of_shards(bench, scattered)))
    if coders:
        found += [
            ProbeStage("codecs", 4, lambda: codecs.alone(bench, coders, large)),
            ProbeStage("codecs during backward passes", 1.5, lambda: codecs.during_backward(bench, coders, a_pass())),
        ]
    if coders and bench.agreement.groups:
        found.append(ProbeStage("compressed exchanges", 10, lambda: exchanges.by_codec(bench, coders, large)))
    return [
        *found,
        ProbeStage("reads of the data", 1.5, lambda: storage.loads(bench, raw)),
        ProbeStage("writes", 1, lambda: storage.saves(bench, raw)),
    ]


def _has_shards() -> bool:
    """Whether FSDP2 shards a module in this process: it derives a class from FSDPModule for each class of module."""
    module = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return module is not None and bool(module.__subclasses__())


def _device() -> torch.device:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _sizes_of_job(bench: Bench) -> dict[str, list[int]]:
    """Kind of collective -> sizes in bytes of the job's recent calls in PyTorch's Flight Recorder, ascending.

    A size that occurred only once, such as that of DDP's first bucket, is left out if others occurred repeatedly.
    """
    found = defaultdict[str, Counter[int]](Counter)
    for dump in dump_collectives(include_calls=True):
        for call in json.loads(dump).get("entries", ()):
            kind = next((kind for name, kind in _KINDS.items() if name in str(call.get("profiling_name"))), None)
            if kind is not None:
                found[kind][max(_bytes(call, side) for side in ("input", "output"))] += 1
    named = bench.agreement.union(
        [[kind, size] for kind, sizes in found.items() for size in sorted(_recurring(sizes)) if size]
    )
    kinds = sorted({kind for kind, _ in named})
    return {kind: sorted({size for of, size in named if of == kind})[-_MAX_SIZES_OF_JOB:] for kind in kinds}


def _recurring(sizes: Counter[int]) -> set[int]:
    """The sizes that occurred more than once; all sizes if none did."""
    return {size for size, count in sizes.items() if count > 1} or set(sizes)


def _bytes(call: dict[str, Any], side: str) -> int:
    """Bytes of the tensors on one `side` of a collective, `input` or `output`."""
    sizes, types = call.get(f"{side}_sizes") or [], call.get(f"{side}_dtypes") or []
    widths = {"Double": 8, "Long": 8, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Bool": 1}
    return sum(math.prod(size) * widths.get(kind, 4) for size, kind in zip(sizes, types, strict=False))
