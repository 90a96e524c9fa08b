"""Starts and ends the server of a host's cached samples.

It is a process of its own, so that answers to other hosts do not hold up a training step.
"""

import os
import subprocess
import sys
import weakref
from contextlib import suppress
from typing import NamedTuple

import msgspec

from esprof.core.errors import EsprofError
from esprof.verbs import module_line

_PATIENCE_S = 5.0
"""How long a server may take to end."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a server serves."""

    folder: str
    size: int
    items: int
    token: bytes
    """What members of the job have."""
    address: str
    """Address of this host for others."""
    is_temporary: bool
    """Whether to remove the folder at the end: a killed rank cannot."""


class Running(NamedTuple):
    """A server that runs."""

    pid: int
    port: int


def start_server(served: Served, owner: object) -> Running:
    """Start a server that ends with `owner` or with this process. Raises EsprofError if it does not start."""
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        module_line("esprof.data.hosts.server"),
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the job, and the server ends with it.
    )
    weakref.finalize(owner, _stop, process, os.getpid())
    _children.append(process)
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):
        process.stdin.write(msgspec.json.encode(served) + b"\n")
        process.stdin.flush()
    port = process.stdout.readline()
    if not port:
        raise EsprofError("the server of cached samples did not start", remedy="See its message above.")
    return Running(process.pid, int(port))


_children: list["subprocess.Popen[bytes]"] = []


def _let_go() -> None:
    """In a forked process: close the inputs of its parent's servers, which then end with the parent alone."""
    while _children:
        process = _children.pop()
        if process.stdin is not None:
            process.stdin.close()


os.register_at_fork(after_in_child=_let_go)


def _stop(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() != owner:
        return
    with suppress(ValueError):
        _children.remove(process)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:  # It is stopped.
        process.kill()
        process.wait()
