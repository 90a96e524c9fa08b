"""Size and padding of a batch, from its tensors and from how its sequences were put together."""

import ctypes
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

_MAX_ITEMS = 16

_MASK = "attention_mask"
"""Name that tokenizers give the tensor (B x T) that is 0 for padding tokens."""

_MAX_ELEMENTS = 1 << 20
"""Largest tensor that is read, in elements: reading it takes some milliseconds, and training on it far longer."""

_MIN_LENGTH = 8
"""Least length of rows that are taken for sequences without a mask: shorter ones may be a few columns of numbers."""

_INTEGERS: dict[int, Any] = {1: ctypes.c_uint8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}
"""Element size in bytes -> integer type."""


class Padding(NamedTuple):
    """Padding of the sequences of a batch."""

    tokens: int
    """Number of all tokens."""
    padding: int
    """Number of tokens that only pad."""
    pairs: int | None
    """Number of pairs of tokens of one sequence, which attention computes; None if rows hold several sequences."""
    padding_pairs: int | None
    """Number of these pairs with a token that only pads."""


def padding_of(lengths: Sequence[int], width: int) -> Padding:
    """Padding of sequences of these lengths, each padded to `width`."""
    tokens, pairs = len(lengths) * width, len(lengths) * width**2
    return Padding(tokens, tokens - sum(lengths), pairs, pairs - sum(length**2 for length in lengths))


def padding(batch: Any) -> Padding | None:
    """Padding of a batch, from its attention mask, lengths, a mask of another name, or sequences with equal ends; None if
    none of them tells it, or if rows hold several sequences each.

    Tensors are read directly from memory: any operation of torch, even `Tensor.numpy`, would appear in the job's trace.
    """
    # Reading a subclass may have side effects, and nested tensors have no size.
    tensors = [
        (name, tensor)
        for name, tensor in _tensors(batch, depth=3)
        if type(tensor) is torch.Tensor and not tensor.is_nested
    ]
    tables = [(name, table) for name, tensor in tensors if (table := _table(tensor)) is not None]
    for name, table in tables:
        if name == _MASK:
            return _counted((table != 0).sum(1), table.shape[1])
    if any(_restarts(table) for _, table in tables):
        return None
    largest = max((tensor for _, tensor in tensors), key=torch.Tensor.numel, default=None)
    if largest is not None and (counted := _by_lengths(largest, [tensor for _, tensor in tensors])):
        return counted
    ids = next((table for _, table in tables if table.min() >= 0 and table.max() > 1), None)
    for name, table in tables:
        if table.max() == 1 and table.min() == 0:
            real = _real_tokens(table != 0, ids if ids is not None and ids.shape == table.shape else None, name)
            if real is not None:
                return _counted(real.sum(1), table.shape[1])
    if ids is not None:
        return _by_equal_ends([_is_pad(ids), _is_pad(ids[:, ::-1])]) if ids.shape[1] >= _MIN_LENGTH else None
    frames = None if largest is None else _frames_of_numbers(largest)
    return None if frames is None else _by_equal_ends([(frames == 0).all(2)])


def _counted(lengths: np.ndarray, width: int) -> Padding:
    return padding_of(lengths.tolist(), width)


