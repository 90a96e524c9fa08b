"""Environment variables with which a process finds the recorder."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

RUN = "ESPROF_RUN"
"""Path of the Run that is being recorded."""

LOADER_OF = "ESPROF_LOADER_OF"
"""In a DataLoader worker: the name of the process that it belongs to."""


def with_hook(environ: Mapping[str, str], raw: str, hook: str) -> dict[str, str]:
    """Variables that load the recorder in a child process, in addition to those in `environ`."""
    path = environ.get("PYTHONPATH")
    return {RUN: os.path.dirname(raw), "PYTHONPATH": f"{hook}{os.pathsep}{path}" if path else hook}


@contextmanager
def changed(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set `variables` in this process's environment during the block, and remove those that are None."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
