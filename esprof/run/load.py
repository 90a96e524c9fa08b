"""`esprof.load`: open whatever a person has, a Run directory or the traces of one run, as a Run."""

import glob
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from esprof.core.errors import InputError, unreadable
from esprof.run.readers import DEFAULT, READERS
from esprof.run.readers.reader import Reader
from esprof.run.run import Run

_NAME_ONE = "Name a Run directory, a trace file, a folder of traces or a pattern."


def load(source: str | Path | Sequence[str | Path], executor: Executor | None = None) -> Run:
    """Open a Run directory, or one trace, a folder of them, a glob pattern or a list, one file a rank.

    A Run whose job still runs is read as it stands; one whose launcher was killed is finished first.
    `executor` reads the files, one task for each; by default a few threads, as most of the work runs without Python's lock.
    A rank that is missing or unreadable is left out and named in `Run.warnings`. Raises InputError where nothing is
    readable, or where the files are not of one run.
    """
    sources = [source] if isinstance(source, str | Path) else list(source)
    matches = [_matches(one) for one in sources]
    if len(matches) == 1 and len(matches[0]) == 1 and (whole := _folder_reader(matches[0][0])) is not None:
        return whole.read(matches[0], matches[0][0], executor)
    files = [file for paths in matches for file in _files(paths)]
    if not files:
        raise InputError("no trace was named", remedy=_NAME_ONE)
    named = str(sources[0]) if len(sources) == 1 else f"{len(files)} files"
    run = _reader_of(files).read(files, Path(named), executor)
    run.sources = tuple(map(str, sources))
    return run


def _folder_reader(path: Path) -> Reader | None:
    """The reader that takes this folder for one whole run; None where none does."""
    return next((reader for reader in READERS if reader.is_folder and reader.recognises(path)), None)


def _reader_of(files: list[Path]) -> Reader:
    """The first reader that recognises all of the files."""
    of_files = [reader for reader in READERS if not reader.is_folder]
    return next((reader for reader in of_files if all(map(reader.recognises, files))), DEFAULT)


def _matches(source: str | Path) -> list[Path]:
    """The path that `source` names, or all that match it as a pattern; at least one."""
    if source == "":  # As an unset variable leaves it; Path would take it for the current folder.
        raise InputError("no run was named: the name is empty", remedy=_NAME_ONE)
    path = Path(source)
    try:
        matches = [path] if path.exists() else sorted(Path(match) for match in glob.glob(str(source)))
    except OSError as error:
        raise unreadable(path, error) from error
    if not matches:
        raise InputError("does not exist", path=path, remedy=_NAME_ONE)
    return matches


def _files(matches: list[Path]) -> list[Path]:
    """The traces that one source names: those in a folder, if it is the only match, or else all matches."""
    for path in matches:
        if _folder_reader(path) is not None:
            remedy = "Name it alone, as it holds all ranks; `esprof merge` joins the runs of one job."
            raise InputError("is a Run directory", path=path, remedy=remedy)
    if len(matches) > 1 or not matches[0].is_dir():
        return matches
    try:
        return _traces_in(matches[0])
    except OSError as error:
        raise unreadable(matches[0], error) from error


def _traces_in(folder: Path) -> list[Path]:
    of_files = [reader for reader in READERS if not reader.is_folder]
    named = [file for file in sorted(folder.iterdir()) if not file.name.startswith(".")]
    files = [file for file in named if any(reader.recognises(file) for reader in of_files)]
    if not files:
        raise InputError(
            "holds neither a run.json nor a trace (*.json, *.json.gz) nor a dump of the Flight Recorder",
            path=folder,
            remedy="Name the Run directory that `esprof record -o` wrote, or a folder of what docs/how-to/inputs.md lists.",
        )
    return files
