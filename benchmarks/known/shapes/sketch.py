"""Draws common to all shapes: one seed determines the size, the habits of the script, the noise, the planted cause."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.known.build import US, Build, Link, Noise, Plant
from benchmarks.known.kineto import Recording
from benchmarks.known.program import Kind
from benchmarks.known.shapes.parts import MS, Habits, Script, scripts


@dataclass
class Sketch:
    """A job before its shape is written."""

    rng: np.random.Generator
    build: Build
    habits: Habits
    recording: Recording
    width_ns: float
    """Work of the longest kernels."""
    numbered: bool
    """Whether collectives record their sequence numbers."""
    spacing_ns: int
    bucket_mb: float | None = None
    """Size of gradient buckets, MiB, that replaces the job's own."""
    apart: bool = False
    """Whether collectives of each kind have a separate stream, in jobs with one stream for all kinds."""
    shapes: bool = True
    """Whether the shapes of gradients are recorded, in jobs that record single gradients."""

    @property
    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.build.world))

    def write(self, body: Callable[[Script, int], None]) -> None:
        """Write the scripts of all ranks, and set the recorded steps."""
        scripts(self.build, self.habits, body)
        first, lost = self.habits.warmup, self.recording.lost
        self.recording = replace(self.recording, first=first, lost=(lost[0], first + lost[1]) if lost else None)


def link(sketch: Sketch, share: float = 1.0) -> Link:
    """A link whose communication takes about `share` of the compute time, within an order of magnitude."""
    latency = float(sketch.rng.uniform(8, 40)) * US
    return Link(round(latency), float(sketch.rng.uniform(20, 200)) / share)


def sketch(seed: int, worlds: Sequence[int], steps: int | None = None) -> Sketch:
    """Draw a job with a window of `steps`, by default four to eight. Habits are drawn independently of each other."""
    rng = np.random.default_rng(seed)
    world = int(rng.choice(list(worlds)))
    noise = Noise(
        cpu=float(rng.choice([0.05, 0.15, 0.3])),
        gpu=float(rng.choice([0.005, 0.02, 0.06])),
        link=float(rng.choice([0.02, 0.08, 0.2])),
        tails=float(rng.choice([0.0, 0.0, 0.001, 0.004])),
    )
    waits = rng.choice(["item", "event", "seldom"], p=[0.6, 0.25, 0.15])
    drawn_steps = int(rng.integers(4, 9))
    habits = Habits(
        # Ranks may be a step or two ahead of each other, which takes this many steps to develop.
        warmup={"item": 2, "event": 14, "seldom": 6}[str(waits)],
        steps=drawn_steps if steps is None else steps,
        item_every={"item": 1, "event": 0, "seldom": 3}[str(waits)],
        event_sync=bool(waits == "event"),
        workers=[None, 0, 0, 2, 4][int(rng.integers(0, 5))],
        batch_ns=round(float(rng.choice([0.3, 1.0, 4.0, 12.0])) * MS),
        sleep_ns=round(float(rng.choice([0, 0, 0, 0.5, 3.0])) * MS),
        uneven=float(rng.choice([0, 0, 0, 0.4])),
        cpu_per_op_ns=round(float(rng.choice([6, 15, 40])) * US),
        allocator_ns=round(float(rng.choice([0, 0.4], p=[0.9, 0.1])) * MS),
    )
    plant = _plant(rng, world) if rng.random() < 0.35 else None
    build = Build(world, rng, noise, plant)
    recording = _recording(rng, world, habits)
    if plant:
        habits = replace(habits, uneven=0.0)
    width = float(rng.choice([30, 120, 400])) * US
    spacing = int(rng.choice([0, 800, 1500]))
    return Sketch(rng, build, habits, recording, width, bool(rng.random() < 0.5), spacing)


def _plant(rng: np.random.Generator, world: int) -> Plant:
    """One rank that is clearly late, by one kind of work."""
    rank = int(rng.integers(0, world))
    kind = [Kind.KERNEL, Kind.CPU, Kind.GAP, Kind.LOAD][int(rng.integers(0, 4))]
    if kind is Kind.GAP:
        return Plant(rank, kind, extra_ns=round(float(rng.uniform(4, 20)) * MS))
    return Plant(rank, kind, factor=float(rng.uniform(1.5, 3.0)))


def _recording(rng: np.random.Generator, world: int, habits: Habits) -> Recording:
    odd = rng.choice(["plain", "missing", "lost", "stepless"], p=[0.8, 0.08, 0.06, 0.06])
    hosts = int(rng.choice([1, 2])) if world > 1 else 1
    spread = 300 * US if hosts > 1 else 0
    ahead = [round(float(rng.uniform(-spread, spread))) for _ in range(hosts)]
    per_host = -(-world // hosts)
    return Recording(
        first=0,
        steps=bool(odd != "stepless"),
        syncs=bool(rng.random() < 0.4),
        described=bool(rng.random() < 0.7),
        missing=int(rng.integers(0, world)) if odd == "missing" and world > 2 else None,
        lost=(int(rng.integers(0, world)), habits.steps // 2) if odd == "lost" else None,
        clocks=tuple(ahead[rank // per_host] for rank in range(world)),
        hosts=hosts,
    )
