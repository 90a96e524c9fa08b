"""What a reader of traces is: a file in `readers/` for each format."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from esprof.run.run import Run


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One format: how to recognise it, and how to read it."""

    name: str
    recognises: Callable[[Path], bool]
    """Whether a path is of this format: by its name, by what lies there, or, where names tell nothing, by the first bytes
    of the file and no more. May raise OSError."""
    read: Callable[[Sequence[Path], Path, Executor | None], Run]
    """Makes one Run of the given files; the path is what the person named, the executor reads several at once. Raises
    InputError where nothing is readable, or where the files are not of one run."""
    is_folder: bool = False
    """Whether a run of this format is a folder, which is then named alone."""
