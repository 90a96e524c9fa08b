"""Rules of diagnosis, one folder for each family of findings. Every module with a `RULE` is loaded.

CONTRIBUTING.md describes how to add a rule.
"""

from importlib import import_module
from pkgutil import walk_packages

from esprof.analyzers.rule import Page, Rule


def _load_rules() -> tuple[Rule, ...]:
    modules = [import_module(module.name) for module in walk_packages(__path__, f"{__name__}.")]
    rules: list[Rule] = [module.RULE for module in modules if hasattr(module, "RULE")]
    return tuple(sorted(rules, key=lambda rule: rule.pages[0].id))


RULES = _load_rules()
PAGES: dict[str, Page] = {page.id: page for page in sorted((p for r in RULES for p in r.pages), key=lambda p: p.id)}
"""Id -> page."""
