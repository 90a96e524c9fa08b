"""The formats that `esprof.load` reads: a file for each, found by looking here. CONTRIBUTING.md says how to add one."""

from importlib import import_module
from pkgutil import iter_modules

from esprof.trace.reader import Reader

READERS: tuple[Reader, ...] = tuple(
    import_module(f"{__name__}.{name}").READER for name in sorted(module.name for module in iter_modules(__path__))
)
DEFAULT = next(reader for reader in READERS if reader.name == "Kineto")
"""Reads what no other reader recognises: Kineto traces bear any name."""
