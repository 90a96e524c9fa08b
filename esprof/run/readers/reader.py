"""The interface of a reader of traces."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from esprof.run.run import Run

Read = Callable[[Sequence[Path], Path, Executor | None], Run]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One format: how to recognise it, and how to read it."""

    name: str
    recognises: Callable[[Path], bool]
    """Whether a path has this format, by its name, by the files in a folder or by the first bytes of the file. May raise
    OSError."""
    read: Read
    """Read the files into one Run; the path is the user's argument, the executor reads files in parallel. Raises
    InputError if nothing is readable, or if the files are not of one run."""
    is_folder: bool = False
    """Whether a run of this format is a folder."""
    with_columns: Callable[[Mapping[str, str]], Read] | None = None
    """`read` of files whose columns have the names in a mapping; None if files of this format have no columns."""
    folder_in: Callable[[Path], Path | None] = lambda folder: None
    """The folder with the files of a run, inside a folder that its own tool names; None if there is none. May raise
    OSError."""
    without_copies: Callable[[Sequence[Path]], Sequence[Path]] = lambda files: files
    """The files without copies that the tool writes next to its own."""
