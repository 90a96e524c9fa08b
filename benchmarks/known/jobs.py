"""The classes of jobs, and how one is made of a seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.known.build import Plant
from benchmarks.known.comms import Group
from benchmarks.known.kineto import Recording
from benchmarks.known.program import Program
from benchmarks.known.shapes import cpus, parallel, pipeline, reducer
from benchmarks.known.shapes.sketch import Sketch, sketch


@dataclass(frozen=True)
class Shape:
    """`write` writes the program of a sketch and gives its process groups."""

    write: Callable[[Sketch], list[Group]]
    worlds: Sequence[int]
    is_common: bool = True
    """Whether jobs of all classes are drawn from it, too; else it is there for what-ifs of its own."""


SHAPES = {
    "ddp": Shape(parallel.ddp, (2, 4, 8)),
    "fsdp": Shape(parallel.fsdp, (2, 4, 8)),
    "tensor": Shape(parallel.tensor, (4, 8, 16)),
    "pipeline": Shape(pipeline.one_forward_one_backward, (2, 4)),
    "interleaved": Shape(pipeline.interleaved, (2, 4)),
    "zero": Shape(parallel.zero, (2, 4, 8)),
    "experts": Shape(parallel.experts, (2, 4, 8)),
    "streams": Shape(parallel.streams, (2, 4)),
    "graphs": Shape(parallel.graphs, (2, 4)),
    "pieces": Shape(parallel.pieces, (2, 4)),
    "backlog": Shape(parallel.backlog, (2,)),
    "gloo": Shape(cpus.gloo, (2, 4, 8)),
    "buckets": Shape(reducer.reducer, (2, 4, 8), is_common=False),
    "queue": Shape(parallel.queue, (2, 4, 8), is_common=False),
}


@dataclass(frozen=True)
class Job:
    """A program, how it is recorded, and what was planted in it."""

    shape: str
    seed: int
    program: Program
    groups: list[Group]
    recording: Recording
    plant: Plant | None
    is_uneven: bool
    traits: tuple[str, ...]
    """Special features, to group errors by."""


def job(shape: str, seed: int, bucket_mb: float | None = None, *, apart: bool = False, steps: int | None = None) -> Job:
    """The job of that shape and seed, always the same; with `bucket_mb` (MiB), as it is with other gradient buckets, with
    `apart`, with a stream for each kind of collective, and with `steps`, with a window of so many steps."""
    drawn = sketch(seed, SHAPES[shape].worlds, steps)
    drawn.bucket_mb, drawn.apart = bucket_mb, apart
    groups = SHAPES[shape].write(drawn)
    program = drawn.build.program(spacing_ns=drawn.spacing_ns)
    return Job(
        shape, seed, program, groups, drawn.recording, drawn.build.plant, bool(drawn.habits.uneven), _traits(drawn)
    )


def _traits(drawn: Sketch) -> tuple[str, ...]:
    habits, recording = drawn.habits, drawn.recording
    held = {
        "item each step": habits.item_every == 1,
        "item seldom": habits.item_every > 1,
        "event of the step before": habits.event_sync,
        "loader": habits.workers == 0,
        "loader workers": bool(habits.workers),
        "no loader workers": not habits.workers,
        "sleeps": bool(habits.sleep_ns),
        "uneven": bool(habits.uneven),
        "allocator": bool(habits.allocator_ns),
        "planted": drawn.build.plant is not None,
        "tails": bool(drawn.build.noise.tails),
        "rank missing": recording.missing is not None,
        "step lost": recording.lost is not None,
        "no steps": not recording.steps,
        "sync rows": recording.syncs,
        "several hosts": recording.hosts > 1,
        "no shapes": not drawn.shapes,
    }
    return tuple(name for name, holds in held.items() if holds)
