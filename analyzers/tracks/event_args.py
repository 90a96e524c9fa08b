"""Categories and arguments of recorded events with the keys that torch.profiler has for them in its traces."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from esprof.run.collective_names import ITEM_BYTES
from esprof.run.schema import Table

_CATEGORY = {
    "op": "cpu_op",
    "runtime": "cuda_runtime",
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "sync": "cuda_sync",
    "python": "python_function",
}
"""Kinds of events (`schema.KINDS`); all others are annotations on threads and kernels on streams."""

_COLUMNS = {
    "External id": "external_id",
    "correlation": "correlation",
    "device": "device",
    "stream": "stream",
    "Sequence number": "autograd_seq",
    "Fwd thread id": "fwd_tid",
    "wait_on_stream": "sync_stream",
    "wait_on_cuda_event_record_corr_id": "sync_correlation",
    "Input Dims": "shapes",
    "Collective name": "collective",
    "Process Group Name": "group",
    "Seq": "coll_seq",
    "dtype": "dtype",
}
"""Argument -> column of `schema.EVENTS`."""

_PEER = {"send": "Dst Rank", "recv": "Src Rank"}
"""Kind of a point-to-point call -> the argument with the rank at its other end."""


def trace_category(events: Table) -> tuple[np.ndarray, list[str]]:
    """(index of each event's category, the categories)."""
    codes, kinds = events.codes("kind")
    on_gpu = events.ints("stream") >= 0
    categories = [_CATEGORY.get(kind, "user_annotation") for kind in kinds]
    on_streams = [_CATEGORY.get(kind, "kernel" if kind == "collective" else "gpu_user_annotation") for kind in kinds]
    return np.where(on_gpu, codes + len(kinds), codes), categories + on_streams


def event_args(events: Table) -> Mapping[str, Sequence[int | str | None]]:
    """The arguments that any of the events has, by key; None where an event lacks one."""
    args: dict[str, Sequence[Any]] = {key: events.arrow[column].to_pylist() for key, column in _COLUMNS.items()}
    is_collective = events.is_kind("collective")
    item = [ITEM_BYTES.get((dtype or "").lower(), 0) for dtype in args["dtype"]]
    args["In msg nelems"] = _elements(events.ints("in_bytes"), item, is_collective)
    args["Out msg nelems"] = _elements(events.ints("out_bytes"), item, is_collective)
    args["bytes"] = [
        amount if amount >= 0 and not moved else None
        for amount, moved in zip(events.ints("in_bytes").tolist(), is_collective.tolist(), strict=True)
    ]
    peers = events.ints("peer").tolist()
    for word, key in _PEER.items():
        args[key] = [
            peer if kind == word and peer >= 0 else None
            for kind, peer in zip(args["Collective name"], peers, strict=True)
        ]
    return {key: values for key, values in args.items() if any(value is not None for value in values)}


def _elements(amounts: np.ndarray, item: Sequence[int], is_collective: np.ndarray) -> list[int | None]:
    """Elements in `amounts` (bytes, -1 for unknown) of a collective with items of that size, 0 if unknown."""
    return [
        amount // size if moved and size and amount >= 0 else None
        for amount, size, moved in zip(amounts.tolist(), item, is_collective.tolist(), strict=True)
    ]
