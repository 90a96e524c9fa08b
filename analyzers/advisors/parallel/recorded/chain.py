"""The division of a model into layers: parts of its forward pass between two points that all data pass."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from esprof.core.types import Bytes, Ns

_ENTRY = -1
"""Stands for all that a module gets from outside."""

Sizes = Mapping[str, "ModuleSize"]
"""What was recorded of modules, by name."""


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module, and the calls in it by time."""

    name: str
    begin_ns: Ns
    end_ns: Ns
    inner: "tuple[ModuleCall, ...]" = ()

    def walk(self) -> "Iterator[ModuleCall]":
        """This call and all in it, outer ones first."""
        yield self
        for call in self.inner:
            yield from call.walk()


@dataclass(frozen=True, kw_only=True)
class ModuleSize:
    """What was recorded of a module; see `schema.MODULES`."""

    own_bytes: Bytes = 0
    parameter_bytes: Bytes
    output_bytes: Bytes
    inputs: frozenset[str] | None = frozenset()
    outputs: frozenset[str] | None = frozenset()


@dataclass(frozen=True)
class LayerModules:
    """Consecutive calls of modules that are one layer. Only the output of the last is used after them."""

    names: tuple[str, ...]
    parameter_bytes: Bytes


class Chain:
    """The layers of a model, from a call of it and the sizes of its modules."""

    def __init__(self, root: ModuleCall, sizes: Sizes) -> None:
        root, self._sizes = _without_repeated(root, sizes)
        self.shared_bytes = 0
        """Parameters that several layers use, which count in each."""
        self.parts = tuple(self._parts(root, is_root=True))

    def _parts(self, module: ModuleCall, *, is_root: bool = False) -> list[LayerModules]:
        """The layers in a module. It is one layer itself if data bypass each point in it, or too little is known."""
        size = self._sizes[module.name]
        stretches = list(self._stretches(module, is_root))
        found = list[LayerModules]()
        for stretch in stretches:
            if len(stretch) > 1:
                together = sum(self._sizes[call.name].parameter_bytes for call in stretch)
                found.append(LayerModules(tuple(call.name for call in stretch), together))
            else:
                found += self._parts(stretch[0], is_root=is_root and len(module.inner) == 1)
        if len(found) < 2:
            return [LayerModules((module.name,), size.parameter_bytes)]
        inner = sum(self._sizes[call.name].parameter_bytes for call in module.inner)
        uncalled = size.parameter_bytes - size.own_bytes - inner
        self.shared_bytes += max(0, -uncalled)
        # Parameters of the module itself, such as embeddings of positions, are mostly used at its begin.
        own = size.own_bytes + max(0, uncalled)
        return [replace(found[0], parameter_bytes=found[0].parameter_bytes + own), *found[1:]]

    def _stretches(self, module: ModuleCall, is_root: bool) -> Iterator[tuple[ModuleCall, ...]]:
        """The calls directly in a module, divided after each whose output is all that is used later; none if what the module
        returns is more than the output of the last. Nobody uses what the root returns."""
        calls, uses = module.inner, _uses(module, self._sizes)
        if uses is None or not (is_root or uses[-1] <= {len(calls) - 1}):
            return
        begin = 0
        for at in range(len(calls)):
            crossing = {source for user in uses[at + 1 :] for source in user if source <= at}
            if crossing <= {at} or at == len(calls) - 1:
                yield calls[begin : at + 1]
                begin = at + 1


def obstacle(root: ModuleCall, sizes: Sizes) -> str:
    """Why a model is no chain of layers."""
    root, sizes = _without_repeated(root, sizes)
    if not root.inner:
        return f"no module in {root.name} was recorded"
    while len(root.inner) == 1 and root.inner[0].inner:
        root = root.inner[0]
    if twice := _repeated(root.inner):
        return f"{min(twice)} has parameters and is called twice"
    uses = _uses(root, sizes)
    if uses is None:
        return "the inputs of its modules are unknown"
    calls = root.inner
    for call, mine in zip(calls, uses, strict=False):
        if len(mine) > 1:
            names = [calls[at].name if at != _ENTRY else "inputs of the model" for at in sorted(mine)]
            return f"{call.name} uses {' and '.join(names)}"
    return f"{root.name} has branches"


def _uses(module: ModuleCall, sizes: Sizes) -> list[set[int]] | None:
    """For each call directly in a module, and last for what the module returns: numbers of the calls whose output it uses.
    None if that is unknown, or a module is called twice."""
    calls = module.inner
    if not calls or _repeated(calls) or any(call.name not in sizes for call in calls):
        return None
    place = {inner.name: at for at, call in enumerate(calls) for inner in call.walk()}
    sources = [*(sizes[call.name].inputs for call in calls), sizes[module.name].outputs]
    if any(one is None for one in sources):
        return None
    # Who takes no output of a module takes the data.
    found = [{place.get(source, _ENTRY) for source in one or ()} or {_ENTRY} for one in sources]
    return [*found[:-1], found[-1] if sources[-1] else {len(calls) - 1}]


def _repeated(calls: Iterable[ModuleCall]) -> set[str]:
    """Names that occur twice."""
    return {name for name, count in Counter(call.name for call in calls).items() if count > 1}


def _without_repeated(root: ModuleCall, sizes: Sizes) -> tuple[ModuleCall, Sizes]:
    """The call and the sizes without modules that are called twice and have no parameters, such as an activation: as if
    each were a plain operation."""
    plain = {name for name in _repeated(root.walk()) if name in sizes and not sizes[name].parameter_bytes}

    def kept(call: ModuleCall) -> ModuleCall:
        return replace(call, inner=tuple(kept(one) for one in call.inner if one.name not in plain))

    def sources(names: Collection[str] | None) -> frozenset[str] | None:
        while names is not None and (gone := plain.intersection(names)):
            behind = [sizes[name].inputs for name in gone]
            names = None if None in behind else set(names).difference(gone).union(*(one or () for one in behind))
        return None if names is None else frozenset(names)

    return kept(root), {
        name: replace(one, inputs=sources(one.inputs), outputs=sources(one.outputs)) for name, one in sizes.items()
    }
