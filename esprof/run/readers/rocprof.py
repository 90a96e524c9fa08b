"""Results of rocprofv3 (`--output-format rocpd` or `json`) and of RPD (`runTracer.sh`)."""

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from esprof.core.errors import InputError
from esprof.run.databases import rocpd
from esprof.run.databases.database import tables_of
from esprof.run.databases.processes import read_processes, traces_of
from esprof.run.databases.rocprof_json import is_rocprof_json, processes
from esprof.run.kineto.reader import Trace
from esprof.run.readers.kineto import run_of_results
from esprof.run.readers.reader import Reader
from esprof.run.reading import run_all
from esprof.run.run import Run


def _recognises(path: Path) -> bool:
    return path.is_file() and (_is_database(path) or is_rocprof_json(path))


def _is_database(path: Path) -> bool:
    return any(name == rocpd.OPS or name.startswith(rocpd.DISPATCHES) for name in tables_of(path))


def _read(paths: Sequence[Path], named: Path, executor: Executor | None) -> Run:
    databases = [path for path in paths if _is_database(path)]
    documents = [path for path in paths if path not in databases]
    read = [one for result in run_all(executor, _attempt, documents) for one in result]
    return run_of_results([*read_processes(databases, rocpd.processes, executor), *read], named, "rocprof")


def _attempt(path: Path) -> list[tuple[Path, Trace] | InputError]:
    try:
        return [(path, trace) for trace in traces_of(path, processes(path))]
    except InputError as error:
        return [error]


READER = Reader(name="rocprof", recognises=_recognises, read=_read)
