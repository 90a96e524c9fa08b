"""Run directories, as `esprof record` writes them."""

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from esprof.trace.reader import Reader
from esprof.trace.run import Run
from esprof.trace.rundir import read_run


def _is_run(path: Path) -> bool:
    return os.path.exists(path / "run.json") or os.path.exists(path / "raw" / "settings.json")


def _read(paths: Sequence[Path], named: Path, executor: Executor | None) -> Run:
    """One whose job still runs is read as it stands; one whose launcher was killed is finished first."""
    (path,) = paths
    if os.path.exists(path / "run.json"):
        return read_run(path)
    from esprof.recorder.collect.finalise import open_unfinished  # Nothing else that is opened here is the recorder's.

    return open_unfinished(path, executor)


READER = Reader(name="Run directory", recognises=_is_run, read=_read, is_folder=True)
