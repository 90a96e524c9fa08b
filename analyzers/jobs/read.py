"""Read a job log, of whichever format."""

from pathlib import Path

from esprof.analyzers.jobs.formats import FORMATS, format_of, jobs_of
from esprof.analyzers.jobs.log import JobLog
from esprof.analyzers.jobs.pai_2020 import JOBS, read_pai_2020
from esprof.analyzers.jobs.philly import read_philly
from esprof.analyzers.jobs.tables import first_columns, read_table
from esprof.core.errors import InputError, unreadable

_REMEDY = "docs/how-to/job-logs.md lists the formats."
_JSON = b"["
_MAX_BYTES_BEFORE = 64
"""White space that may precede JSON."""


def read_log(path: Path) -> JobLog:
    """The attempts of all jobs of the file or folder `path`. Raises InputError if it is no known log."""
    if path.is_dir() or path.name == JOBS:
        folder = path if path.is_dir() else path.parent
        if not (folder / JOBS).exists():
            raise InputError(f"holds no {JOBS}", path=path, remedy=_REMEDY)
        return read_pai_2020(folder)
    try:
        with path.open("rb") as file:
            is_json = file.read(_MAX_BYTES_BEFORE).lstrip().startswith(_JSON)
        if is_json:
            return read_philly(path, path.read_bytes())
    except OSError as error:
        raise unreadable(path, error) from error
    return _read_table(path)


def _read_table(path: Path) -> JobLog:
    columns = first_columns(path)
    layout = format_of(frozenset(columns))
    if layout is None:
        known = ", ".join(["Philly", "PAI 2020", *(one.name for one in FORMATS)])
        raise InputError(f"is no known job log ({known})", path=path, remedy=_REMEDY)
    if missing := [name for name in layout.required if name not in columns]:
        raise InputError(f"looks like {layout.name}, but lacks column {missing[0]}", path=path, remedy=_REMEDY)
    present = [name for name in layout.columns if name in columns]
    return jobs_of(read_table(path, columns, wanted=present), layout)
