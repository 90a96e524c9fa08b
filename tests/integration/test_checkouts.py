"""Two checkouts and one environment: each uses its own code, or refuses to start."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.promise]

ROOT = Path(__file__).parents[2]
SCRIPT = Path(sys.executable).parent / "esprof"
"""Belongs to the checkout that the environment was made for."""
TEST = """
import os
import subprocess
import sys
from pathlib import Path

from esprof.replay.whatif.terms import TERMS


def test_which_code(tmp_path):
    word = [sys.executable, "-c", "from esprof.replay.whatif.terms import TERMS; print(sorted(TERMS))"]
    printed = subprocess.run(word, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "moonlight" in TERMS
    assert "moonlight" in printed
"""


@pytest.fixture(scope="module")
def second(tmp_path_factory) -> Path:
    """Another checkout, in which `network=` is called `moonlight=`."""
    home = tmp_path_factory.mktemp("checkouts") / "second"
    for name in ("esprof", "replay", "analyzers", "reports"):
        shutil.copytree(ROOT / name, home / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", home)
    (home / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", home / "tests")
    term = home / "replay" / "whatif" / "terms" / "network.py"
    term.write_text(term.read_text().replace('"network', '"moonlight'))
    return home


def ask(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Ask for a term that there is in no checkout: the answer lists those that there are."""
    words = [*command, "replay", "nothing", "--what-if", "sunlight=2x"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def test_each_checkout_uses_its_own_code(second):
    module = [sys.executable, "-m", "esprof"]
    assert "moonlight" in ask(module, second).stderr
    ours = ask(module, ROOT).stderr
    assert "network" in ours
    assert "moonlight" not in ours


@pytest.mark.parametrize("below", ["", "replay/whatif"])
def test_the_command_of_one_checkout_refuses_to_start_in_another(second, below):
    ended = ask([SCRIPT], second / below)
    assert ended.returncode == 2
    assert f"you are in another checkout, {second}" in ended.stderr
    assert "python -m esprof" in ended.stderr


def test_pytest_tests_the_checkout_in_which_it_runs(second):
    (second / "tests" / "test_which.py").write_text(TEST)
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"]
    ended = subprocess.run(words, cwd=second, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout or "100%" in ended.stdout
