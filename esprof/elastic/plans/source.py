"""Where a running job gets plans from: a file, or what else has these calls (`PlanKey`)."""

from pathlib import Path
from typing import Protocol

from esprof.core.output import write_bytes
from esprof.run.files import status_path

_MAX_PLAN_BYTES = 64 << 20


class PlanSource(Protocol):
    """In a job rank 0 alone asks it. Only what says so may raise: nothing that goes wrong here may hurt the job."""

    def poll(self) -> bytes | None:
        """A plan that has come since the last call; None where none has."""

    def put(self, plan: bytes) -> None:
        """Hand a plan to the job. Raises OutputError."""

    def report_status(self, status: bytes) -> None:
        """What became of a plan. Raises OutputError."""

    def status(self) -> bytes | None:
        """What was told last, by this process or one before it; None where that was nothing."""


class PlanFile:
    """The file `path`, whose status is a file beside it: of `plan.json` it is `plan.status.json`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._status = status_path(path)
        self._seen: tuple[int, int, int] | None = None

    def poll(self) -> bytes | None:
        try:
            now = self._path.stat()
            seen = (now.st_mtime_ns, now.st_ino, now.st_size)
            if seen == self._seen or now.st_size > _MAX_PLAN_BYTES:
                return None
            content = self._path.read_bytes()
        except OSError:
            return None
        self._seen = seen
        return content

    def put(self, plan: bytes) -> None:
        write_bytes(self._path, plan)

    def report_status(self, status: bytes) -> None:
        write_bytes(self._status, status)

    def status(self) -> bytes | None:
        try:
            return self._status.read_bytes()
        except OSError:
            return None


def source_of(asked: str | Path | PlanSource | None) -> PlanSource | None:
    """A path stands for the plan's file."""
    return PlanFile(Path(asked)) if isinstance(asked, str | Path) else asked
