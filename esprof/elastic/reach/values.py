"""Values that move between ranks and into checkpoints: numbers, strings, tensors, arrays, generators, and containers.

Of a value there is a *note*, which is cheap and shows whether the value has changed, and a *copy*, made of what
`checkpoint.pack` can pack.
"""

import random
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from esprof.core.types import Bytes

Copy = Any
"""A plain value as it is; of others a tuple: (kind, …)."""

PLAIN = frozenset({bool, int, float, str, type(None)})
MAX_TENSOR: Bytes = 64 << 20
"""The largest tensor that is moved."""
MAX_ITEMS_OF_EST = 10_000
"""Plain items of a container that moves with an EST: each step compares and copies them."""

_MAX_ARRAY: Bytes = 1 << 16
"""The largest array that is compared by its content; NumPy counts no versions."""

_MAX_ITEMS, _MAX_PLAIN_ITEMS, _MAX_DEPTH = 1024, 1_000_000, 4
"""Items of a container that is moved: if some are tensors or containers, and if all are plain; and how deep it may be."""

_SEQUENCES = {kind.__name__: kind for kind in (list, tuple, set, deque)}
_MAPPINGS = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}
_CONTAINERS = frozenset({*_SEQUENCES.values(), *_MAPPINGS.values()})
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def is_generator(value: object) -> bool:
    return isinstance(value, _GENERATORS) and not isinstance(value, random.SystemRandom)


def is_container(value: object) -> bool:
    return type(value) in _CONTAINERS


def can_move(value: object, max_tensor: float = MAX_TENSOR, depth: int = 0) -> bool:
    """Whether a value can be copied. `max_tensor` limits the bytes of each tensor in it.

    A tensor with a graph belongs to the call that has computed it: it can be copied only inside a container. A generator
    can be copied only outside of containers.
    """
    if type(value) in PLAIN:
        return True
    if isinstance(value, Tensor):
        is_dense = value.layout is torch.strided and not value.is_meta and not value.is_quantized
        is_trained = isinstance(value, nn.Parameter) and value.requires_grad
        is_own = depth > 0 or value.grad_fn is None
        return is_dense and is_own and not is_trained and value.nbytes <= max_tensor
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc" and value.nbytes <= _MAX_ARRAY
    if not is_container(value):
        return depth == 0 and is_generator(value)
    items = _items(value)
    if _all_plain(items):
        return len(items) <= _MAX_PLAIN_ITEMS
    if depth == _MAX_DEPTH or len(items) > _MAX_ITEMS:
        return False
    return all(can_move(item, max_tensor, depth + 1) for item in items)


def can_move_with_est(value: object) -> bool:
    """Whether each EST may have a value of its own."""
    return not is_long(value) and can_move(value)


def is_long(value: Any, depth: int = 0) -> bool:
    """Whether a container, or one inside it, has more items than may move with an EST."""
    if not is_container(value) or depth > _MAX_DEPTH:
        return False
    if len(value) > MAX_ITEMS_OF_EST:
        return True
    items = _items(value)
    return not _all_plain(items) and (len(items) > _MAX_ITEMS or any(is_long(item, depth + 1) for item in items))


def can_change_in_place(value: object) -> bool:
    """Whether a change may leave the same object in its place. Objects of other kinds are compared by identity alone."""
    if is_container(value):
        return type(value) is not tuple or not _all_plain(value)
    return isinstance(value, Tensor | np.ndarray) or is_generator(value)


def size(value: Any) -> Bytes:
    """Bytes of the tensors in a value that `can_move`."""
    if isinstance(value, Tensor):
        return value.nbytes
    if not is_container(value) or _all_plain(items := _items(value)):
        return 0
    return sum(map(size, items))


