"""The environment variables by which a process finds the recorder."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

RUN = "ESPROF_RUN"
"""Holds the path of the Run that is being recorded."""

LOADER_OF = "ESPROF_LOADER_OF"
"""Tells a process that it is a DataLoader worker, and of which rank process."""


def with_hook(environ: Mapping[str, str], raw: str, hook: str) -> dict[str, str]:
    """The variables that lead a child started with `environ` to the recorder."""
    path = environ.get("PYTHONPATH")
    return {RUN: os.path.dirname(raw), "PYTHONPATH": f"{hook}{os.pathsep}{path}" if path else hook}


@contextmanager
def changed(variables: Mapping[str, str]) -> Iterator[None]:
    """Set `variables` in this process's environment for the length of the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
