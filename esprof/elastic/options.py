"""Whether what an ElasticTrainer is told makes sense, before anything is made of it."""

import inspect
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, get_args

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from esprof.elastic.reduce.choice import Reduction
from esprof.errors import UsageError

_Rule = tuple[Callable[[Any], bool], str]
"""What holds of an option, and how that is said."""


def check_options(**options: object) -> None:
    """Raise UsageError for the first option of ElasticTrainer, by its name, that makes no sense."""
    for name, value in options.items():
        holds, expected = _RULES[name]
        if not holds(value):
            raise UsageError(f"{name}={value!r} makes no sense: it is {expected}")


def check_steps(optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
    """Raise UsageError for an optimizer or scheduler whose `step` a trainer could not call."""
    for part in (optimizer, scheduler):
        if part is None:
            continue
        try:
            inspect.signature(type(part).step).bind(part)
        except TypeError as error:
            raise UsageError(
                f"step() of {type(part).__name__} wants more than a trainer has: {error}",
                remedy="Choose an optimizer that needs no closure and a scheduler that needs no metric.",
            ) from error


def _at_least(least: int) -> _Rule:
    return lambda value: isinstance(value, Integral) and int(value) >= least, f"a whole number from {least} on"


def _one_of(*values: str | None) -> _Rule:
    return lambda value: value in values, " or ".join(map(repr, values))


_POSITIVE: _Rule = (
    lambda value: value is None or (isinstance(value, Real) and float(value) > 0),
    "None or a number above 0",
)

_RULES: dict[str, _Rule] = {
    "n_est": _at_least(1),
    "batch_size": _at_least(1),
    "accumulate": _at_least(1),
    "num_workers": _at_least(0),
    "clip_norm": _POSITIVE,
    "bucket_mb": _POSITIVE,
    "amp": _one_of(None, "bf16", "fp16"),
    "reduction": _one_of(*get_args(Reduction)),
    "scheduler_by": _one_of("step", "epoch"),
}
