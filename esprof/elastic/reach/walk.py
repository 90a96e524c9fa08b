"""Walks from a training script's functions and objects to what they reach, without calling any of their code."""

import dis
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from esprof.elastic.reach.places import ABSENT, CellPlace, ClassPlace, EntryPlace, Place, SlotPlace
from esprof.elastic.reach.values import PLAIN, can_move, is_container, is_generator
from esprof.elastic.verify.second_run import ATTRIBUTES_OF_ALL_MODULES

_MAX_DEPTH, _MAX_OBJECTS, _MAX_ITEMS = 10, 20_000, 64
"""How deep a walk goes, how many objects it visits, and how many items of a container."""

_CLOSED = {*sys.stdlib_module_names, "torch", "numpy", "pandas", "pyarrow", "PIL", "cv2", "esprof"}
_CLOSED |= {"tqdm", "wandb", "tensorboard", "tensorboardX", "mlflow", "comet_ml", "loguru", "rich"}
"""Packages that are not walked into: their objects compute nothing that they remember, or only log."""

_OPEN = ("torch.optim.", "torch.utils.data.", "argparse", "types")
"""Modules of these packages whose objects hold what a script sets."""

_OF_THREADS = {"_thread", "threading", "queue", "_queue", "multiprocessing", "concurrent", "asyncio"}
_MAX_DEPTH_OF_LOCKS = 2
"""How deep an object may hold a lock by which it is known to be of several threads."""

_SGD = SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
_SAVED = {*vars(_SGD), *vars(LambdaLR(_SGD, float))} - {"optimizer"}
"""Attributes that all optimizers and schedulers have, which are saved with them."""

_HOOKS = [name for name in sorted(ATTRIBUTES_OF_ALL_MODULES) if name.endswith("_hooks")]
_FUNCTIONS = (FunctionType, MethodType, partial, staticmethod, classmethod, property)
_NO_STATE = (*_FUNCTIONS, type, ModuleType, nn.Module)


