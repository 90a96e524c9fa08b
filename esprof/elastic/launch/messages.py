"""Messages between a launcher and its workers, in an environment variable and in files of the launch folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from esprof.core.disk import open_regular, read_regular
from esprof.core.errors import UsageError
from esprof.core.output import unwritable, write_bytes
from esprof.core.types import NOT_DECODED, Time
from esprof.run import files
from esprof.run.logs import JsonLog

VARIABLE = "ESPROF_LAUNCH"

_MAX_BYTES = 1 << 20
"""Size limit of a message."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The launch of a worker, as JSON in `VARIABLE`. Times are ns since the Unix epoch."""

    folder: str
    generation: int = 0
    most: int | None = None
    """Maximum number of workers of the launcher; None if it does not choose their number."""
    world_before: int | None = None
    """Number of workers of the previous generation; None in the first."""
    why: str = ""
    """Why a new generation was started."""
    stopped_ns: Time | None = None
    """When the previous generation was asked to save, or was found dead; None in the first."""
    left_ns: Time | None = None
    """When the previous generation had saved, or its processes were removed."""
    started_ns: Time | None = None
    """When this generation was started, after its slow imports."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Message of a generation that has saved and leaves."""

    step: int
    world: int | None = None
    """Number of workers of the next generation; None lets the launcher choose."""
    reason: str = ""
    asked: bool
    """Whether the process that writes this was itself asked to leave."""
    stopped_ns: Time
    """When it started to save."""


class LaunchState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a launch, in its folder, for processes that want to change it."""

    pid: int
    generation: int
    world: int
    most: int


class Logged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the launcher's log."""

    what: Literal["began", "asked", "refused", "left", "crashed", "ended", "gave up"]
    time_ns: Time
    generation: int
    world: int
    why: str = ""


LAUNCH_LOG: JsonLog[Logged] = JsonLog(files.LAUNCH_LOG, Logged)
"""What the launcher of a folder did."""


@contextmanager
def taken(folder: Path) -> Iterator[None]:
    """Lock a launch folder and remove files of earlier launches. Raises UsageError if another launcher uses it,
    OutputError if it cannot be created."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = open_regular(folder / files.LAUNCH_LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise UsageError(f"another launcher uses {folder}", remedy="Choose another --folder.") from None
    try:
        grant(folder)
        for stale in folder.glob(files.ALL_LEFT):
            stale.unlink(missing_ok=True)
        yield
    finally:
        os.close(file)


def launch_of_environment() -> Launch | None:
    """The launch of this process; None if no esprof launcher has started it."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Launch)
    except NOT_DECODED:
        return None


def write_left(launch: Launch, left: Left) -> None:
    """Raises OutputError."""
    write_bytes(files.left_path(Path(launch.folder), launch.generation), msgspec.json.encode(left))


def read_left(folder: Path, generation: int) -> Left | None:
    with suppress(OSError, *NOT_DECODED):
        return msgspec.json.decode(read_regular(files.left_path(folder, generation), _MAX_BYTES), type=Left)
    return None


def remove_left(folder: Path, generation: int) -> None:
    """Remove a report that was read: a job may have any number of generations."""
    with suppress(OSError):
        files.left_path(folder, generation).unlink(missing_ok=True)


def write_state(folder: Path, state: LaunchState) -> None:
    """Raises OutputError."""
    write_bytes(folder / files.LAUNCH_STATE, msgspec.json.encode(state))


def read_state(folder: Path) -> LaunchState | None:
    """The state of a launch; None if nothing was launched in this folder."""
    with suppress(OSError, *NOT_DECODED):
        return msgspec.json.decode(read_regular(folder / files.LAUNCH_STATE, _MAX_BYTES), type=LaunchState)
    return None


def want(folder: Path, world: int) -> None:
    """Ask the launcher for this number of workers. Raises OutputError."""
    write_bytes(folder / files.WORLD_WANTED, str(world).encode())


def wanted(folder: Path) -> int | None:
    """The requested number of workers; None without a valid request."""
    try:
        return int(read_regular(folder / files.WORLD_WANTED, 20))
    except (OSError, ValueError):
        return None


def grant(folder: Path) -> None:
    """Remove a request that was granted or is obsolete."""
    with suppress(OSError):
        (folder / files.WORLD_WANTED).unlink(missing_ok=True)


def is_ready(folder: Path, generation: int, rank: int) -> bool:
    return files.ready_path(folder, generation, rank).exists()
