"""What all pages that are made of templates share: how they are loaded, and what every text in them goes through."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from esprof.core.text import printable


def templates(folder: Path, longest: int) -> Environment:
    """The templates of a folder. Every text that they print is escaped, control and direction characters in it become
    visible, and it is cut after `longest` characters."""

    def finalize(value: Any) -> Any:
        return printable(value, longest) if type(value) is str else value

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
