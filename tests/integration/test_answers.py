"""Stored answers, between processes."""

import os
import subprocess
import sys

import pytest

from tests.cases.kineto import write_job

pytestmark = pytest.mark.integration


def ended(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def ask(folder, *arguments, **environment):
    command = [sys.executable, "-m", "esprof", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_two_processes_at_once_and_one_later_answer_alike(tmp_path):
    write_job(tmp_path / "traces")
    arguments = ["diagnose", "traces", "--json"]
    both = list(map(ended, [ask(tmp_path, *arguments) for _ in range(2)]))
    assert both[0] == both[1]
    assert both[0][0] == 0
    # Without NumPy there is no other answer than the stored one.
    assert ended(ask(tmp_path, *arguments, PYTHONPATH=without_numpy(tmp_path))) == both[0]


def without_numpy(folder):
    """A PYTHONPATH on which NumPy cannot be imported."""
    (folder / "broken" / "numpy").mkdir(parents=True)
    (folder / "broken" / "numpy" / "__init__.py").write_text("raise SystemError('NumPy was imported')")
    return os.pathsep.join(filter(None, [str(folder / "broken"), os.environ.get("PYTHONPATH")]))