@dataclass
class Reached:
    """What was found: each place, module and object once."""

    places: list[Place] = field(default_factory=list)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    """Modules outside of the model, by name; not those within another one."""
    optimizers: list[Optimizer] = field(default_factory=list)
    """Those within others, such as the one that a lookahead optimizer wraps."""
    owners: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name of an object, a function or a module outside of the model -> its attributes, of which there may be more later."""
    names: set[str] = field(default_factory=set)
    """Names that the code on the way uses."""

    def by_name(self) -> dict[str, Place]:
        """All places, those of attributes that objects have got since the walk included."""
        found = {place.name: place for place in self.places}
        entries = {(id(place.holder), place.key) for place in self.places if isinstance(place, EntryPlace)}
        for owner, attributes in self.owners.items():
            for key in attributes.keys() - ATTRIBUTES_OF_ALL_MODULES - {"__wrapped__"} - _SAVED:
                value = attributes[key]
                if (id(attributes), key) not in entries and not isinstance(value, _NO_STATE):
                    found.setdefault(f"{owner}.{key}", EntryPlace(f"{owner}.{key}", attributes, key))
        return found

    def place(self, name: str) -> Place | None:
        """The place of this name, also where an object has no such attribute yet; None if there is no such object."""
        owner, _, key = name.rpartition(".")
        late = EntryPlace(name, self.owners[owner], key) if owner in self.owners else None
        return self.by_name().get(name, late)


def walk(groups: Sequence[Mapping[str, object]], model: nn.Module, known: Iterable[object] = ()) -> tuple[Reached, ...]:
    """What is reached from the roots of each group, by their names; what several groups reach belongs to the first.

    Modules and attributes of the model itself are left out, but not what its attributes reach. Objects in `known` are not
    walked into."""
    walker = _Walker(model, known)
    return tuple(walker.reached(roots) for roots in groups)


class _Walker:
    def __init__(self, model: nn.Module, known: Iterable[object]) -> None:
        self.found = Reached()
        self._held = list(known)  # So that no other object gets one of the ids.
        self._seen = set(map(id, self._held))
        self._keys: set[tuple[int, Any]] = set()
        self._inner = set(map(id, [*model.modules(), *model.parameters(), *model.buffers()]))

    def reached(self, roots: Mapping[str, object]) -> Reached:
        self.found = Reached()
        for name, root in roots.items():
            self.visit(name, root, 0)
        return self.found

    def visit(self, name: str, value: Any, depth: int) -> None:
        if id(value) in self._seen or depth > _MAX_DEPTH or len(self._held) > _MAX_OBJECTS or type(value) in PLAIN:
            return
        self._seen.add(id(value))
        self._held.append(value)
        if isinstance(value, nn.Module):
            self._module(name, value, depth)
        elif isinstance(value, _FUNCTIONS):
            self._callable(name, value, depth)
        elif isinstance(value, type):
            self._class(value, depth)
        elif is_container(value):
            if not can_move(value):
                self._items(name, value, depth)
        elif isinstance(value, BuiltinMethodType):
            if is_generator(value.__self__):  # A method of a generator alone, such as random.Random(0).random.
                self._place(EntryPlace(name, (value.__self__,), 0), value, depth)
        elif not isinstance(value, Tensor | ModuleType):
            self._object(name, value, depth)

    def _place(self, place: Place, holder: object, depth: int) -> None:
        """Note a place, and what it holds. Functions, classes and modules of Python are no state."""
        key = id(holder), place.key
        if key in self._keys:
            return
        self._keys.add(key)
        self._held.append(holder)
        value = place.get()
        if not isinstance(value, _NO_STATE) and id(value) not in self._inner:
            self.found.places.append(place)
        self.visit(place.name, value, depth + 1)

    def _attributes(self, name: str, owner: object, depth: int, skipped: Iterable[str] = ()) -> None:
        attributes = _vars(owner)
        if attributes is not None:
            self.found.owners[name] = attributes
            self._entries(name, attributes, depth, skipped)

    def _entries(self, name: str, entries: dict[str, Any], depth: int, skipped: Iterable[str] = ()) -> None:
        for key in [key for key in entries if key not in skipped]:
            self._place(EntryPlace(f"{name}.{key}", entries, key), entries, depth)

    def _module(self, name: str, value: nn.Module, depth: int) -> None:
        if id(value) not in self._inner:
            self.found.modules[name] = value
            self._inner |= set(map(id, [*value.parameters(), *value.buffers()]))
        for key, module in value.named_modules(prefix=name):
            self._seen.add(id(module))
            for hooks in (vars(module).get(hook) for hook in _HOOKS):
                for hook in (hooks or {}).values():
                    self.visit(f"hook of {key}", hook, depth + 1)
            self._class(type(module), depth)
            if id(module) in self._inner:  # Its own places are found anew in each step: forward may add some.
                for attribute, held in vars(module).items():
                    if attribute not in ATTRIBUTES_OF_ALL_MODULES:
                        self.visit(f"{key}.{attribute}", held, depth + 1)
            else:
                self._attributes(key, module, depth, ATTRIBUTES_OF_ALL_MODULES)

    def _callable(self, name: str, value: Any, depth: int) -> None:
        match value:
            case FunctionType():
                self._function(name, value, depth)
            case MethodType():
                self.visit(name, value.__self__, depth + 1)
                self.visit(name, value.__func__, depth + 1)
            case partial():
                self.visit(name, value.func, depth + 1)
                self._entries(name, value.keywords, depth)
                self._items(name, value.args, depth)
            case staticmethod() | classmethod():
                self.visit(name, value.__func__, depth + 1)
            case property():
                self.visit(name, value.fget, depth + 1)

    def _function(self, name: str, function: FunctionType, depth: int) -> None:
        if _is_closed(function.__module__):
            return
        names = names_of(function.__code__)
        self.found.names |= names
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._place(CellPlace(f"{name}.{key}", cell, key), cell, depth)
        for key in sorted(names & (function.__globals__.keys() | _assigned_globals(function.__code__))):
            value = function.__globals__.get(key, ABSENT)
            if isinstance(value, ModuleType):
                if not _is_closed(value.__name__):
                    for own in sorted(names & vars(value).keys()):
                        self._place(EntryPlace(f"{value.__name__}.{own}", vars(value), own), vars(value), depth)
            else:
                where = f"{function.__module__}.{key}"
                self._place(EntryPlace(where, function.__globals__, key), function.__globals__, depth)
        self._attributes(name, function, depth, ("__wrapped__",))
        self.visit(name, vars(function).get("__wrapped__"), depth + 1)
        self._items(f"{name}.defaults", function.__defaults__ or (), depth)
        self._entries(f"{name}.defaults", function.__kwdefaults__ or {}, depth)

    def _class(self, kind: type, depth: int) -> None:
        for base in kind.__mro__:
            if (id(base) in self._seen and base is not kind) or _is_closed(base.__module__):
                continue
            self._seen.add(id(base))
            for key, value in vars(base).items():
                if isinstance(value, _FUNCTIONS):
                    self.visit(f"{base.__name__}.{key}", value, depth + 1)
                elif not (key.startswith("__") and key.endswith("__")) and (type(value) in PLAIN or can_move(value)):
                    self._place(ClassPlace(f"{base.__name__}.{key}", base, key), base, depth)

    def _items(self, name: str, container: Any, depth: int) -> None:
        if isinstance(container, list | tuple):
            for index in range(min(len(container), _MAX_ITEMS)):
                self._place(EntryPlace(f"{name}[{index}]", container, index), container, depth)
        elif isinstance(container, dict):
            for key in list(islice(container, _MAX_ITEMS)):
                if type(key) in PLAIN or isinstance(key, Tensor):
                    shown = repr(key) if type(key) in PLAIN else len(self._keys)
                    self._place(EntryPlace(f"{name}[{shown}]", container, key), container, depth)
        elif isinstance(container, set | deque):
            for index, item in enumerate(islice(container, _MAX_ITEMS)):
                self.visit(f"{name}[{index}]", item, depth + 1)

    def _object(self, name: str, value: Any, depth: int) -> None:
        kind = type(value)
        cached = getattr(value, "__wrapped__", None) if kind.__module__ == "functools" else None
        if cached is not None:  # By lru_cache.
            self.visit(name, cached, depth + 1)
        is_closed = _is_closed(kind.__module__) and not f"{kind.__module__}.".startswith(_OPEN)
        if is_closed or _is_of_threads(value, _MAX_DEPTH_OF_LOCKS):
            return
        if isinstance(value, Optimizer) and depth:
            self.found.optimizers.append(value)
        saved = _SAVED if isinstance(value, Optimizer | LRScheduler) else ()
        self._attributes(name, value, depth, saved)
        for base in kind.__mro__:
            for key, slot in vars(base).items():
                if key in _slots(base) and hasattr(type(slot), "__set__"):
                    self._place(SlotPlace(f"{name}.{key}", value, key, slot), value, depth)
        self._class(kind, depth)


def names_of(code: CodeType) -> set[str]:
    """The names of globals and attributes that compiled code uses, that of functions within included."""
    names = set(code.co_names)
    for value in code.co_consts:
        if isinstance(value, CodeType):
            names |= names_of(value)
    return names


def _is_of_threads(value: object, depth: int) -> bool:
    """Whether an object, or one that it holds, has a lock, a queue or a thread: others may use it at the same time."""
    held = (_vars(value) or {}).values()
    kinds = {type(one).__module__.partition(".")[0] for one in held}
    return bool(kinds & _OF_THREADS) or (depth > 1 and any(_is_of_threads(one, depth - 1) for one in held))


def _is_closed(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _CLOSED


def _assigned_globals(code: CodeType) -> set[str]:
    return {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_GLOBAL"}


def _vars(value: object) -> dict[str, Any] | None:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return tuple(slot for slot in ((slots,) if isinstance(slots, str) else slots) if not slot.startswith("__"))
