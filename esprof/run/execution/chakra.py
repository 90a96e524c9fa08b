"""Chakra execution traces (`.et`): a GlobalMetadata and the nodes, each with its size before it.

Field numbers are those of `et_def.proto` in mlcommons/chakra, names of attributes those of its PyTorch converter.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from esprof.core.errors import InputError
from esprof.core.types import Rank
from esprof.run.execution.trace import ExecutionTrace, Operation, kineto_shapes, kineto_type
from esprof.run.groups import MAX_RANKS
from esprof.run.kineto.content import content
from esprof.run.protobuf.wire import (
    MalformedMessage,
    Value,
    delimited,
    double,
    fields,
    message,
    packed,
    signed,
    text,
    zigzag,
)
from esprof.run.reading import memory_limit

METADATA, SEND, RECEIVE, COLLECTIVE = 1, 5, 6, 7
"""`NodeType`s that esprof tells apart."""

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
"""`CollectiveCommType`s by number."""

_LAST_OF_METADATA = 2
"""Number of the last field of a GlobalMetadata: its attributes."""
_GROWTH = 20
"""Memory that reading takes, as a multiple of the file."""
_RANK = re.compile(r"(?:rank[-_.]?|\.)(\d{1,9})\.et$", re.IGNORECASE)
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_SIGNED, _ZIGZAG, _UNSIGNED, _DOUBLE, _BOOL, _STRING = (7, 9), (15, 17), (11, 13), 3, 27, 29
"""Field numbers of the values of an attribute, by their form."""


@dataclass
class ChakraNode:
    """One node. Times are µs; 0 where they are not known."""

    id: int = 0
    name: str = ""
    type: int = 0
    after: list[int] = field(default_factory=list)
    """Nodes that it depends on, first those that call it."""
    start_us: int = 0
    dur_us: int = 0
    shapes: str = ""
    types: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ChakraTrace:
    """The nodes of one process."""

    path: Path
    attributes: dict[str, Any]
    nodes: list[ChakraNode]

    @property
    def rank(self) -> Rank | None:
        """The rank in the name of the file, such as `job.3.et`; None without one."""
        match = _RANK.search(self.path.name)
        return int(match[1]) if match and int(match[1]) < MAX_RANKS else None

    @property
    def pid(self) -> int | None:
        pid = self.attributes.get("pid")
        return pid if isinstance(pid, int) else None

    def execution_trace(self) -> ExecutionTrace:
        """Its operations, for the Kineto trace of the same steps."""
        operations = {}
        for node in self.nodes:
            number = node.attributes.get("rf_id")
            if isinstance(number, int) and number > 0 and node.attributes.get("is_cpu_op", True):
                operations[number] = operation_of(node)
        return ExecutionTrace(self.path.name, operations, self.pid, self.rank)


def read_chakra(path: Path) -> ChakraTrace:
    """Read a Chakra execution trace, compressed or not. Raises InputError."""
    data = memoryview(content(path, memory_limit() // _GROWTH)).toreadonly()
    try:
        messages = list(delimited(data))
        attributes = _metadata(messages[0]) if messages else {}
        nodes = [_node(one) for one in messages[attributes is not None :]]
    except MalformedMessage as error:
        reason = f"is no Chakra execution trace, or a truncated one: {error}"
        raise InputError(reason, path=path, remedy="Convert it again (chakra_converter).") from error
    return ChakraTrace(path, attributes or {}, nodes)


def _metadata(data: memoryview) -> dict[str, Any] | None:
    """The attributes of a GlobalMetadata; None if the message is a node, as it is in files of 2023."""
    found = list(fields(data))
    if any(number > _LAST_OF_METADATA or (number == 1 and isinstance(value, int)) for number, value in found):
        return None
    return dict(_attribute(value) for number, value in found if number == _LAST_OF_METADATA)


def _node(data: memoryview) -> ChakraNode:
    node = ChakraNode()
    for number, value in fields(data):
        match number:
            case 1:
                node.id = signed(value)
            case 2:
                node.name = text(value)
            case 3:
                node.type = signed(value)
            case 4 | 5:
                node.after += packed(value)
            case 6:
                node.start_us = signed(value)
            case 7:
                node.dur_us = signed(value)
            case 8:
                described = {key: text(one) for key, one in message(value)}
                node.shapes, node.types = described.get(2, ""), described.get(3, "")
            case 10:
                name, found = _attribute(value)
                node.attributes[name] = found
    return node


def _attribute(value: Value) -> tuple[str, Any]:
    """(name, value) of an attribute; None for lists and other forms that esprof does not use."""
    name = ""
    found: Any = None
    for number, given in message(value):
        if number == 1:
            name = text(given)
        elif number in _SIGNED:
            found = signed(given)
        elif number in _ZIGZAG:
            found = zigzag(given)
        elif number in _UNSIGNED:
            found = given if isinstance(given, int) else None
        elif number == _DOUBLE:
            found = double(given)
        elif number == _BOOL:
            found = bool(given)
        elif number == _STRING:
            found = text(given)
    return name, found


def operation_of(node: ChakraNode) -> Operation:
    """The operation of a node, whose shapes and types are lists as Python prints them."""
    types = [one or other for one, other in _QUOTED.findall(node.types)]
    try:
        shapes = msgspec.json.decode(node.shapes.replace("(", "[").replace(")", "]"), type=list[Any])
    except (msgspec.DecodeError, RecursionError):
        shapes = []
    group = node.attributes.get("pg_name")
    if len(shapes) != len(types) or not types:
        return Operation(node.name, group=group if isinstance(group, str) and group else None)
    return Operation(
        node.name,
        shapes=msgspec.json.encode(kineto_shapes(shapes, types)),
        types=msgspec.json.encode([kineto_type(kind) for kind in types]),
        group=group if isinstance(group, str) and group else None,
    )
