"""A Run that travels to another process by name: a Run holds open tables, and does not pickle."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from esprof.run import files
from esprof.run.directory import read_run
from esprof.run.run import Run


@dataclass(frozen=True)
class RunByName:
    """A Run. Pickled, it is the path of its directory, which the other process opens: that path must be the same there."""

    run: Run

    @property
    def travels(self) -> bool:
        """Whether the Run is a complete Run directory. A reader of traces holds those of all ranks."""
        return self.run.path is not None and files.is_complete(self.run.path)

    def __reduce__(self) -> tuple[Callable[[str, int], "RunByName"], tuple[Any, ...]]:
        assert self.run.path is not None, "this run has no directory"
        path = self.run.path.absolute()
        return _opened, (str(path), (path / files.META).stat().st_mtime_ns)


def _opened(path: str, written_ns: int) -> RunByName:
    return RunByName(_directory(path, written_ns))


@lru_cache(maxsize=1)
def _directory(path: str, written_ns: int) -> Run:
    """The Run in `path`, opened once in this process. `written_ns` differs where another Run has replaced it."""
    run = read_run(Path(path))
    run.keeps_one_rank = True
    return run
