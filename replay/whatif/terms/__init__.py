"""The what-if terms: a file for each kind, found by looking here. CONTRIBUTING.md says how to add one."""

from importlib import import_module
from pkgutil import iter_modules

from esprof.replay.whatif.term import Kind


def _found() -> dict[str, Kind]:
    kinds: list[Kind] = [import_module(f"{__name__}.{module.name}").TERM for module in iter_modules(__path__)]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: (kind.phase, kind.name))}


TERMS = _found()
"""All kinds of terms by name, in the order in which the terms of a scenario are applied."""