def _tensors(batch: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of each tensor of a batch; without a name in lists."""
    items: Iterable[tuple[str, Any]] = ()
    if isinstance(batch, torch.Tensor):
        yield "", batch
    elif isinstance(batch, list | tuple):
        items = (("", item) for item in batch[:_MAX_ITEMS])
    elif isinstance(batch, Mapping):
        items = islice(batch.items(), _MAX_ITEMS)
    elif _MASK in getattr(batch, "__dict__", ()) or dataclasses.is_dataclass(batch):
        items = islice(vars(batch).items(), _MAX_ITEMS)
    for name, item in items:
        if isinstance(item, torch.Tensor):
            yield str(name), item
        elif depth:
            yield from _tensors(item, depth - 1)


def _table(tensor: torch.Tensor) -> np.ndarray | None:
    """The elements of a tensor of integers or truth values (B x T) in CPU memory; None for others."""
    return _elements(tensor) if tensor.dim() == 2 and not tensor.is_floating_point() else None


def _elements(tensor: torch.Tensor) -> np.ndarray | None:
    """The elements of a tensor in CPU memory, each as the integer with the same bits; None for tensors that are not read."""
    if (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.is_complex()
        or not 0 < tensor.numel() <= _MAX_ELEMENTS
        or not tensor.is_contiguous()
    ):
        return None
    memory = (_INTEGERS[tensor.element_size()] * tensor.numel()).from_address(tensor.data_ptr())
    return np.ctypeslib.as_array(memory).reshape(tuple(tensor.shape))


def _by_lengths(largest: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Padding | None:
    """Padding of the largest tensor of a batch (B x T x ... or T x B x ...), if another one (B) tells its lengths."""
    values = _elements(largest) if largest.dim() > 1 else None
    if values is None:
        return None
    for tensor in tensors:
        lengths = _elements(tensor) if tensor.dim() == 1 and _is_integer(tensor) else None
        if lengths is not None and lengths.min() > 0:
            for rows in (values, values.swapaxes(0, 1)):
                if _ends_at(rows, lengths):
                    return _counted(lengths, rows.shape[1])
    return None


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype != torch.bool


def _ends_at(rows: np.ndarray, lengths: np.ndarray) -> bool:
    """Whether these are the lengths of sequences (B x T x ...): one number follows, which seldom ends them."""
    height, width = rows.shape[:2]
    if width < _MIN_LENGTH or len(lengths) != height or lengths.max() > width or lengths.min() == width:
        return False
    frames = rows.reshape(height, width, -1)
    is_pad = (frames == frames[lengths.argmin(), -1, 0]).all(2)
    is_after = np.arange(width) >= lengths[:, None]
    return bool(is_pad[is_after].all() and 2 * is_pad[np.arange(height), lengths - 1].sum() <= height)


def _frames_of_numbers(tensor: torch.Tensor) -> np.ndarray | None:
    """The elements of floating-point numbers that may be sequences (B x T or B x T x F), as B x T x F; None for others, and
    for numbers that are all zero or another one, as those of masks and levels are."""
    is_sequence = tensor.is_floating_point() and tensor.dim() in (2, 3) and tensor.shape[1] >= _MIN_LENGTH
    found = _elements(tensor) if is_sequence else None
    if found is None or not (found[:, -1] == 0).any():
        return None
    others = found[found != 0]
    return found.reshape(*found.shape[:2], -1) if len(others) and (others != others[0]).any() else None


def _restarts(table: np.ndarray) -> bool:
    """Whether a table has the positions of tokens, of which some rows begin again: several sequences share a row."""
    if table.shape[1] < 2 or table[:, 0].any():
        return False
    begins, goes_on = table[:, 1:] == 0, table[:, 1:] == table[:, :-1] + 1
    # Zeros at the end may pad.
    return bool((begins | goes_on).all() and (begins[:, :-1] & goes_on[:, 1:]).any())


def _real_tokens(mask: np.ndarray, ids: np.ndarray | None, name: str) -> np.ndarray | None:
    """Which tokens of a mask of any name are no padding, bool[B, T]; None if it does not say so.

    Padding is at one end of each row, and has one id. Without ids, the name tells what True means.
    """
    for real in (mask, ~mask):
        starts = np.diff(real, axis=1, prepend=False) & real
        if not real.any(1).all() or (starts.sum(1) > 1).any() or not (real[:, 0] | real[:, -1]).all():
            continue
        if ids is None:
            means_padding = "pad" in name.lower()
            if means_padding == (real is not mask) and (means_padding or "mask" in name.lower()):
                return real
        elif len(np.unique(ids[~real])) == 1 < len(np.unique(ids[real])):
            return real
    return None


def _is_pad(ids: np.ndarray) -> np.ndarray:
    """Which token ids equal the most frequent one at the ends of rows, bool[B, T]."""
    values, counts = np.unique(ids[:, -1], return_counts=True)
    is_pad: np.ndarray = ids == values[counts.argmax()]
    return is_pad


def _by_equal_ends(candidates: Iterable[np.ndarray]) -> Padding | None:
    """Padding by the first candidate, bool[B, T], that is true at the ends of rows alone. None unless rows have different
    numbers of such ends, as sequences of different lengths do."""
    for is_pad in candidates:
        width = is_pad.shape[1]
        ends = np.where(is_pad.all(1), width, (~is_pad[:, ::-1]).argmax(1))
        if ends.max() > 1 and ends.sum() == is_pad.sum() and len(np.unique(ends)) > 1:
            return _counted(width - ends, width)
    return None


class PaddedSequences:
    """Notes what `pad_sequence` pads while a batch is made: calls for the same lengths, as of tokens and labels, count
    once."""

    def __init__(self) -> None:
        self._original: Callable[..., torch.Tensor] | None = None
        self._widths: dict[tuple[int, ...], int] = {}

    def begin(self) -> None:
        """Begin a batch."""
        self.end()
        self._widths = {}
        # `torch.nn.utils.rnn.pad_sequence` looks it up there at each call. Only while a batch is made: compiled models must
        # see the original.
        self._original = original = torch._C._nn.pad_sequence

        def pad_sequence(sequences: Any, *arguments: Any, **options: Any) -> torch.Tensor:
            if isinstance(sequences, list | tuple) and sequences:
                lengths = tuple(len(sequence) for sequence in sequences)
                self._widths[lengths] = max(lengths)
            return original(sequences, *arguments, **options)

        torch._C._nn.pad_sequence = pad_sequence

    def end(self) -> Padding | None:
        """End the batch. Returns the padding of all its sequences; None if none were padded."""
        if self._original is not None:
            torch._C._nn.pad_sequence, self._original = self._original, None
        found = [padding_of(lengths, width) for lengths, width in self._widths.items()]
        return Padding(*(sum(column) for column in zip(*found, strict=True))) if found else None


def size(batch: Any) -> tuple[int | None, int | None]:
    """(samples, tokens) of a batch, from its first tensor: its length and, for B x T integers, its number of elements.

    None for an unknown value.
    """
    tensor = next((tensor for _, tensor in _tensors(batch, depth=2)), None)
    if tensor is None or tensor.dim() == 0:
        return None, None
    is_tokens = tensor.dim() == 2 and not tensor.is_floating_point() and tensor.dtype != torch.bool
    return tensor.shape[0], tensor.numel() if is_tokens else None
