"""Sources of plans for a running job: a file, or another implementation such as `PlanKey`."""

from pathlib import Path
from typing import Protocol

from esprof.core.disk import read_regular
from esprof.core.output import write_bytes
from esprof.run.files import status_path

_MAX_PLAN_BYTES = 64 << 20


class PlanSource(Protocol):
    """Used by rank 0 alone. Methods must not raise unless documented: failures here must not stop the job."""

    def poll(self) -> bytes | None:
        """A new plan since the last call; None if there is none."""

    def put(self, plan: bytes) -> None:
        """Hand a plan to the job. Raises OutputError."""

    def report_status(self, status: bytes) -> None:
        """Publish the status of a plan. Raises OutputError."""

    def status(self) -> bytes | None:
        """The last status, by this process or a previous one; None if there is none."""


class PlanFile:
    """The file `path` and its status file in the same folder: `plan.status.json` for `plan.json`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._status = status_path(path)
        self._seen: tuple[int, int, int] | None = None

    def poll(self) -> bytes | None:
        try:
            now = self._path.stat()
            seen = (now.st_mtime_ns, now.st_ino, now.st_size)
            if seen == self._seen:
                return None
            content = read_regular(self._path, _MAX_PLAN_BYTES)
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
            return read_regular(self._status, _MAX_PLAN_BYTES)
        except OSError:
            return None


def source_of(asked: str | Path | PlanSource | None) -> PlanSource | None:
    """The source for an option; a path is a `PlanFile`."""
    return PlanFile(Path(asked)) if isinstance(asked, str | Path) else asked
