"""Errors of `esprof serve`."""

import socket
import sys

import pytest

from esprof.reports.live.lock import Lock
from tests.cases.command_line import esprof


@pytest.mark.parametrize("library", ["starlette", "uvicorn"])
def test_a_missing_library_is_named_with_the_remedy(tmp_path, monkeypatch, library):
    for module in [name for name in sys.modules if name.startswith("esprof.reports.live.") or name.startswith(library)]:
        monkeypatch.delitem(sys.modules, module)

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == library:
                raise ModuleNotFoundError(f"No module named {library!r}", name=library)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    done = esprof("serve", tmp_path)
    assert done.returncode == 1
    assert f"serving needs {library}, which is not installed" in done.stderr
    assert "pip install 'esprof[serve]'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["no/where"], 2, "is not a folder"),
        ([".", "--token-file", "short"], 2, "a token needs at least 16 characters"),
        ([".", "--token-file", "none"], 1, "none: cannot be read"),
        ([".", "--host", "no such host"], 1, "cannot listen at no such host"),
        ([], 2, "Missing argument"),
    ],
)
def test_invalid_arguments_are_errors(tmp_path, arguments, code, says):
    (tmp_path / "short").write_text("short\n")
    done = esprof("serve", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = esprof("serve", tmp_path, "--port", other.getsockname()[1])
    assert done.returncode == 1
    assert "Address already in use" in done.stderr
    assert "--port" in done.stderr
    with Lock(tmp_path):  # It left the Run free.
        pass