def note(value: object, max_items: int = _MAX_PLAIN_ITEMS, depth: int = 0) -> object:
    """What is equal as long as the value has not changed. For a container with more items, or too deep inside others, that
    is its length; for an object of another kind, its identity."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, Tensor):
        return _Noted(value, value._version)
    if isinstance(value, np.ndarray):
        can = value.nbytes <= _MAX_ARRAY and not value.dtype.hasobject
        return _Noted(value, value.tobytes() if can else None)
    if is_generator(value):
        return _Noted(value, _state(value))
    if not is_container(value):
        return _Noted(value, None)
    items = _items(value)
    if len(items) > max_items or depth > _MAX_DEPTH:
        return _Noted(value, len(items))
    return type(value), items if _all_plain(items) else tuple(note(item, max_items, depth + 1) for item in items)


def same(a: object, b: object) -> bool:
    """Whether two notes show no change. 1, 1.0 and True differ."""
    return a is b or (type(a) is type(b) and a == b)  # A NaN is itself.


def copied(value: Any) -> Copy:
    """The copy of a value that `can_move`."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, Tensor):
        return "tensor", value.detach().clone(), value.device.type
    if isinstance(value, np.ndarray):
        return "array", torch.from_numpy(np.array(value))
    if is_generator(value):
        return "generator", value.get_state() if isinstance(value, torch.Generator) else _state(value)
    if type(value) in _MAPPINGS.values():
        keys, values = [copied(key) for key in value], [copied(item) for item in value.values()]
        return type(value).__name__, keys, values
    items = sorted(value, key=repr) if type(value) is set else value
    most = value.maxlen if type(value) is deque else None
    return type(value).__name__, [copied(item) for item in items], most


def made(copy: Copy) -> Any:
    """A new value from a copy. A copy of a generator can only be written into a generator."""
    if not isinstance(copy, tuple):
        return copy
    kind, *parts = copy
    if kind == "tensor":
        return parts[0].detach().to(parts[1], copy=True)
    if kind == "array":
        return parts[0].cpu().numpy().copy()
    if kind in _MAPPINGS:
        return _MAPPINGS[kind](dict(zip(map(made, parts[0]), map(made, parts[1]), strict=True)))
    items = map(made, parts[0])
    return deque(items, parts[1]) if kind == "deque" else _SEQUENCES[kind](items)


@torch.no_grad()
def write_into(value: Any, copy: Copy) -> bool:
    """Give a value the content of a copy in place. Returns False if it cannot: for another shape, or a tuple."""
    kind, *parts = copy if isinstance(copy, tuple) else (None,)
    if isinstance(value, Tensor) and kind == "tensor" and value.shape == parts[0].shape:
        value.copy_(parts[0])
    elif isinstance(value, np.ndarray) and kind == "array" and value.shape == tuple(parts[0].shape):
        value[...] = parts[0].cpu().numpy()
    elif is_generator(value) and kind == "generator":
        _set_state(value, parts[0])
    elif type(value).__name__ == kind and type(value) in _CONTAINERS - {tuple}:
        content = made(copy)
        value.clear()
        (value.extend if type(value) in (list, deque) else value.update)(content)
    else:
        return False
    return True


class _Noted:
    """An object by its identity, with what differs after it has changed in place, such as a tensor's version."""

    def __init__(self, value: object, shows: object) -> None:
        self._value = value  # Held, so that no other object gets its id.
        self._shows = shows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Noted) and self._value is other._value and self._shows == other._shows

    __hash__ = None  # type: ignore[assignment]


def _items(value: Any) -> tuple[Any, ...]:
    """All items of a container; of a mapping also its keys."""
    return (*value, *value.values()) if type(value) in _MAPPINGS.values() else tuple(value)


def _all_plain(items: Iterable[object]) -> bool:
    return set(map(type, items)) <= PLAIN


def _state(generator: Any) -> Any:
    """The state of a generator: bytes of torch's, else tuples, dicts, numbers and strings."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    is_new = isinstance(generator, np.random.Generator)
    return _pure(generator.bit_generator.state if is_new else generator.get_state(legacy=False))


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state.cpu())
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _pure(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _pure(value) for key, value in state.items()}
    return tuple(state.tolist()) if isinstance(state, np.ndarray) else state
