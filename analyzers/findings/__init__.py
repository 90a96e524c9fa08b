"""The rules of diagnosis, a folder for each family of findings; whatever module here has a `RULE` is one.

CONTRIBUTING.md says how to add one.
"""

from importlib import import_module
from pkgutil import walk_packages

from esprof.analyzers.rule import Page, Rule


def _found() -> tuple[Rule, ...]:
    modules = [import_module(module.name) for module in walk_packages(__path__, f"{__name__}.")]
    rules: list[Rule] = [module.RULE for module in modules if hasattr(module, "RULE")]
    return tuple(sorted(rules, key=lambda rule: rule.pages[0].id))


RULES = _found()
PAGES: dict[str, Page] = {page.id: page for page in sorted((p for r in RULES for p in r.pages), key=lambda p: p.id)}
"""By id."""
