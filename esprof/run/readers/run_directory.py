"""Run directories, as `esprof record` writes them."""

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from esprof.run import files
from esprof.run.directory import read_run
from esprof.run.raw import names
from esprof.run.readers.reader import Reader
from esprof.run.run import Run


def _is_run(path: Path) -> bool:
    return files.is_complete(path) or os.path.exists(path / files.RAW / names.SETTINGS)


def _read(paths: Sequence[Path], named: Path, executor: Executor | None) -> Run:
    """Open one Run directory, with the data so far if its job is running. A Run whose launcher was killed is finished."""
    (path,) = paths
    if files.is_complete(path):
        return read_run(path)
    from esprof.run.collect.finalise import open_unfinished  # Only an unfinished Run needs the recorder.

    return open_unfinished(path, executor)


READER = Reader(name="Run directory", recognises=_is_run, read=_read, is_folder=True)
