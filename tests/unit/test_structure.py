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


PATHS = [
    path.relative_to(ROOT)
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not _is_linked(path)
]


@pytest.fixture(scope="module")
def modules() -> dict[Path, ast.Module]:
    """Each module as parsed. All workers collect this file, and one of them needs this."""
    return {path: ast.parse((ROOT / path).read_text()) for path in PATHS}


@pytest.fixture(scope="module")
def definitions(modules) -> list[tuple[Path, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each class and function, with the module that it is in."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [(path, node) for path, tree in modules.items() for node in ast.walk(tree) if isinstance(node, kinds)]


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_the_modules_were_found():
    assert len(PATHS) > 300


def test_modules_fit_a_few_screens():
    long = {str(path): n for path in PATHS if (n := (ROOT / path).read_text().count("\n")) > MAX_LINES_OF_MODULE}
    assert not long


def test_classes_and_functions_fit(definitions):
    assert not [
        f"{path}:{node.lineno} {node.name} has {_lines(node)} lines"
        for path, node in definitions
        if _lines(node) > (MAX_LINES_OF_CLASS if isinstance(node, ast.ClassDef) else MAX_LINES_OF_FUNCTION)
    ]


def test_a_class_name_stands_for_one_class(definitions):
    homes = defaultdict(list)
    for path, node in definitions:
        if isinstance(node, ast.ClassDef):
            homes[node.name].append(str(path))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_folders_are_rooms():
    rooms = defaultdict(list)
    for path in PATHS:
        if path.name != "__init__.py":
            rooms[str(path.parent)].append(path.name)
    crowded = {room: len(names) for room, names in rooms.items() if len(names) > MAX_MODULES_OF_ROOM}
    assert set(crowded) <= TABLES, crowded


@pytest.mark.parametrize("name", ["LEAST", "MUCH", "MOST", "FEWEST"])
def test_a_threshold_is_named_for_what_it_limits(modules, name):
    found = [
        str(path)
        for path, tree in modules.items()
        for node in tree.body
        for target in (node.targets if isinstance(node, ast.Assign) else [])
        if isinstance(target, ast.Name) and target.id.strip("_") == name
    ]
    assert not found
