"""Reports where a script reads the number of processes: results that it computes from this number depend on the processes.

All ranks compute the same from it, so neither a comparison of ranks nor a second run of an EST step shows it. Both show what
depends on the rank. Reads are noted as soon as this module is imported, because scripts often compute a learning rate before
they make a trainer.
"""

import functools
import os
import sys
from types import FrameType
from typing import Any

import torch.distributed as dist

from esprof.core.text import LONGEST_NAME, printable
from esprof.run.flight.log import is_own

_VARIABLES = frozenset({"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"})
"""Variables in which launchers pass a number of processes or hosts."""

_RETURNS_IT = ("get_world_size", "_get_group_size")
"""Functions that return the size of a group to their caller: those of torch, and others of that name."""

_ONLY_LOOKS = ("__contains__", "setdefault")
"""Methods of `os.environ` that read a variable whose value their caller does not want."""


class _ReportedLines:
    """Lines of the script that have read a number of processes. Each is reported once, and none before `report`."""

    def __init__(self) -> None:
        self._found: dict[str, object] = {}
        """Line -> the first number that it has read."""
        self._reports = False

    def add(self, line: str, number: object) -> None:
        if line not in self._found:
            self._found[line] = number
            if self._reports:
                _write(line, number)

    def report(self) -> None:
        if not self._reports:
            self._reports = True
            for line, number in list(self._found.items()):
                _write(line, number)


_reads = _ReportedLines()


def report() -> None:
    """Report the lines of the script that have read a number of processes, and from now on each new one."""
    _reads.report()


def _write(line: str, number: object) -> None:
    sys.stderr.write(
        f"esprof: {printable(line, LONGEST_NAME)} reads the number of processes ({number}): a learning rate, loss or sample "
        "that is computed from it gives other bits on another number of processes; compute it from n_est\n"
    )


def _note(number: object, frame: FrameType | None) -> None:
    """Note a read by `frame`, or by the caller to whom it returns the number, if that is code of the script."""
    while frame is not None and frame.f_code.co_name in _RETURNS_IT:
        frame = frame.f_back
    if frame is None or str(frame.f_globals.get("__name__")).partition(".")[0] == "esprof":
        return
    if is_own(frame.f_code.co_filename):
        _reads.add(f"{frame.f_code.co_filename}:{frame.f_lineno}", number)


def _naming(frame: FrameType | None, variable: str) -> FrameType | None:
    """The innermost frame whose code names the variable; None where the whole environment is copied."""
    while frame is not None and variable not in frame.f_code.co_consts:
        frame = frame.f_back
    return frame


def _watch() -> None:
    """Note each read of a variable with a number of processes, and of the size of a group."""
    environment: Any = os._Environ
    value_of = environment.__getitem__

    @functools.wraps(value_of)
    def noted_value(variables: Any, name: Any) -> Any:
        value = value_of(variables, name)
        if name in _VARIABLES and (caller := sys._getframe(1)).f_code.co_name not in _ONLY_LOOKS:
            _note(value, _naming(caller, name))
        return value

    environment.__getitem__ = noted_value
    if dist.is_available():
        group: Any = dist.ProcessGroup
        size_of = group.size

        @functools.wraps(size_of)
        def noted_size(one: dist.ProcessGroup) -> Any:
            size = size_of(one)
            _note(size, sys._getframe(1))
            return size

        group.size = noted_size


_watch()
