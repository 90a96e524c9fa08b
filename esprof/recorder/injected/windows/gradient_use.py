"""Whether an optimizer uses the gradients that a model's backward passes compute."""

import weakref
from collections.abc import Collection
from typing import NamedTuple

import torch

MIN_STEPS_GROWN = 2
"""Least number of steps of optimizers at which gradients that are never reset must have grown."""


class _Gradient(NamedTuple):
    """A gradient as it was at a moment."""

    tensor: "weakref.ref[torch.Tensor]"
    version: int

    def is_as_in(self, other: "_Gradient") -> bool:
        """Whether nothing was added to it in between."""
        return self.tensor() is other.tensor() and self.version == other.version

    def follows(self, other: "_Gradient") -> bool:
        """Whether it is the other after one change in place."""
        return self.tensor() is other.tensor() and self.version == other.version + 1


class GradientUse:
    """Follows the gradients of a model from one step of its optimizer to the next.

    If they have grown when the optimizer of another model steps, and if its own optimizer later finds other tensors in their
    place, they were discarded: `zero_grad` sets gradients to None. If no optimizer holds them, and backward passes are all
    that changes them, nothing uses them either: code that uses gradients resets them. The first and the last parameter
    stand for all.
    """

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        trained = [one for one in parameters if one.requires_grad]
        self._ends = [weakref.ref(one) for one in (*trained[:1], *trained[-1:])]
        self._calls = 0
        """Calls with gradients since the optimizer of the model stepped."""
        self._calls_before = 0
        """How many of them there were when any optimizer stepped last."""
        self._gradients_before = self._gradients()
        """What the gradients were then."""
        self._unused: dict[int, list[_Gradient]] = {}
        """Number of a call -> the gradients when the optimizer of another model stepped after its backward pass."""
        self._grown = 0
        """Steps of optimizers before which a backward pass was all that changed the gradients, in a row."""
        self._discarded: frozenset[int] = frozenset()
        """Numbers of the calls whose gradients were discarded before the last step of the model's optimizer."""

    def called(self) -> bool:
        """Note a call whose backward pass will compute gradients; whether those of the same call were discarded the last
        time."""
        self._calls += 1
        return self._calls - 1 in self._discarded

    @property
    def only_grow(self) -> bool:
        """Whether gradients were added to those before at several steps of optimizers, and never reset."""
        return self._grown >= MIN_STEPS_GROWN

    def stepped(self, held: Collection[int]) -> None:
        """Note a step of the optimizer that holds these parameters, by identifier."""
        now = self._gradients()
        if self._calls != self._calls_before:
            self._grown = self._grown + 1 if self._are_added_to(now) else 0
        if any(id(ref()) in held for ref in self._ends):
            self._discarded = frozenset(call for call, before in self._unused.items() if self._replace(before, now))
            self._unused.clear()
            self._calls = 0
        elif self._calls == self._calls_before + 1 and self._have_grown(now):
            self._unused[self._calls - 1] = now
        self._calls_before, self._gradients_before = self._calls, now

    def _have_grown(self, now: list[_Gradient]) -> bool:
        pairs = zip(self._gradients_before, now, strict=False)
        return bool(now) and not any(one.is_as_in(other) for one, other in pairs)

    def _are_added_to(self, now: list[_Gradient]) -> bool:
        """Whether one backward pass has added to the gradients before, and nothing else has changed them."""
        before = self._gradients_before
        is_known = 0 < len(now) == len(before)
        return is_known and all(one.follows(other) for one, other in zip(now, before, strict=True))

    def _replace(self, before: list[_Gradient], now: list[_Gradient]) -> bool:
        """Whether a backward pass has computed the gradients `now` without those of `before`."""
        if not now or self._calls == self._calls_before:
            return False  # Without a call since, the job may have made them of the others, as clipping does.
        return all(one.tensor() is not other.tensor() for one, other in zip(before, now, strict=True))

    def _gradients(self) -> list[_Gradient]:
        """Gradients of the parameters that stand for all; empty if one has none."""
        gradients = (parameter.grad for ref in self._ends if (parameter := ref()) is not None)
        found = [_Gradient(weakref.ref(one), one._version) for one in gradients if one is not None]
        return found if len(found) == len(self._ends) else []
