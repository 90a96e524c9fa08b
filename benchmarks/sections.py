"""Sections of a Markdown page that a benchmark writes; the text around them is written by hand."""

import re
from collections.abc import Mapping
from pathlib import Path

from esprof.core.output import write_bytes


def write_sections(page: Path, sections: Mapping[str, str]) -> None:
    """Replace the text between `<!-- begin NAME -->` and `<!-- end NAME -->` for each name. A missing section exits."""
    text = page.read_text()
    for name, new in sections.items():
        marked = re.compile(f"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if not marked.search(text):
            raise SystemExit(f"{page}: no section {name}. Mark it by <!-- begin {name} --> and <!-- end {name} -->.")
        text = marked.sub(lambda found, new=new: f"{found[1]}{new.strip()}\n{found[2]}", text)
    write_bytes(page, text.encode())
