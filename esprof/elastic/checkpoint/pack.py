"""Nested Python state, such as an optimizer's `state_dict()`, as JSON plus named tensors, so that nothing is unpickled."""

from collections import Counter
from typing import Any

from torch import Tensor

from esprof.core.errors import UsageError


def pack(value: object, path: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON; its tensors are added to `tensors` under names that begin with `path`.

    Raises UsageError for anything other than numbers, strings, lists, tuples, dicts and tensors.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            while path in tensors:  # {"a/b": …} and {"a": {"b": …}} have one path.
                path += "'"
            tensors[path] = value
            return {"tensor": path}
        case list():
            return [pack(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
        case tuple():
            return {"tuple": pack(list(value), path, tensors)}
        case dict():
            items = [[pack(key, "", {}), pack(item, f"{path}/{key}", tensors)] for key, item in value.items()]
            return {"counter" if isinstance(value, Counter) else "items": items}
    raise UsageError(
        f"{path} is a {type(value).__name__}, which a checkpoint cannot hold",
        remedy="Return only numbers, strings, lists, tuples, dicts and tensors from state_dict().",
    )


def unpack(packed: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `pack`. Raises KeyError if a tensor is missing."""
    if isinstance(packed, list):
        return [unpack(item, tensors) for item in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(unpack(content, tensors))
    items = {unpack(key, tensors): unpack(item, tensors) for key, item in content}
    return Counter(items) if kind == "counter" else items
