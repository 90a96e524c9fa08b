"""How verbs are started as processes, and that no other place tells of it."""

import ast
import os
import subprocess
from pathlib import Path

import pytest

from esprof.verbs import VERBS, command_line, foreign_module_line, module_line, module_of

ROOT = Path(__file__).parents[2]
SOURCES = [path for folder in ("esprof", "replay", "analyzers", "reports") for path in (ROOT / folder).rglob("*.py")]
PLACE = ROOT / "esprof" / "verbs.py"
PLANTED = ("esprof", "runpy", "json", "numpy", "msgspec", "click", "torch")
"""Modules that a folder may hold to be imported in place of the real ones."""


def texts(tree):
    """(text, the text before it in its list or call) of each string of a module."""
    for node in ast.walk(tree):
        words = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        before = None
        for word in words:
            text = word.value if isinstance(word, ast.Constant) and isinstance(word.value, str) else None
            if text is not None:
                yield text, before
            before = text


def starts_a_verb(text, before):
    return text in map(module_of, VERBS) or (before == "-m" and text.split(".")[0] == "esprof")


def test_a_verb_starts_as_a_process():
    done = subprocess.run(command_line("explain", "--help"), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert VERBS["explain"] in done.stdout


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """The current folder, with modules of known names."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(words, **variables):
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env=os.environ | variables)


@pytest.mark.parametrize("words", [command_line("explain", "ESP101"), foreign_module_line("pydoc")])
def test_a_process_imports_nothing_from_the_current_folder(planted, words):
    done = start(words)
    assert "planted" not in done.stderr
    assert done.returncode == 0


def test_a_process_runs_this_checkout_wherever_it_is_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "told.py").write_text("import esprof, sys; print(esprof.__file__, sys.argv[1:], sys.path[0])")
    done = start(module_line("told", "a", "b"), PYTHONPATH=str(tmp_path / "seen"))
    assert done.stdout == f"{ROOT / 'esprof' / '__init__.py'} ['a', 'b'] {tmp_path / 'seen'}\n"


def test_what_is_no_verb_has_no_command_line():
    with pytest.raises(AssertionError):
        command_line("explode")


def test_one_module_alone_knows_how_a_verb_is_started():
    assert len(SOURCES) > 100
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in SOURCES
        if path != PLACE
        for text, before in texts(ast.parse(path.read_text()))
        if starts_a_verb(text, before)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    ['["python", "-m", "esprof", "tune"]', '(p, *("x", "-m", "esprof.a"))', 'f("esprof.reports.commands.ops")'],
)
def test_a_start_elsewhere_would_be_found(source):
    assert any(starts_a_verb(*text) for text in texts(ast.parse(source)))
