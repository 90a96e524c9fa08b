"""What a MIG-capable GPU can be cut into (NVIDIA's MIG user guide, "Supported MIG Profiles").

A100, H100, H200 and B200 have eight memory slices, and seven for computation. Each profile has places where it may start.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

_MEMORY_SLICES = 8
_COMPUTE_SLICES = 7

Profile = str
"""Such as `2g.20gb`."""

Cut = tuple[int, ...]
"""Number of slices of each shape in `SHAPES`."""


@dataclass(frozen=True)
class SliceShape:
    """Slices of one shape, whatever the memory of the GPU."""

    compute: int
    memory: int
    starts: tuple[int, ...]
    """First memory slice."""


SHAPES = (
    SliceShape(1, 1, (0, 1, 2, 3, 4, 5, 6)),
    SliceShape(1, 2, (0, 2, 4, 6)),
    SliceShape(2, 2, (0, 2, 4)),
    SliceShape(3, 4, (0, 4)),
    SliceShape(4, 4, (0,)),
    SliceShape(7, 8, (0,)),
)

_MEMORY_GB = (
    (5, 10, 10, 20, 20, 40),
    (10, 20, 20, 40, 40, 80),
    (12, 24, 24, 47, 47, 94),
    (12, 24, 24, 48, 48, 96),
    (18, 35, 35, 71, 71, 141),
    (23, 45, 45, 90, 90, 180),
)
"""Memory in the name of each shape's profile, by GPU: A100 with 40 GB, A100 and H100 with 80, H100 with 94 and 96, H200,
B200. The last shape is the whole GPU."""


def profiles(names: set[Profile], memory_gb: float | None = None) -> list[tuple[Profile, ...]]:
    """The profile of each shape, on each GPU that has all of `names` and this memory; None for any memory."""
    found = [
        tuple(f"{shape.compute}g.{size}gb" for shape, size in zip(SHAPES, sizes, strict=True))
        for sizes in _MEMORY_GB
        if memory_gb in (None, sizes[-1])
    ]
    return [every for every in found if names <= set(every)]


@cache
def cuts() -> frozenset[Cut]:
    """All numbers of slices that fit on one GPU together."""
    return frozenset(_counted(placed) for placed in _placements((), 0))


@cache
def largest_cuts() -> tuple[Cut, ...]:
    """The cuts to which no slice can be added: a slice that nobody uses costs nothing, so that these are enough."""
    every = cuts()
    more = [tuple(int(at == shape) for at in range(len(SHAPES))) for shape in range(len(SHAPES))]
    return tuple(sorted(cut for cut in every if not any(_sum(cut, one) in every for one in more)))


def _placements(placed: tuple[tuple[int, int], ...], first: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """All sets of slices (shape, start) that contain `placed`, in the order of their starts from `first` on."""
    yield placed
    computing = sum(SHAPES[shape].compute for shape, _ in placed)
    for number, shape in enumerate(SHAPES):
        if computing + shape.compute <= _COMPUTE_SLICES:
            for start in shape.starts:
                if start >= first and start + shape.memory <= _MEMORY_SLICES:
                    yield from _placements((*placed, (number, start)), start + shape.memory)


def _counted(placed: tuple[tuple[int, int], ...]) -> Cut:
    return tuple(sum(shape == number for shape, _ in placed) for number in range(len(SHAPES)))


def _sum(one: Cut, other: Cut) -> Cut:
    return tuple(a + b for a, b in zip(one, other, strict=True))
