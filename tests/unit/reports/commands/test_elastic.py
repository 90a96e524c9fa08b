"""What `esprof elastic launch` refuses before it starts a process."""

import pytest

from esprof.recorder.launcher import launch
from tests.cases.command_line import esprof

HOSTS = ["--hosts", "1", "--rendezvous", "127.0.0.1:29400"]


@pytest.mark.parametrize("where", [["--procs", 2], HOSTS])
def test_without_torch_nothing_is_started(tmp_path, monkeypatch, where):
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(launch, "find_spec", lambda name: None)
    done = esprof("elastic", "launch", *where, "--", "train.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "torch is not installed in this environment" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_script_that_is_missing_is_named(tmp_path):
    done = esprof("elastic", "launch", "--procs", 2, "--", "train.py", cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "there is no script train.py" in done.stderr
