"""Compares two step-hash logs: whether two runs are bitwise equal, and if not, where they diverge. Needs no
torch."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from esprof.core.errors import InputError, unreadable
from esprof.elastic.verify.steplog import Difference, Digest, StepLine, StepLog, values_path

_FLOATS = {"bfloat16", "float16", "float32", "float64"}

Array = NDArray[Any]


class Distance(msgspec.Struct, frozen=True):
    """How far two arrays of one type and shape are apart."""

    differing: int
    """Number of elements whose bits differ."""
    max_ulp: int | None = None
    """Largest distance of two elements, in units in the last place: 1 for neighbours. NaN is left out; None for
    integers."""
    nan: int = 0
    """Number of differing elements that are NaN in either array."""


class TensorDifference(msgspec.Struct, frozen=True):
    """One tensor that differs from its counterpart, and how far; where that is unknown, `reason` says why."""

    name: str
    dtype: str
    elements: int
    distance: Distance | None
    reason: str | None


class LossDifference(msgspec.Struct, frozen=True):
    est: int
    a: float
    b: float


class StepDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first step after which the two jobs were not the same."""

    step: int
    epoch: int
    assignment_a: tuple[tuple[int, ...], ...]
    assignment_b: tuple[tuple[int, ...], ...]
    losses: tuple[LossDifference, ...]
    """Losses of the ESTs whose loss differs: they parted before they had a gradient."""
    tensors: int
    """Number of tensors after the step."""
    tensors_differing: int
    """Number of tensors that differ after the step."""
    tensor: TensorDifference | None
    """The first tensor that differs, in the order of the model; None where only losses differ."""


class ElasticDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `esprof elastic diff`."""

    schema: str = "esprof.elastic-diff/1"
    outcome: Literal["equal", "differ", "not-comparable"]
    a: str
    b: str
    steps_equal: int
    """Number of steps that were the same in both logs, up to the first that was not."""
    last_equal: int | None
    """The last of the steps that were the same; None where none was."""
    only_a: int
    """Number of steps that log A alone has; complete where the outcome is `equal`."""
    only_b: int
    """Number of steps that log B alone has; complete where the outcome is `equal`."""
    proven_a: int | None
    """The last step of log A whose bits are proven, as far as it was compared; None if none is."""
    proven_b: int | None
    """That of log B."""
    diverged_a: int | None
    """The first step of log A whose bits had diverged; None if none had."""
    diverged_b: int | None
    """That of log B."""
    difference: StepDifference | None = None
    mismatch: Difference | None = None
    """Why the two logs cannot be compared; None if they can."""


def diff(path_a: Path, path_b: Path) -> ElasticDiff:
    """Compare two logs, step by step as far as both go. Raises InputError where one cannot be read."""
    a, b = StepLog.open(path_a), StepLog.open(path_b)
    return _Comparison(a, b).run()


class _Comparison:
    def __init__(self, a: StepLog, b: StepLog) -> None:
        self._a = a
        self._b = b
        self._equal = 0
        self._last: int | None = None
        self._only = {"a": 0, "b": 0}
        self._proofs: dict[str, tuple[int | None, int | None]] = {"a": (None, None), "b": (None, None)}
        """The last step of each log that is proven, and the first one that has diverged."""

    def run(self) -> ElasticDiff:
        mismatch = self._a.fingerprint.difference(self._b.fingerprint)
        if mismatch:
            return self._answer("not-comparable", mismatch=mismatch)
        steps_a, steps_b = self._noted("a", self._a), self._noted("b", self._b)
        for a, b in _pairs(steps_a, steps_b, self._only):
            if a.codec != b.codec:  # A codec is part of what is trained, as the fields of a fingerprint are.
                mismatch = Difference(f"codec of step {a.step}", a.codec, b.codec)
                return self._answer("not-comparable", mismatch=mismatch)
            if (a.sha256, a.losses, a.skipped) != (b.sha256, b.losses, b.skipped):
                return self._answer("differ", difference=self._difference(a, b))
            self._equal += 1
            self._last = a.step
        if not self._equal:
            mismatch = Difference("steps", *(f"{count} of its own" for count in self._only.values()))
            return self._answer("not-comparable", mismatch=mismatch)
        return self._answer("equal")

    def _noted(self, side: str, log: StepLog) -> Iterator[StepLine]:
        """The lines of a log; notes what is proven by them."""
        for line in log.steps():
            self._proofs[side] = line.proven, line.diverged
            yield line

    def _answer(self, outcome: Literal["equal", "differ", "not-comparable"], **found: Any) -> ElasticDiff:
        return ElasticDiff(
            outcome=outcome,
            a=str(self._a.path),
            b=str(self._b.path),
            steps_equal=self._equal,
            last_equal=self._last,
            only_a=self._only["a"],
            only_b=self._only["b"],
            proven_a=self._proofs["a"][0],
            proven_b=self._proofs["b"][0],
            diverged_a=self._proofs["a"][1],
            diverged_b=self._proofs["b"][1],
            **found,
        )

    def _difference(self, a: StepLine, b: StepLine) -> StepDifference:
        losses = [
            LossDifference(est, float.fromhex(of_a), float.fromhex(of_b))
            for est, (of_a, of_b) in enumerate(zip(a.losses, b.losses, strict=False))
            if of_a != of_b
        ]
        names = [name for name in {**a.tensors, **b.tensors} if a.tensors.get(name) != b.tensors.get(name)]
        return StepDifference(
            step=a.step,
            epoch=a.epoch,
            assignment_a=a.assignment,
            assignment_b=b.assignment,
            losses=tuple(losses),
            tensors=len({**a.tensors, **b.tensors}),
            tensors_differing=len(names),
            tensor=self._tensor(names[0], a.tensors.get(names[0]), b.tensors.get(names[0])) if names else None,
        )

    def _tensor(self, name: str, a: Digest | None, b: Digest | None) -> TensorDifference:
        known = a or b
        assert known is not None
        apart, reason = self._distance(a, b)
        return TensorDifference(name, known.dtype, math.prod(known.shape), apart, reason)

    def _distance(self, a: Digest | None, b: Digest | None) -> tuple[Distance | None, str | None]:
        """How far the two tensors are apart, or why that is unknown."""
        if a is None or b is None:
            return None, f"log {'B' if a else 'A'} has no such tensor"
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return None, f"it is {b.dtype} {list(b.shape)} in log B"
        values_a, values_b = _values(self._a.path, a), _values(self._b.path, b)
        if values_a is None or values_b is None:
            return None, "values were not stored"
        return distance(values_a, values_b, is_float=a.dtype in _FLOATS), None


def distance(a: Array, b: Array, *, is_float: bool) -> Distance:
    """How far two arrays of one type and shape are apart; `is_float` tells bfloat16, which NumPy lacks, from
    integers."""
    bits_a, bits_b = _bits(a), _bits(b)
    differs = bits_a != bits_b
    differing = int(differs.sum())
    if not is_float:
        return Distance(differing)
    bits_a, bits_b = bits_a[differs], bits_b[differs]
    nan = _is_nan(bits_a, a.dtype) | _is_nan(bits_b, b.dtype)
    ordered_a, ordered_b = _ordered(bits_a[~nan]), _ordered(bits_b[~nan])
    apart = np.maximum(ordered_a, ordered_b) - np.minimum(ordered_a, ordered_b)
    return Distance(differing, int(apart.max(initial=0)), int(nan.sum()))


def _bits(array: Array) -> Array:
    """The bits of each element, as unsigned integers, 1-D."""
    flat: Array = np.ascontiguousarray(array).reshape(-1)
    return flat.view(f"u{array.itemsize}")


def _ordered(bits: Array) -> Array:
    """Floats' bits as unsigned integers that are ordered as the floats are, -0 below +0."""
    sign = bits.dtype.type(1 << (8 * bits.itemsize - 1))
    # The bits of negative floats count backwards: these are inverted, and the positive ones put above them.
    ordered: Array = np.where(bits & sign, ~bits, bits | sign)
    return ordered


def _is_nan(bits: Array, dtype: np.dtype[Any]) -> Array:
    """Mask of the floats that are NaN, by their bits; bfloat16, which NumPy lacks, comes with an integer `dtype`."""
    if dtype.kind == "f":
        return np.asarray(np.isnan(bits.view(dtype)))
    return np.asarray((bits & np.uint16(0x7FFF)) > np.uint16(0x7F80))


def _values(log: Path, digest: Digest) -> Array | None:
    path = values_path(log, digest.sha256)
    try:
        array: Array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, EOFError) as error:
        raise InputError(
            f"is not an array: {error}", path=path, remedy="Remove it. The distance is then unknown."
        ) from error
    if array.shape != digest.shape:
        raise InputError(f"has shape {list(array.shape)}, not {list(digest.shape)}", path=path)
    return array


def _pairs(a: Iterator[StepLine], b: Iterator[StepLine], only: dict[str, int]) -> Iterator[tuple[StepLine, StepLine]]:
    """Pairs of lines of the same step; lines of steps that one log alone has are counted in `only`."""
    line_a, line_b = next(a, None), next(b, None)
    while line_a is not None or line_b is not None:
        if line_b is None or (line_a is not None and line_a.step < line_b.step):
            only["a"] += 1
            line_a = next(a, None)
        elif line_a is None or line_b.step < line_a.step:
            only["b"] += 1
            line_b = next(b, None)
        else:
            yield line_a, line_b
            line_a, line_b = next(a, None), next(b, None)
