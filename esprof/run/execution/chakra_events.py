"""The events of a Chakra execution trace whose nodes have times."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from esprof.core.errors import InputError
from esprof.run.execution.chakra import (
    COLLECTIVE,
    COLLECTIVES,
    METADATA,
    RECEIVE,
    SEND,
    ChakraNode,
    ChakraTrace,
    operation_of,
)
from esprof.run.kineto.reader import Trace, trace_of_rows

_TRANSFERS = {SEND: "send", RECEIVE: "recv"}
_COMMUNICATION = (COLLECTIVE, SEND, RECEIVE)
_STREAM, _COMMUNICATION_STREAM = 0, 1
"""Streams of work on a device whose stream is not known."""


def trace_of(chakra: ChakraTrace) -> Trace:
    """The trace of a process. Raises InputError if its nodes have no times."""
    timed = [node for node in chakra.nodes if node.dur_us > 0 and node.type != METADATA]
    if not any(node.start_us > 0 for node in timed):
        raise InputError(
            "is a Chakra execution trace whose nodes have no start times",
            path=chakra.path,
            remedy="Name the Kineto trace of the same steps, too. Alone, only nodes with start_time_micros are read.",
        )
    on_host = {node.id for node in timed if not _on_device(node)}
    trace = trace_of_rows((_row(node, chakra.pid or 0, on_host) for node in timed), {})
    return replace(trace, rank=chakra.rank)


def _on_device(node: ChakraNode) -> bool:
    """Whether a node ran on a device; by its stream or type where the trace does not say."""
    is_host = node.attributes.get("is_cpu_op")
    return not is_host if isinstance(is_host, bool) else "stream" in node.attributes or node.type in _COMMUNICATION


def _row(node: ChakraNode, pid: int, on_host: set[int]) -> dict[str, Any]:
    row = {"ph": "X", "name": node.name, "ts": node.start_us, "dur": node.dur_us}
    if not _on_device(node):
        host = {"cat": "cpu_op", "pid": pid, "tid": _number(node, "tid", 1)}
        return row | host | {"args": {"External id": node.id} | dict(_described(node))}
    stream = _number(node, "stream", _COMMUNICATION_STREAM if node.type in _COMMUNICATION else _STREAM)
    caller = next((one for one in node.after if one in on_host), None)
    args = {"device": 0, "stream": stream, "External id": caller} | dict(_moved(node))
    return row | {"cat": "kernel", "name": _named(node), "pid": 0, "tid": stream, "args": args}


def _named(node: ChakraNode) -> str:
    """The name of a node; collectives that are called otherwise get the name of the kernels of NCCL."""
    word = _word(node)
    return node.name if word is None or "nccl" in node.name.lower() else f"nccl:{word} {node.name}"


def _word(node: ChakraNode) -> str | None:
    if node.type in _TRANSFERS:
        return _TRANSFERS[node.type]
    kind = _number(node, "comm_type", -1)
    return COLLECTIVES[kind] if node.type == COLLECTIVE and 0 <= kind < len(COLLECTIVES) else None


def _moved(node: ChakraNode) -> Iterator[tuple[str, Any]]:
    word, size, group = _word(node), _number(node, "comm_size", -1), node.attributes.get("pg_name")
    if word is not None:
        yield "Collective name", word
    if word is not None and size > 0:
        yield from {"In msg nelems": size, "dtype": "Byte"}.items()
    if isinstance(group, str) and group:
        yield "Process Group Name", group


def _described(node: ChakraNode) -> Iterator[tuple[str, Any]]:
    sequence = _number(node, "seq_id", -1)
    if sequence >= 0:
        yield "Sequence number", sequence
    if shapes := operation_of(node).shapes:
        yield "Input Dims", msgspec.Raw(shapes)


def _number(node: ChakraNode, name: str, otherwise: int) -> int:
    value = node.attributes.get(name)
    return value if isinstance(value, int) else otherwise
