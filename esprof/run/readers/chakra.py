"""Chakra execution traces (`.et`) without Kineto traces, one file per rank."""

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from esprof.core.errors import InputError
from esprof.run.execution.chakra import read_chakra
from esprof.run.execution.chakra_events import trace_of
from esprof.run.kineto.reader import Trace
from esprof.run.readers.kineto import run_of_results
from esprof.run.readers.reader import Reader
from esprof.run.reading import run_all
from esprof.run.run import Run


def _read(paths: Sequence[Path], named: Path, executor: Executor | None) -> Run:
    return run_of_results(run_all(executor, _attempt, paths), named, "chakra")


def _attempt(path: Path) -> tuple[Path, Trace] | InputError:
    try:
        return path, trace_of(read_chakra(path))
    except InputError as error:
        return error


READER = Reader(name="Chakra", recognises=lambda path: path.suffix == ".et", read=_read)
