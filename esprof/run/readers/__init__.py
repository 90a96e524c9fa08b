"""The formats that `esprof.load` reads, one module each. CONTRIBUTING.md explains how to add one."""

from importlib import import_module
from pkgutil import iter_modules

from esprof.run.readers.reader import Reader

_MODULES = [import_module(f"{__name__}.{name}") for name in sorted(module.name for module in iter_modules(__path__))]
READERS: tuple[Reader, ...] = tuple(module.READER for module in _MODULES if hasattr(module, "READER"))
DEFAULT = next(reader for reader in READERS if reader.name == "Kineto")
"""Reads files that no other reader recognises: Kineto traces may have any name."""
