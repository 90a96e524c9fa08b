"""A host that only records: esprof with click, msgspec and NumPy alone, in an environment of its own."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from esprof import load
from esprof.analyzers import diagnose

pytestmark = pytest.mark.integration

CHECKOUT = Path(__file__).resolve().parents[2]
JOB = """
import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    model(torch.ones(256, 64)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of a new environment that has torch with what it needs, click, msgspec, NumPy and this checkout."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    for name in {*_with_requirements("torch"), "click", "msgspec", "numpy"}:
        for file in distribution(name).files or ():
            top = Path(file.parts[0])
            if top.name not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(distribution(name).locate_file(top))
    (site / "esprof.pth").write_text(f"{CHECKOUT}\n")
    return tmp_path / "venv" / "bin" / "python"


def _with_requirements(name: str) -> Iterator[str]:
    """The distribution and those that it needs, where they are installed."""
    yield name
    for line in distribution(name).requires or ():
        if ";" not in line and (match := re.match(r"[\w.-]+", line)) is not None:
            yield from _with_requirements(match[0])


def test_such_a_host_records_and_another_one_reads(python, tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    record = [python, "-m", "esprof", "record", "-o", "run", "--", python, "job.py"]
    done = subprocess.run(record, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert "is recorded; this installation of esprof cannot read it" in done.stderr
    (tmp_path / "run").rename(tmp_path / "copied")
    run = load(tmp_path / "copied")
    assert (run.ranks, run.meta.exit_code, run.warnings) == ([0], 0, ())
    assert diagnose(run).steps


def test_other_verbs_say_what_is_missing(python, tmp_path):
    done = subprocess.run(
        [python, "-m", "esprof", "diagnose", "run"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert re.search(r"`esprof diagnose` needs \w+, which is not installed", done.stderr)
    assert "pip install esprof" in done.stderr
