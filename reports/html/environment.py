"""The jinja2 environment of all pages: loading of templates, escaping of texts, and what a page may run."""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from esprof.core.text import printable

TEMPLATES = Path(__file__).parent / "templates"
"""Templates of the pages that are files of their own: `report` and `compare`."""
STYLE = TEMPLATES / "report.css"


def templates(folder: Path, longest: int) -> Environment:
    """The templates of a folder.

    Every text is escaped and cut after `longest` characters; control and direction characters become visible. The filter
    `prose` shows what a text has in backticks, such as a command, as code.
    """

    def finalize(value: Any) -> Any:
        return printable(value, longest) if type(value) is str else value

    def prose(text: str) -> Markup:
        return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(printable(text, longest)))))

    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = prose
    return environment


def policy(scripts: Sequence[str]) -> str:
    """A content security policy that allows only these scripts, by their hashes."""
    hashes = (f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in scripts)
    allowed = " ".join(hashes) or "'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def file_text(path: Path) -> str:
    """A style sheet or script that a page contains."""
    return path.read_text(encoding="utf-8")
