"""Notices when parameters, buffers and optimizer states change where only an update may change them."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from torch import Tensor, nn
from torch.optim import Optimizer

from esprof.core import readable
from esprof.core.assignment import Est
from esprof.core.errors import UsageError
from esprof.elastic.verify.content import content

_EDIT_REMEDY = (
    "The next EST would start with other weights. Let only the optimizer change weights: no max_norm of an embedding, "
    "no optimizer that steps within the backward pass, no change of weights in forward or in the loss function."
)


class Edits:
    """Detects changes by torch's version counter of each tensor, without reading values.

    A change through `.data` is not counted; its effect is found when a step is verified.
    """

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], outside: Mapping[str, nn.Module] = MappingProxyType({})
    ) -> None:
        """`outside` are modules outside of the model that its loss reaches, by name."""
        self._model = model
        self._optimizers = optimizers
        self._parameters = list(model.named_parameters())
        self._watched = [*self._parameters, *_parameters(outside)]
        """Those that no EST step may change."""
        self._outside = outside
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in self._parameters}
        self._left: dict[str, tuple[Tensor, int]] = {}
        """Each tensor as it was left to the script, and its version."""
        self._before: list[int] = []

    def mark(self) -> None:
        """Store the present versions as the state in which the script gets the model."""
        self._left = {name: (tensor, tensor._version) for name, tensor in self._all()}

    def of_the_script(self) -> dict[str, str | None]:
        """What has changed since `mark`, by name, with hashes of what they hold now; None for one that has gone."""
        now, changed = dict(self._all()), {}
        for name in {**self._left, **now}:
            tensor, (before, version) = now.get(name), self._left.get(name, (None, 0))
            if tensor is None or tensor is not before or tensor._version != version:
                changed[f"change of {name}"] = None if tensor is None else content(tensor)
        return changed

    def all(self) -> dict[str, str]:
        """Hashes of all tensors, by name."""
        buffers = [
            (f"{name}.{key}", one) for name, module in self._outside.items() for key, one in module.named_buffers()
        ]
        outside = [*_parameters(self._outside), *buffers]
        return {f"value of {name}": content(tensor) for name, tensor in [*self._all(), *outside]}

    def begin_est_step(self) -> None:
        self._before = _versions(self._watched)

    def end_est_step(self, est: Est) -> None:
        """Raise UsageError if a parameter has changed since the step of `est` started."""
        now = _versions(self._watched)
        if now != self._before:
            changed = zip(self._watched, self._before, now, strict=True)
            names = [name for (name, _), before, after in changed if before != after]
            raise UsageError(
                f"{readable.listed(names, most=5)} changed while EST {est} computed its gradient",
                remedy=_EDIT_REMEDY,
            )

    def _all(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters, buffers, and the tensors of the optimizers' states."""
        yield from self._parameters
        yield from self._model.named_buffers()
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, Tensor):
                        yield f"{key} of {self._names[parameter]}", value


def _parameters(modules: Mapping[str, nn.Module]) -> list[tuple[str, Tensor]]:
    return [
        (f"{name}.{key}", parameter) for name, module in modules.items() for key, parameter in module.named_parameters()
    ]


def _versions(named: Sequence[tuple[str, Tensor]]) -> list[int]:
    return [tensor._version for _, tensor in named]
