"""What a checkpoint's metadata may name."""

import io
import pathlib
import pickle

import pytest

from esprof.elastic.checkpoint.dcp import _Unpickler


def loaded(text: bytes) -> object:
    return _Unpickler(io.BytesIO(text)).load()


@pytest.mark.parametrize("module", [b"pathlib", b"pathlib._local"])
def test_paths_are_found_by_the_name_of_any_python(module):
    assert loaded(b"c" + module + b"\nPosixPath\n(S'a'\ntR.") == pathlib.PosixPath("a")


@pytest.mark.parametrize("name", [b"os\nsystem", b"builtins\neval", b"pathlib._local\nos.system"])
def test_nothing_else_is_found(name):
    with pytest.raises(pickle.UnpicklingError, match="metadata of tensors has no"):
        loaded(b"c" + name + b"\n(S'true'\ntR.")
