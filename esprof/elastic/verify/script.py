"""What a training script computes with: the code of its forward passes, losses and samples, and what surrounds it."""

import dis
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

from torch import nn

from esprof.elastic.reach.walk import names_of
from esprof.elastic.verify.content import content
from esprof.elastic.verify.second_run import ATTRIBUTES_OF_ALL_MODULES
from esprof.elastic.verify.steplog import Scalar

_LIBRARIES = (
    "numpy",
    "scipy",
    "torchvision",
    "torchaudio",
    "PIL",
    "cv2",
    "albumentations",
    "tokenizers",
    "transformers",
)
"""Libraries that make samples and models, of which the version is noted if the script has imported them."""

_MAX_DEPTH = 4
"""How deep functions that call each other are followed."""


@dataclass(frozen=True)
class Script:
    """Two groups of fields for the job's fingerprint."""

    code: dict[str, Scalar]
    around: dict[str, Scalar]


def code_fields(
    model: nn.Module, outside: Mapping[str, nn.Module], losses: Sequence[object], dataset: object, collate: object
) -> dict[str, Scalar]:
    """Hashes of the code by which bits are computed, by name: `forward` of the script's own modules, functions that they
    hold, losses, samples and batches. Functions of one package that are called by name count with their callers. Also the
    plain attributes that `forward` reads. `outside` are modules outside of the model, by name."""
    found: dict[str, Scalar] = {}
    for name, module in outside.items():
        found[f"module {name}"] = content([_described(one) for one in module.modules()])
    for module in [module for root in [model, *outside.values()] for module in root.modules()]:
        if _is_of_script(module):
            found[f"forward of {type(module).__qualname__}"] = code_of(module.forward, type(module))
    for name, module in model.named_modules():
        read = _names_in_methods(type(module))
        found |= {key: value for key, value in _plain_attributes(name, module) if key.rpartition(".")[2] in read}
        for key, value in vars(module).items():
            if key not in ATTRIBUTES_OF_ALL_MODULES and callable(value) and not isinstance(value, nn.Module | type):
                found[f"function {'.'.join(filter(None, (name, key)))}"] = code_of(value)
    for number, loss in enumerate(losses):
        found["loss function" if len(losses) == 1 else f"loss function {number}"] = code_of(loss)
    getitem = getattr(type(dataset), "__getitem__", None)
    if getitem is not None:
        found["samples of the dataset"] = code_of(getitem, type(dataset))
    if collate is not None:
        found["collate_fn"] = code_of(collate)
    return found


def surrounding_fields(model: nn.Module) -> dict[str, Scalar]:
    """Versions of Python and libraries, and plain attributes of the script's own modules that no code of theirs names, which
    may change bits or not."""
    found: dict[str, Scalar] = {"python": ".".join(map(str, sys.version_info[:2]))}
    for name in _LIBRARIES:
        if (version := getattr(sys.modules.get(name), "__version__", None)) is not None:
            found[name] = str(version)
    for name, module in model.named_modules():
        read = _names_in_methods(type(module))
        found |= {key: value for key, value in _plain_attributes(name, module) if key.rpartition(".")[2] not in read}
    return found


def code_of(function: Any, owner: type | None = None) -> str:
    """A hash of what a callable does, 16 digits: its instructions, constants, names and defaults, without lines, comments
    and docstrings. `owner` is the class whose methods it may call."""
    digest = hashlib.sha256()
    for part in _parts(function, owner, set(), 0):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _parts(function: Any, owner: type | None, seen: set[object], depth: int) -> Iterator[str]:
    if isinstance(function, functools.partial):
        yield f"{_constant(function.args)} {_constant(function.keywords)}"
        function = function.func
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(function, FunctionType):
        call = getattr(type(function), "forward", None) or inspect.getattr_static(type(function), "__call__", None)
        if isinstance(call, FunctionType):
            yield from _parts(call, type(function), seen, depth)
        yield f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
        return
    if function.__code__ in seen or depth > _MAX_DEPTH:
        return
    seen.add(function.__code__)
    yield from _of_code(function.__code__)
    yield f"{_constant(function.__defaults__)} {_constant(function.__kwdefaults__)}"
    for name, called in _called(function, owner):
        if isinstance(called, FunctionType) and _package(called) == _package(function):
            yield from _parts(called, owner, seen, depth + 1)
        else:  # An activation of torch, a class, a criterion.
            kind = called if hasattr(called, "__qualname__") else type(called)
            yield f"{name} {getattr(kind, '__module__', '')}.{kind.__qualname__}"


def _of_code(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        yield f"{instruction.opname} {_constant(value)}"
        if isinstance(value, CodeType):
            yield from _of_code(value)


def _called(function: FunctionType, owner: type | None) -> Iterator[tuple[str, Any]]:
    """What the code can call by a name: globals, variables of its closure, methods; in the order of their names."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    for name in sorted(names_of(function.__code__) | closure.keys()):
        method = inspect.getattr_static(owner, name, None) if owner else None
        for called in (function.__globals__.get(name), closure.get(name), method):
            if callable(called):
                yield name, called


def _package(function: FunctionType) -> str:
    return function.__module__.partition(".")[0]


def _names_in_methods(kind: type) -> set[str]:
    """Names in the code of a class's methods, other than those that make or describe an object."""
    found: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("torch."):
            for name, method in vars(base).items():
                if isinstance(method, FunctionType) and name not in ("__init__", "extra_repr", "__repr__"):
                    found |= names_of(method.__code__)
    return found


def _plain_attributes(name: str, module: nn.Module) -> Iterator[tuple[str, Scalar]]:
    """Plain attributes of a module of the script, such as `model.body.0.scale`."""
    for key, value in vars(module).items() if _is_of_script(module) else ():
        if key not in ATTRIBUTES_OF_ALL_MODULES and type(value) in (bool, int, float, str):
            yield ".".join(filter(None, ("model", name, key))), value


def _described(module: nn.Module) -> list[object]:
    """The class of a module, and of one of torch its settings."""
    settings = (
        {} if _is_of_script(module) else {k: v for k, v in vars(module).items() if k not in ATTRIBUTES_OF_ALL_MODULES}
    )
    return [type(module).__qualname__, settings]


def _constant(value: object) -> str:
    """A constant as text, the same in each process."""
    match value:
        case Set():
            return str(sorted(map(_constant, value)))
        case tuple() | list():
            return f"({', '.join(map(_constant, value))})"
        case Mapping():
            return str({key: _constant(held) for key, held in value.items()})
        case None | bool() | int() | float() | complex() | str() | bytes():
            return repr(value)
    return (
        type(value).__qualname__
        if isinstance(value, CodeType)
        else getattr(value, "__qualname__", type(value).__qualname__)
    )


def _is_of_script(module: nn.Module) -> bool:
    return not type(module).__module__.startswith("torch.")
