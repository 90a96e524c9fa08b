"""The interface of a reader of traces."""

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
    """Whether a path has this format, by its name, by the files in a folder or by the first bytes of the file. May raise
    OSError."""
    read: Callable[[Sequence[Path], Path, Executor | None], Run]
    """Read the files into one Run; the path is the user's argument, the executor reads files in parallel. Raises
    InputError if nothing is readable, or if the files are not of one run."""
    is_folder: bool = False
    """Whether a run of this format is a folder."""
