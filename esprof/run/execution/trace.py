"""What esprof takes from an execution trace: shapes, element types, and what collectives move between whom."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from esprof.core.types import Rank

_LISTS = re.compile(r"GenericList\[(.*)\]", re.DOTALL)
_TENSOR = re.compile(r"Tensor\((.*)\)")
_SCALARS = ("Int", "Double", "Bool", "Float", "Scalar")


class Operation(NamedTuple):
    """One node of an execution trace. Texts are written as Kineto writes them; None where the trace does not tell."""

    name: str
    shapes: bytes | None = None
    """`Input Dims`."""
    types: bytes | None = None
    """`Input type`."""
    collective: str | None = None
    dtype: str | None = None
    group: str | None = None
    """Name of the process group on its rank."""
    ranks: tuple[Rank, ...] | None = None
    sent: int | None = None
    """Elements that the rank sends in a collective."""
    received: int | None = None


@dataclass(frozen=True)
class ExecutionTrace:
    """The execution trace of one process."""

    name: str
    """Name of its file."""
    operations: dict[int, Operation]
    """By the id that `RecordFunction` gave, which Kineto calls `Record function id`."""
    pid: int | None = None
    rank: Rank | None = None
    groups: list[dict[str, Any]] = field(default_factory=list)
    """Process groups, as Kineto's `pg_config`."""


def kineto_type(name: str) -> str:
    """The type of an input as Kineto writes it: `Tensor(float)` is `float`, a list of tensors `TensorList`."""
    if match := _TENSOR.fullmatch(name):
        return match[1]
    if (match := _LISTS.fullmatch(name)) and "Tensor(" in match[1]:
        return "TensorList"
    return "Scalar" if name in _SCALARS else ""


def kineto_shapes(shapes: Sequence[Any], types: Sequence[str]) -> list[Any]:
    """The shapes of inputs as Kineto writes them: inputs that hold no tensor have none."""
    return [shape if "Tensor(" in kind else [] for shape, kind in zip(shapes, types, strict=False)]
