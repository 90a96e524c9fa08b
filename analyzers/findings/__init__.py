"""The rules of diagnosis: a file for each, found by looking here. CONTRIBUTING.md says how to add one."""

from importlib import import_module
from pkgutil import iter_modules

from esprof.analyzers.rule import Page, Rule


def _found() -> tuple[Rule, ...]:
    rules: list[Rule] = [import_module(f"{__name__}.{module.name}").RULE for module in iter_modules(__path__)]
    return tuple(sorted(rules, key=lambda rule: rule.pages[0].id))


RULES = _found()
PAGES: dict[str, Page] = {page.id: page for page in sorted((p for r in RULES for p in r.pages), key=lambda p: p.id)}
"""By id."""
