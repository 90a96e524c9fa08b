"""Readers of layer profiles: esprof's JSON or YAML, and `graph.txt` of PipeDream's profiler (SOSP 2019)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from esprof.analyzers.advisors.cluster.mix import read
from esprof.analyzers.advisors.parallel.profile import ANY_TYPE, Layer, LayerProfile, PassTimes
from esprof.core.errors import InputError, unreadable
from esprof.core.types import Bytes

_REMEDY = "docs/how-to/parallel.md shows the formats."
_FIELD = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\s]+)")
_US_PER_MS = 1e3


@dataclass(frozen=True)
class _GraphNode:
    """A node of PipeDream's graph."""

    text: str
    forward_us: float
    backward_us: float
    output_bytes: Bytes
    parameter_bytes: Bytes


def read_profile(path: Path) -> LayerProfile:
    """Read the profile of a model's layers: a `.txt` file as PipeDream's graph, any other as YAML or JSON.

    Raises InputError with the place of the fault.
    """
    profile = _pipedream(path) if path.suffix == ".txt" else read(path, LayerProfile)
    if fault := profile.fault():
        raise InputError(fault, path=path, remedy=_REMEDY)
    return profile


def _pipedream(path: Path) -> LayerProfile:
    """The layers of a PipeDream profile. Operations between two points that all paths pass are one layer: branches are not
    cut. The node that loads data and those that only take an item are left out, as by PipeDream's optimizer."""
    operations, inputs = _graph(path)
    try:
        order = list(TopologicalSorter(inputs).static_order())
    except CycleError as error:
        raise InputError("its edges form a cycle", path=path, remedy=_REMEDY) from error
    consumed = {before for needed in inputs.values() for before in needed}
    dropped = {name for name in order if operations[name].text.startswith("Input") and not inputs[name]}
    dropped |= {name for name in order if operations[name].text.startswith("__getitem__") and name not in consumed}
    order = [name for name in order if name not in dropped]
    inputs = {name: inputs[name] - dropped for name in order}
    return LayerProfile(layers=tuple(_blocks(order, operations, inputs)))


def _graph(path: Path) -> tuple[dict[str, _GraphNode], dict[str, set[str]]]:
    """The operations by name, and the names of those that each needs."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise InputError("is no text", path=path, remedy=_REMEDY) from error
    operations = dict[str, _GraphNode]()
    edges = list[tuple[int, str, str]]()
    for number, line in enumerate(lines, 1):
        parts = [part.strip() for part in line.split(" -- ")]
        if line.startswith("\t") and len(parts) == 2:
            edges.append((number, parts[0], parts[1]))
        elif len(parts) >= 3:
            operations[parts[0]] = _operation(path, number, parts[1], dict(_FIELD.findall(" ".join(parts[2:]))))
        elif line.strip():
            raise InputError(f"line {number} is neither a node nor an edge", path=path, remedy=_REMEDY)
    inputs: dict[str, set[str]] = {name: set() for name in operations}
    for number, source, target in edges:
        if unknown := [name for name in (source, target) if name not in operations]:
            raise InputError(f"line {number} names an unknown node {unknown[0]}", path=path, remedy=_REMEDY)
        inputs[target].add(source)
    return operations, inputs


def _operation(path: Path, number: int, text: str, fields: dict[str, str]) -> _GraphNode:
    """One node, from the fields of its line."""
    try:
        return _GraphNode(
            text=text,
            forward_us=float(fields["forward_compute_time"]) * _US_PER_MS,
            backward_us=float(fields["backward_compute_time"]) * _US_PER_MS,
            # Several outputs are a list, such as [1024.0; 2048.0].
            output_bytes=round(sum(float(size) for size in fields["activation_size"].strip("[]").split(";"))),
            parameter_bytes=round(float(fields["parameter_size"])),
        )
    except (KeyError, ValueError, OverflowError) as error:
        raise InputError(f"line {number} has no valid {error}", path=path, remedy=_REMEDY) from error


def _blocks(order: list[str], operations: dict[str, _GraphNode], inputs: dict[str, set[str]]) -> Iterator[Layer]:
    """The operations in order, cut after each that all others come before or after."""
    above = dict[str, set[str]]()
    for name in order:
        above[name] = set().union(*(above[before] | {before} for before in inputs[name]))
    below = dict.fromkeys(order, 0)
    for name in order:
        for before in above[name]:
            below[before] += 1
    last_use = {before: at for at, name in enumerate(order) for before in inputs[name]}
    begin = 0
    for at, name in enumerate(order):
        if at == len(order) - 1 or len(above[name]) + below[name] == len(order) - 1:
            sent = sum(operations[one].output_bytes for one in order[: at + 1] if last_use.get(one, -1) > at)
            yield _layer(order[begin : at + 1], operations, sent)
            begin = at + 1


def _layer(names: list[str], operations: dict[str, _GraphNode], sent: Bytes) -> Layer:
    """These operations as one layer, of whose outputs and earlier ones later layers need `sent` bytes."""
    mine = [operations[name] for name in names]
    return Layer(
        name=names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}",
        times={
            ANY_TYPE: PassTimes(
                forward_us=sum(one.forward_us for one in mine), backward_us=sum(one.backward_us for one in mine)
            )
        },
        output_bytes=sent,
        parameter_bytes=sum(one.parameter_bytes for one in mine),
        kept_bytes=sum(one.output_bytes for one in mine),
    )
