"""`esprof.load`: open a Run directory, or the traces of one job, as a Run."""

import glob
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from esprof.core import readable
from esprof.core.errors import InputError, UsageError, unreadable
from esprof.run.readers import DEFAULT, READERS
from esprof.run.readers.archives import is_archive, unpacked
from esprof.run.readers.reader import Read, Reader
from esprof.run.run import Run, RunWarning

_MAX_FOLDERS_NAMED = 4
_NAME_ONE = "Name a Run directory, a trace file, a folder or an archive of traces, or a pattern."


def load(
    source: str | Path | Sequence[str | Path],
    executor: Executor | None = None,
    columns: Mapping[str, str] | None = None,
) -> Run:
    """Open a Run directory; or traces, one file per rank: a file, a folder, a tar or zip archive, a glob pattern or a list.

    A Run whose job is running is opened with the data so far; one whose launcher was killed is finished first. `executor`
    reads the files, one task each; by default a few threads do, as most of the work releases the GIL. `columns` tells where
    tables of operations have theirs: `{"op": "optype", "start": "start_ts:s"}` (docs/how-to/tables.md). Missing and
    unreadable ranks are named in `Run.warnings`. Raises InputError if nothing is readable, or if the files are of different
    jobs, and UsageError for unknown columns.
    """
    sources = [source] if isinstance(source, str | Path) else list(source)
    matches = [_matches(one) for one in sources]
    if len(matches) == 1 and len(matches[0]) == 1 and (whole := _folder_reader(matches[0][0])) is not None:
        return _read_of(whole, columns)(matches[0], matches[0][0], executor)
    files = [file for paths in matches for file in _files(paths)]
    if not files:
        raise InputError("no trace was named", remedy=_NAME_ONE)
    named = str(sources[0]) if len(sources) == 1 else f"{len(files)} files"
    run = _read(files, Path(named), executor, columns)
    run.sources = tuple(map(str, sources))
    if columns:
        run.sources += ("--columns", ",".join(f"{name}={column}" for name, column in columns.items()))
    return run


def _read_of(reader: Reader, columns: Mapping[str, str] | None) -> Read:
    """How this reader reads files with these columns. Raises UsageError if it knows no columns."""
    if not columns:
        return reader.read
    if reader.with_columns is None:
        raise UsageError("columns are of tables of operations only", remedy="Name Parquet files, or no columns.")
    return reader.with_columns(columns)


def _read(files: list[Path], named: Path, executor: Executor | None, columns: Mapping[str, str] | None) -> Run:
    """Read files and archives of them. Messages name the archive, not the folder that it was unpacked to."""
    with unpacked(files, _is_trace) as sources:
        try:
            traces: Sequence[Path] = sources.files
            for reader in READERS:
                traces = reader.without_copies(traces)
            run = _read_of(_reader_of(traces), columns)(traces, named, executor)
        except InputError as error:
            error.path = Path(sources.shown(str(error.path))) if error.path is not None else None
            raise
        renamed = (RunWarning(one.code, sources.shown(one.message), one.ranks) for one in run.warnings)
        run.warnings = (*renamed, *sources.warnings)
        return run


def _folder_reader(path: Path) -> Reader | None:
    """Return the reader that recognises this folder as one run; None if there is none."""
    return next((reader for reader in READERS if reader.is_folder and reader.recognises(path)), None)


def _reader_of(files: Sequence[Path]) -> Reader:
    """Return the first reader that recognises all files; that of Kineto traces comes last, since it takes any JSON."""
    of_files = [reader for reader in READERS if not reader.is_folder and reader is not DEFAULT]
    return next((reader for reader in of_files if all(map(reader.recognises, files))), DEFAULT)


def _matches(source: str | Path) -> list[Path]:
    """Return the path `source`, or all paths that match it as a pattern; at least one."""
    if source == "":  # From an unset variable, for example; Path would take it for the current folder.
        raise InputError("the name of the run is empty", remedy=_NAME_ONE)
    path = Path(source)
    try:
        matches = [path] if path.exists() else sorted(Path(match) for match in glob.glob(str(source)))
    except OSError as error:
        raise unreadable(path, error) from error
    if not matches:
        raise InputError("does not exist", path=path, remedy=_NAME_ONE)
    return matches


def _files(matches: list[Path]) -> list[Path]:
    """Return the traces of one source: those in a folder if it is the only match, otherwise all matches."""
    for path in matches:
        if _folder_reader(path) is not None:
            remedy = "Name it alone: it has all ranks. `esprof merge` joins several Runs of one job."
            raise InputError("is a Run directory among other inputs", path=path, remedy=remedy)
    if len(matches) > 1 or not matches[0].is_dir():
        return matches
    try:
        return _traces_in(matches[0])
    except OSError as error:
        raise unreadable(matches[0], error) from error


def _is_trace(file: Path) -> bool:
    return any(reader.recognises(file) for reader in READERS if not reader.is_folder)


def _traces_in(folder: Path) -> list[Path]:
    """Return the traces in a folder, or else the archives in it."""
    # A pipe would block, and a device need not end.
    named = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
    files = list(filter(_is_trace, named)) or list(filter(is_archive, named))
    if not files and (inner := next(filter(None, (reader.folder_in(folder) for reader in READERS)), None)) is not None:
        return _traces_in(inner)
    if not files and (below := _folders_with_traces(folder)):
        shown = readable.listed([path.name for path in below], _MAX_FOLDERS_NAMED)
        remedy = f"Name one of them, or all files of one job by a pattern: '{folder}/*/*'."
        raise InputError(f"contains no traces, but its folders do: {shown}", path=folder, remedy=remedy)
    if not files:
        raise InputError(
            "contains no run.json, no trace (*.json, *.json.gz), no archive of traces and no dump of the Flight Recorder",
            path=folder,
            remedy="Name the Run directory of `esprof record -o`, or a folder with inputs that docs/how-to/inputs.md lists.",
        )
    return files


def _folders_with_traces(folder: Path) -> list[Path]:
    """The folders in `folder` that are Runs or hold traces or archives, by name."""
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    return [path for path in inner if _folder_reader(path) is not None or _holds_traces(path)]


def _holds_traces(folder: Path) -> bool:
    try:
        return any(file.is_file() and (_is_trace(file) or is_archive(file)) for file in folder.iterdir())
    except OSError:
        return False
