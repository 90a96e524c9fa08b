"""Databases of rocprofv3 (`--output-format rocpd`) and of RPD (`runTracer.sh`)."""

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from esprof.run.databases import rocpd
from esprof.run.databases.database import tables_of
from esprof.run.databases.processes import read_processes
from esprof.run.readers.kineto import run_of_results
from esprof.run.readers.reader import Reader
from esprof.run.run import Run


def _recognises(path: Path) -> bool:
    return path.is_file() and any(name == rocpd.OPS or name.startswith(rocpd.DISPATCHES) for name in tables_of(path))


def _read(paths: Sequence[Path], named: Path, executor: Executor | None) -> Run:
    return run_of_results(read_processes(paths, rocpd.processes, executor), named, "rocprof")


READER = Reader(name="rocprof", recognises=_recognises, read=_read)
