"""Check the words of the text that a user reads: pages of documentation, and sentences that esprof prints.

Run as `python -m docs.words`: it prints each problem with its file and line, and exits with 1 if there are any. Of code it
reads the string literals, including the docstrings of commands (their help), and of pages the prose.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("esprof", "replay", "analyzers", "reports")
LONGEST_LINE = 160
MOST_WORDS = 45

# What not to write, and what to write in its place.
BANNED = {
    r"\btold\b|\btelling\b": "say, report, show, know",
    r"\btells? apart\b": "distinguish, list separately",
    r"\bstandstills?\b": "hang, deadlock",
    r"\bsteady steps?\b": "steady-state step",
    r"\b(?:by|in) turns\b": "interleaved, alternating",
    r"\bbeside\b": "alongside, concurrent with, in addition to",
    r"\bof those that\b": "the noun that is meant",
    r"\bbut for\b": "except for",
    r"\banew\b": "again",
    r"\bthereof\b": "of it, or the noun",
    r"\bwhat came of\b": "the result of",
    r"\bso many per cent\b": "by N %",
}


def problems_of_text(text: str) -> list[str]:
    """The banned words in a text."""
    return [
        f"{found.group(0)!r}: write {instead}"
        for pattern, instead in BANNED.items()
        for found in re.finditer(pattern, text, re.IGNORECASE)
    ]


def problems_of_page(page: str) -> Iterator[tuple[int, str]]:
    """Line number and problem of a page in Markdown: banned words, long lines and long sentences outside code."""
    paragraph: list[str] = []
    start = 1
    for number, line in enumerate([*_without_code(page).splitlines(), ""], 1):
        yield from ((number, problem) for problem in problems_of_text(line))
        is_prose = bool(line.strip()) and not line.lstrip().startswith(("|", "<", "#", "!["))
        if is_prose and len(_without_links(line)) > LONGEST_LINE:
            yield number, f"{len(line)} characters in a line, more than {LONGEST_LINE}"
        if not is_prose or re.match(r"\s*(?:[-*]|\d+\.) ", line):
            yield from ((start, problem) for problem in problems_of_sentences(" ".join(paragraph)))
            paragraph, start = [], number
        if is_prose:
            paragraph.append(_without_links(line).strip())


def problems_of_sentences(text: str) -> list[str]:
    """The sentences of a paragraph that have too many words."""
    sentences = re.split(r"(?<=[.!?:;])\s+", text)
    counted = [(len(sentence.split()), sentence) for sentence in sentences]
    return [f"a sentence of {n} words: {sentence[:60]!r} …" for n, sentence in counted if n > MOST_WORDS]


def problems_of_code(source: str) -> Iterator[tuple[int, str]]:
    """Line number and problem of each string literal, except docstrings that are no help of a command."""
    tree = ast.parse(source)
    docstrings = set(_internal_docstrings(tree))
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings
        # A name, a key or a pattern has no space in it, and is no sentence.
        if is_text and " " in node.value.strip():
            yield from ((node.lineno, problem) for problem in problems_of_text(node.value))


def _internal_docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Bare strings that document code: those of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        is_command = isinstance(node, ast.FunctionDef) and any("command" in ast.unparse(d) for d in node.decorator_list)
        if is_command or not isinstance(body, list):
            continue
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.value


def _without_code(page: str) -> str:
    """The page with its code blanked out, line for line."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found.group(0).count("\n")

    page = re.sub(r"^( *)```.*?^\1```$", blank, page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"^(?: {4}|\t)(?! *[-*] | *\d+\. ).*$", "", page, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "`…`", page)


def _without_links(line: str) -> str:
    """The line with the text of each link and without its address."""
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line)


def files() -> list[Path]:
    """The pages and modules whose text a user reads."""
    roots = [ROOT / path for path in ("README.md", "CHANGELOG.md", "docs", *PACKAGES)]
    found = [file for root in roots for file in ([root] if root.is_file() else sorted(root.rglob("*")))]
    # The scripts in docs/ hold the banned words themselves.
    return [file for file in found if file.suffix == ".md" or (file.suffix == ".py" and file.parent != ROOT / "docs")]


def main() -> None:
    found = []
    for file in files():
        problems = problems_of_page if file.suffix == ".md" else problems_of_code
        found += [(file, *problem) for problem in problems(file.read_text(encoding="utf-8"))]
    for file, line, problem in found:
        print(f"{file.relative_to(ROOT)}:{line}: {problem}")
    if found:
        sys.exit(f"{len(found)} places to reword")


if __name__ == "__main__":
    main()
