"""Notices when parameters and buffers change where only an update may change them."""

from collections.abc import Iterable

from torch import Tensor, nn

from esprof.elastic.assignment import Est
from esprof.elastic.guard.content import content
from esprof.errors import UsageError

_IN_A_TURN = (
    "ESTs that run one after the other would not start alike. Leave weights to the optimizer: no max_norm of an embedding, "
    "no optimizer that steps within the backward pass, no change of weights in forward or in the loss function."
)


class Edits:
    """Counts the changes that torch notes of each tensor (its version), which costs no look at the values.

    A change by way of `.data` is not noted; what it leads to shows where a step is verified.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.named_parameters())
        self._named = [*self._parameters, *model.named_buffers()]
        self._versions: list[int] = []
        self._before: list[int] = []

    def mark(self) -> None:
        """What is there now is how the trainer leaves the model to the script."""
        self._versions = _versions(self._named)

    def of_the_script(self) -> dict[str, str]:
        """The tensors that have changed since `mark`, by name, with hashes of what they hold now."""
        changed = zip(self._named, self._versions, _versions(self._named), strict=True)
        return {f"change of {name}": content(tensor) for (name, tensor), before, now in changed if before != now}

    def all(self) -> dict[str, str]:
        """Hashes of all tensors, by name."""
        return {f"value of {name}": content(tensor) for name, tensor in self._named}

    def begin_turn(self) -> None:
        self._before = _versions(self._parameters)

    def end_turn(self, est: Est) -> None:
        """Raise UsageError where a parameter has changed since the turn of `est` began."""
        now = _versions(self._parameters)
        if now != self._before:
            changed = zip(self._parameters, self._before, now, strict=True)
            names = [name for (name, _), before, after in changed if before != after]
            more = " and others" if len(names) > 5 else ""
            raise UsageError(
                f"{', '.join(names[:5])}{more} changed while EST {est} computed its gradient", remedy=_IN_A_TURN
            )


def _versions(named: Iterable[tuple[str, Tensor]]) -> list[int]:
    return [tensor._version for _, tensor in named]
