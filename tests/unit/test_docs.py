"""The documentation, held against the tree."""

import re
from pathlib import Path

import pytest

from esprof.verbs import VERBS

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_readme_names_every_verb_and_no_other():
    rows = re.findall(r"^\| `esprof (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(VERBS)
