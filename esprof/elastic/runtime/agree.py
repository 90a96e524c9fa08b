"""Values and errors that all ranks exchange, so that they continue together or fail together."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from esprof.core.errors import EsprofError, InputError, UsageError
from esprof.core.types import Rank
from esprof.elastic.runtime.transport import Transport


def gather_values(transport: Transport, value: object) -> list[Any]:
    """The JSON-serializable `value` of every rank, in rank order. All ranks call this."""
    text = json.dumps(value).encode()
    lengths = torch.zeros(transport.world, dtype=torch.int64)
    transport.gather(lengths, torch.tensor([len(text)])).wait()
    longest = int(lengths.max())
    mine = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
    everyone = torch.empty(transport.world * longest, dtype=torch.uint8)
    transport.gather(everyone, mine).wait()
    return [json.loads(row.numpy().tobytes()) for row in everyone.view(transport.world, longest)]


def value_of(transport: Transport, value: object, rank: Rank) -> Any:
    """The `value` that `rank` passes. All ranks call this. Raises UsageError on all ranks for a value that JSON does not
    have, or a rank that there is not."""
    with together(transport):
        if not 0 <= rank < transport.world:
            raise UsageError(f"there is no rank {rank} among {transport.world}")
        try:
            mine = json.loads(json.dumps(value)) if transport.rank == rank else None
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"agree() was passed a {type(value).__name__} that JSON does not have: {error}",
                remedy="Pass numbers, strings, booleans, None, and lists and dicts of them.",
            ) from error
    return gather_values(transport, mine)[rank]


def digest(value: object) -> float:
    """48 bits of a hash of the value's JSON, which a float64 holds exactly."""
    return float(int.from_bytes(hashlib.blake2b(json.dumps(value).encode(), digest_size=6).digest()))


@contextmanager
def together(transport: Transport) -> Iterator[None]:
    """Run the block on all ranks. If it raises EsprofError on a rank, every rank raises its own error or the first
    rank's."""
    error: EsprofError | None = None
    try:
        yield
    except EsprofError as raised:
        error = raised
    faults = _faults(transport, error)
    if error is not None:
        raise error
    for fault in faults:
        raise EsprofError(**fault)


@contextmanager
def reading_together(transport: Transport) -> Iterator[None]:
    """Like `together`, but an InputError on any rank is raised on all ranks as the same InputError, the first
    rank's."""
    error: InputError | None = None
    with together(transport):
        try:
            yield
        except InputError as raised:
            error = raised
    for fault in _faults(transport, error):
        raise InputError(**fault)


def _faults(transport: Transport, error: EsprofError | None) -> list[dict[str, Any]]:
    """The fields of the errors of all ranks that have one."""
    path = None if error is None or error.path is None else str(error.path)
    fields = None if error is None else {"reason": error.reason, "path": path, "remedy": error.remedy}
    found = [(rank, fault) for rank, fault in enumerate(gather_values(transport, fields)) if fault is not None]
    if transport.world == 1:
        return [fault for _, fault in found]
    return [fault | {"reason": f"{fault['reason']} (rank {rank})"} for rank, fault in found]
