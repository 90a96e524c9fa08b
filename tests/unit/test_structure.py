"""What keeps the code easy to find one's way in: sizes, names, and folders that are rooms."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("esprof", "replay", "analyzers", "reports")
MAX_LINES_OF_MODULE = 400
MAX_LINES_OF_CLASS = 300
MAX_LINES_OF_FUNCTION = 60
MAX_MODULES_OF_ROOM = 16
TABLES = {"replay/whatif/terms", "reports/commands"}
"""Folders with a file for each entry: they may hold any number."""


def _is_linked(path: Path) -> bool:
    return any((ROOT / "esprof" / name) in path.parents for name in FOLDERS)


MODULES = {
    path.relative_to(ROOT): ast.parse(path.read_text())
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not _is_linked(path)
}


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _too_long(kinds: type | tuple[type, ...], most: int) -> list[str]:
    return [
        f"{path}:{node.lineno} {node.name} has {_lines(node)} lines"
        for path, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and _lines(node) > most
    ]


def test_the_modules_were_found():
    assert len(MODULES) > 300


def test_modules_fit_a_few_screens():
    long = {str(path): n for path in MODULES if (n := (ROOT / path).read_text().count("\n")) > MAX_LINES_OF_MODULE}
    assert not long


def test_classes_and_functions_fit():
    assert not _too_long(ast.ClassDef, MAX_LINES_OF_CLASS)
    assert not _too_long((ast.FunctionDef, ast.AsyncFunctionDef), MAX_LINES_OF_FUNCTION)


def test_a_class_name_stands_for_one_class():
    homes = defaultdict(list)
    for path, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_folders_are_rooms():
    rooms = defaultdict(list)
    for path in MODULES:
        if path.name != "__init__.py":
            rooms[str(path.parent)].append(path.name)
    crowded = {room: len(names) for room, names in rooms.items() if len(names) > MAX_MODULES_OF_ROOM}
    assert set(crowded) <= TABLES, crowded


@pytest.mark.parametrize("name", ["LEAST", "MUCH", "MOST", "FEWEST"])
def test_a_threshold_is_named_for_what_it_limits(name):
    found = [
        str(path)
        for path, tree in MODULES.items()
        for node in tree.body
        for target in (node.targets if isinstance(node, ast.Assign) else [])
        if isinstance(target, ast.Name) and target.id.strip("_") == name
    ]
    assert not found
