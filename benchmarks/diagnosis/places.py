"""Source lines of a planted fault, and whether a finding names one of them."""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import PurePath
from typing import Any

_BEGIN = re.compile(r"\s*# FAULT (\w+)")
_END = re.compile(r"\s*# END FAULT")
_LOCATION = re.compile(r"(?P<file>[^\s\"'(),:]+\.py)(?:\((?P<bracketed>\d+)\)|:(?P<line>\d+))")


def fault_lines(source: str, fault: str) -> list[int]:
    """Lines of the script's source that are the fault, or call a function or class that lies within its marks.

    Raises ValueError where nothing is marked so, or a mark has no end.
    """
    marked = set(_marked(source, fault))
    if not marked:
        raise ValueError(f"no lines are marked as the fault {fault}")
    tree = ast.parse(source)
    inside = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno in marked
    }
    calls = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", None)) in inside
    }
    return sorted(marked | calls)


def _marked(source: str, fault: str) -> Iterator[int]:
    within = None
    for number, line in enumerate(source.splitlines(), start=1):
        if begin := _BEGIN.fullmatch(line):
            if within:
                raise ValueError(f"line {number}: a fault begins before {within} has ended")
            within = begin[1]
        elif _END.fullmatch(line):
            within = None
        elif within == fault:
            yield number
    if within:
        raise ValueError(f"the fault {within} has no end")


def named_locations(finding: Any) -> Iterator[tuple[str, int]]:
    """File and line of all source locations in a finding's JSON, including its keys: `file(line)` or `file:line`."""
    if isinstance(finding, str):
        for match in _LOCATION.finditer(finding):
            yield match["file"], int(match["bracketed"] or match["line"])
    elif isinstance(finding, dict):
        for key, value in finding.items():
            yield from named_locations(key)
            yield from named_locations(value)
    elif isinstance(finding, list):
        for value in finding:
            yield from named_locations(value)


def names_location(finding: Any, file: str, lines: Collection[int]) -> bool:
    """Whether the finding names one of `lines` of `file`; it may name the file by the end of its path."""
    parts = PurePath(file).parts
    return any(
        line in lines and parts[-len(named) :] == named
        for named, line in ((PurePath(name).parts, line) for name, line in named_locations(finding))
    )
