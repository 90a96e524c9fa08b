"""All strategies to synchronise one gradient in Espresso's decision tree (EuroSys 2023, §4.2).

A strategy is a sequence of tasks. It may compress on the GPU or the CPU, before any of its collectives; it communicates flat
or first within each machine, by one collective or by two (a reduction, then its result). The paper counts 4341 strategies
with GPU and CPU, and 174 with the GPU alone, of which 9 compress nothing.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple


class Do(StrEnum):
    """Action of a task."""

    COMPRESS = "compress"
    DECOMPRESS = "decompress"
    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    REDUCE = "reduce"
    ALL_TO_ALL = "all_to_all"
    """Of compressed gradients: each rank receives its shard from all ranks, and adds."""
    GATHER = "gather"
    """Of compressed gradients: one rank receives all of them, and adds."""
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"


class Task(NamedTuple):
    """One step of a strategy."""

    do: Do
    where: str
    """The device that compresses (`gpu`, `cpu`), or the ranks of a collective: `all`, `intra` (one machine) or `inter` (one
    rank of each machine)."""


Strategy = tuple[Task, ...]

_Pair = tuple[Do, Do]
_PLAIN: tuple[_Pair, ...] = ((Do.REDUCE_SCATTER, Do.ALL_GATHER), (Do.REDUCE, Do.BROADCAST))
_COMPRESSED: tuple[_Pair, ...] = ((Do.ALL_TO_ALL, Do.ALL_GATHER), (Do.GATHER, Do.BROADCAST))
"""Pairs of collectives that reduce together: the first determines the second."""


def strategies(devices: Sequence[str] = ("gpu", "cpu")) -> Iterator[Strategy]:
    """Every strategy, once; `devices` may compress and decompress."""
    yield from _flat(devices)
    yield from _hierarchical(devices)


def _on(do: Do, devices: Sequence[str]) -> Iterator[Task]:
    return (Task(do, device) for device in devices)


def _flat(devices: Sequence[str]) -> Iterator[Strategy]:
    yield (Task(Do.ALL_REDUCE, "all"),)
    for first, second in _PLAIN:
        for rest in _share_plain(second, "all", devices):
            yield (Task(first, "all"), *rest)
    for compress in _on(Do.COMPRESS, devices):
        for decompress in _on(Do.DECOMPRESS, devices):
            yield (compress, Task(Do.ALL_GATHER, "all"), decompress)
        for first, second in _COMPRESSED:
            for rest in _share_compressed(second, "all", devices):
                yield (compress, Task(first, "all"), *rest)


def _hierarchical(devices: Sequence[str]) -> Iterator[Strategy]:
    for first, second in _PLAIN:
        for rest in _between_from_plain(second, devices):
            yield (Task(first, "intra"), *rest)
    for compress in _on(Do.COMPRESS, devices):
        for first, second in _COMPRESSED:
            for decompress in _on(Do.DECOMPRESS, devices):
                for rest in _between_from_plain(second, devices):
                    yield (compress, Task(first, "intra"), decompress, *rest)
            for rest in _between_compressed(second, devices):
                yield (compress, Task(first, "intra"), *rest)


def _share_plain(second: Do, where: str, devices: Sequence[str]) -> Iterator[Strategy]:
    """The second collective of a pair for uncompressed input; the output is uncompressed."""
    yield (Task(second, where),)
    for compress in _on(Do.COMPRESS, devices):
        for decompress in _on(Do.DECOMPRESS, devices):
            yield (compress, Task(second, where), decompress)


def _share_compressed(second: Do, where: str, devices: Sequence[str]) -> Iterator[Strategy]:
    """The second collective of a pair for compressed input; the output is uncompressed."""
    for decompress in _on(Do.DECOMPRESS, devices):
        yield (Task(second, where), decompress)
        for rest in _share_plain(second, where, devices):
            yield (decompress, *rest)


def _between_from_plain(second: Do, devices: Sequence[str]) -> Iterator[Strategy]:
    """Tasks after an uncompressed first collective within a machine: between machines, then the second one within."""
    yield from _between_plain(second, devices)
    for compress in _on(Do.COMPRESS, devices):
        for rest in _between_compressed(second, devices):
            yield (compress, *rest)


def _between_plain(second: Do, devices: Sequence[str]) -> Iterator[Strategy]:
    for rest in _share_plain(second, "intra", devices):
        yield (Task(Do.ALL_REDUCE, "inter"), *rest)
    for one, other in _PLAIN:
        for rest in _after_reduction(other, second, devices):
            yield (Task(one, "inter"), *rest)


def _between_compressed(second: Do, devices: Sequence[str]) -> Iterator[Strategy]:
    for rest in _share_compressed(second, "intra", devices):
        yield (Task(Do.ALL_GATHER, "inter"), *rest)
    for one, other in _COMPRESSED:
        for rest in _share_compressed(second, "intra", devices):
            yield (Task(one, "inter"), Task(other, "inter"), *rest)
        for decompress in _on(Do.DECOMPRESS, devices):
            for rest in _after_reduction(other, second, devices):
                yield (Task(one, "inter"), decompress, *rest)


def _after_reduction(other: Do, second: Do, devices: Sequence[str]) -> Iterator[Strategy]:
    """Tasks after a first collective between machines with an uncompressed result."""
    for rest in _share_plain(second, "intra", devices):
        yield (Task(other, "inter"), *rest)
    for compress in _on(Do.COMPRESS, devices):
        for rest in _share_compressed(second, "intra", devices):
            yield (compress, Task(other, "inter"), *rest)


def is_executable(strategy: Strategy) -> bool:
    """Whether the communication hook can execute this strategy (`esprof.elastic.compress`).

    It all-reduces uncompressed gradients; it all-gathers compressed ones or exchanges them in shards, compressed by one
    device. It does so among all ranks, or between machines whose ranks divide the work by a reduce-scatter.
    """
    is_shared = strategy[0] == Task(Do.REDUCE_SCATTER, "intra") and strategy[-1] == Task(Do.ALL_GATHER, "intra")
    middle, ranks = (strategy[1:-1], "inter") if is_shared else (strategy, "all")
    in_shards = [Do.COMPRESS, Do.ALL_TO_ALL, Do.DECOMPRESS, Do.COMPRESS, Do.ALL_GATHER, Do.DECOMPRESS]
    known = ([Do.ALL_REDUCE], [Do.COMPRESS, Do.ALL_GATHER, Do.DECOMPRESS], in_shards)
    devices = {task.where for task in middle if task.do in (Do.COMPRESS, Do.DECOMPRESS)}
    among = {task.where for task in middle} - devices
    return among == {ranks} and len(devices) < 2 and [task.do for task in middle] in known
