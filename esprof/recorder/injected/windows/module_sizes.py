"""Sizes of modules, and which modules take the outputs of which: noted at the first call of each in a window."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ...shared.torch_features import hide_from_dynamo
from ..log.circuit_breaker import CircuitBreaker
from ..log.notes import Log

_MAX_NODES = 1000
"""Most nodes of the autograd graph between two modules: a recurrent network may have the graph of all earlier steps."""

_MAX_DEPTH = 4
"""Deepest nesting of containers in which tensors are sought."""


class ModuleSizes:
    """Notes rows `modules`: (name, own_bytes, parameter_bytes, output_bytes, inputs, outputs).

    `own_bytes` are those of the parameters that are not in inner modules.

    `inputs` are the names of the modules whose outputs the module takes, `outputs` of those whose outputs it returns, itself
    or after operations of its own; None if too many nodes lie between. Both come from the autograd graph: a tensor without
    gradients comes from no module. The nodes are kept until the outermost call ends, as long as its output keeps them.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._breaker = CircuitBreaker("recording of the sizes of modules", log, self._forget)
        self._depth = 0
        self._makers: dict[int, tuple[Any, list[str]]] = {}
        """By its id, each node that made an output, and the names of the modules with this output, inner ones first."""

    def measured(
        self,
        name: str,
        module: nn.Module,
        call: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        """What the call of `module` returns, after its sizes were noted."""
        taken, inputs = self._inputs((arguments, options))
        self._depth += 1
        try:
            output = call(module, *arguments, **options)
            self._output(name, module, output, taken, inputs)
            return output
        finally:
            self._depth -= 1
            if not self._depth:
                self._forget()

    def _inputs(self, given: object) -> tuple[list[Any], list[str] | None]:
        """The nodes that made the tensors in `given`, and the names of the modules that they come from."""
        taken = self._breaker.run(_nodes_of, given) or []
        return taken, self._breaker.run(self._sources, taken)

    def _output(self, *noted: Any) -> None:
        self._breaker.run(self._note, *noted)

    def _note(self, name: str, module: nn.Module, output: object, taken: list[Any], inputs: list[str] | None) -> None:
        made, outputs = {id(tensor): tensor for tensor in _tensors(output)}, _nodes_of(output)
        sources = self._sources(outputs)
        # What a module only passes on is its output alone.
        passed_on = {id(node) for node in taken}
        for node in outputs:
            _, names = self._makers.get(id(node), (node, []))
            self._makers[id(node)] = node, [name] if id(node) in passed_on else [*names, name]
        sizes = (_bytes(of) for of in (module._parameters.values(), module.parameters(), made.values()))
        self._log.roll("modules", (name, *sizes, inputs, sources))

    def _sources(self, nodes: list[Any]) -> list[str] | None:
        """Names of the modules whose outputs lead to these nodes; None if too many nodes lie between."""
        found: dict[str, None] = {}
        seen: dict[int, Any] = {}
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node is None or id(node) in seen:
                continue
            seen[id(node)] = node  # Kept, as another node may otherwise get its id.
            if len(seen) > _MAX_NODES:
                return None
            if id(node) in self._makers:
                found.update(dict.fromkeys(self._makers[id(node)][1]))
            else:
                waiting.extend(before for before, _ in node.next_functions)
        return list(found)

    def _forget(self) -> None:
        self._makers.clear()


def _nodes_of(value: object) -> list[Any]:
    """The nodes of the autograd graph that made the tensors in `value`."""
    return [tensor.grad_fn for tensor in _tensors(value) if tensor.grad_fn is not None]


def _bytes(tensors: Iterable[torch.Tensor | None]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors if one is not None)


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in `value`, and in containers in it. `isinstance` would run code of proxies."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield value
    elif depth <= _MAX_DEPTH and issubclass(kind, dict | list | tuple):
        for one in value.values() if issubclass(kind, dict) else value:
            yield from _tensors(one, depth + 1)


hide_from_dynamo(ModuleSizes.measured)
for own in (ModuleSizes._inputs, ModuleSizes._output):
    hide_from_dynamo(own, with_callees=True)
