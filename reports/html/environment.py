"""The jinja2 environment of all pages: loading of templates, and escaping of texts."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from esprof.core.text import printable


def templates(folder: Path, longest: int) -> Environment:
    """The templates of a folder.

    Every text is escaped and cut after `longest` characters; control and direction characters become visible.
    """

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
