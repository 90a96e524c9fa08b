"""Exports of Nsight Systems as SQLite (`nsys export --type sqlite`)."""

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from esprof.run.databases import nsight
from esprof.run.databases.database import tables_of
from esprof.run.databases.processes import read_processes
from esprof.run.readers.kineto import run_of_results
from esprof.run.readers.reader import Reader
from esprof.run.run import Run


def _recognises(path: Path) -> bool:
    return path.is_file() and nsight.KERNELS in tables_of(path)


def _read(paths: Sequence[Path], named: Path, executor: Executor | None) -> Run:
    return run_of_results(read_processes(paths, nsight.processes, executor), named, "nsight-systems")


READER = Reader(name="Nsight Systems", recognises=_recognises, read=_read)
