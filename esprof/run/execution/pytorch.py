"""PyTorch's execution traces (`torch.profiler.ExecutionTraceObserver`), JSON of schema 1.0 and 1.1.

The attributes of collectives are those of `getCommsNodeAttrs` in PyTorch's execution_trace_observer.cpp.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

from esprof.core.errors import InputError
from esprof.core.types import Rank
from esprof.run.execution.trace import ExecutionTrace, Operation, kineto_shapes, kineto_type
from esprof.run.groups import MAX_RANKS
from esprof.run.kineto.compressed import head
from esprof.run.kineto.content import content
from esprof.run.reading import memory_limit

_BEGIN = re.compile(rb'\s*\{\s*"schema"\s*:\s*"\d')
_HEAD = 256
_GROWTH = 4
"""Memory that reading takes, as a multiple of the file."""
_GROUPS = "## process_group:init ##"
_MAX_ID = 1 << 62


class _NodeAttribute(msgspec.Struct):
    name: str
    value: Any = None


class _NodeInputs(msgspec.Struct):
    shapes: list[Any] = []
    types: list[str] = []
    values: msgspec.Raw = msgspec.Raw(b"[]")


class _TraceNode(msgspec.Struct):
    name: str
    inputs: _NodeInputs | list[Any] = []
    attrs: list[_NodeAttribute] = []
    rf_id: int | None = None
    input_shapes: list[Any] = []
    input_types: list[str] = []


class _TraceDocument(msgspec.Struct):
    nodes: list[_TraceNode]
    pid: int | None = None


def is_execution_trace(path: Path) -> bool:
    """Whether the file at `path`, compressed or not, begins as PyTorch's execution traces do."""
    return _BEGIN.match(head(path, _HEAD)) is not None


def read_execution_trace(path: Path) -> ExecutionTrace:
    """Read an execution trace. Raises InputError where it is malformed or larger than a quarter of the memory limit."""
    text = content(path, memory_limit() // _GROWTH)
    try:
        document = msgspec.json.decode(text, type=_TraceDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = f"is a malformed execution trace: {error}"
        raise InputError(reason, path=path, remedy="Copy or record it again.") from error
    operations: dict[int, Operation] = {}
    groups: list[dict[str, Any]] = []
    for node in document.nodes:
        attributes = {one.name: one.value for one in node.attrs}
        number = node.rf_id if node.rf_id is not None else attributes.get("rf_id")
        if node.name == _GROUPS and isinstance(node.inputs, _NodeInputs):
            groups += _groups(node.inputs.values)
        if isinstance(number, int) and 0 < number < _MAX_ID:
            operations[number] = _operation(node, attributes)
    return ExecutionTrace(path.name, operations, document.pid, groups=groups)


def _operation(node: _TraceNode, attributes: dict[str, Any]) -> Operation:
    inputs = node.inputs if isinstance(node.inputs, _NodeInputs) else _NodeInputs(node.input_shapes, node.input_types)
    texts = {name: value for name, value in attributes.items() if isinstance(value, str) and value}
    numbers = {name: value for name, value in attributes.items() if isinstance(value, int)}
    return Operation(
        name=node.name,
        shapes=msgspec.json.encode(kineto_shapes(inputs.shapes, inputs.types)) if inputs.types else None,
        types=msgspec.json.encode([kineto_type(kind) for kind in inputs.types]) if inputs.types else None,
        collective=texts.get("collective_name"),
        dtype=texts.get("dtype"),
        group=texts.get("pg_name"),
        ranks=_ranks(*(numbers.get(key) for key in ("global_rank_start", "global_rank_stride", "pg_size"))),
        sent=numbers.get("in_msg_nelems"),
        received=numbers.get("out_msg_nelems"),
    )


def _ranks(start: int | None, stride: int | None, size: int | None) -> tuple[Rank, ...] | None:
    """Members of a group; None where the trace does not tell: the stride of an uneven group is not positive."""
    if start is None or stride is None or size is None or not 0 < size <= MAX_RANKS or not 0 <= start < MAX_RANKS:
        return None
    if size > 1 and not 0 < stride <= MAX_RANKS:
        return None
    return tuple(start + stride * member for member in range(size))


def _groups(values: msgspec.Raw) -> list[dict[str, Any]]:
    """Process groups in the inputs of the node that names them; none where they are no JSON."""
    try:
        (text,) = msgspec.json.decode(values, type=list[str])
        return msgspec.json.decode(text, type=list[dict[str, Any]])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return []
