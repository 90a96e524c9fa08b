"""What a launcher and the workers that it has started tell each other, by a variable and by files of the launch's folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from esprof.core.errors import UsageError
from esprof.core.output import unwritable, write_bytes
from esprof.core.types import Ns
from esprof.run import files
from esprof.run.logs import JsonLog

VARIABLE = "ESPROF_LAUNCH"


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told of its launch, as JSON in `VARIABLE`. Times are since the Unix epoch."""

    folder: str
    generation: int = 0
    most: int | None = None
    """How many workers the launcher can start; None where it does not choose their number."""
    world_before: int | None = None
    """Workers of the generation before; None in the first."""
    why: str = ""
    """Why there is another generation."""
    stopped_ns: Ns | None = None
    """When the generation before was asked to save, or was found dead; None in the first."""
    left_ns: Ns | None = None
    """When it had saved, or the dead were cleared away."""
    started_ns: Ns | None = None
    """When this one was told to begin, with all that takes long to import in memory."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation tells that has saved, and leaves for another one to go on."""

    step: int
    world: int | None = None
    """Workers that the next one is to have; None for as many as the launcher thinks fit."""
    reason: str = ""
    asked: bool
    """Whether it was the process that tells this which was asked, and not another one alone."""
    stopped_ns: Ns
    """When it began to save."""


class LaunchState(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the launch's folder for whoever wants to change it."""

    pid: int
    generation: int
    world: int
    most: int


class Logged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the launcher's log."""

    what: Literal["began", "asked", "refused", "left", "crashed", "ended", "gave up"]
    time_ns: Ns
    generation: int
    world: int
    why: str = ""


LAUNCH_LOG: JsonLog[Logged] = JsonLog(files.LAUNCH_LOG, Logged)
"""What the launcher of a folder did."""


@contextmanager
def taken(folder: Path) -> Iterator[None]:
    """Have a launch's folder for oneself, without what an earlier launch has left there. Raises UsageError where another
    launcher has it, OutputError where it cannot be made."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(folder / files.LAUNCH_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
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
    """What this process is told of its launch; None where no launcher of ours has started it."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Launch)
    except (msgspec.MsgspecError, RecursionError):
        return None


def write_left(launch: Launch, left: Left) -> None:
    """Raises OutputError."""
    write_bytes(files.left_path(Path(launch.folder), launch.generation), msgspec.json.encode(left))


def read_left(folder: Path, generation: int) -> Left | None:
    with suppress(OSError, msgspec.MsgspecError, RecursionError):
        return msgspec.json.decode(files.left_path(folder, generation).read_bytes(), type=Left)
    return None


def write_state(folder: Path, state: LaunchState) -> None:
    """Raises OutputError."""
    write_bytes(folder / files.LAUNCH_STATE, msgspec.json.encode(state))


def read_state(folder: Path) -> LaunchState | None:
    """None where nothing was launched in this folder."""
    with suppress(OSError, msgspec.MsgspecError, RecursionError):
        return msgspec.json.decode((folder / files.LAUNCH_STATE).read_bytes(), type=LaunchState)
    return None


def want(folder: Path, world: int) -> None:
    """Ask the launcher for so many workers. Raises OutputError."""
    write_bytes(folder / files.WORLD_WANTED, str(world).encode())


def wanted(folder: Path) -> int | None:
    """How many workers somebody wants; None where nobody has said anything sensible."""
    try:
        return int((folder / files.WORLD_WANTED).read_bytes()[:20])
    except (OSError, ValueError):
        return None


def grant(folder: Path) -> None:
    """What was wanted is done, or something else has come since."""
    with suppress(OSError):
        (folder / files.WORLD_WANTED).unlink(missing_ok=True)


def is_ready(folder: Path, generation: int, rank: int) -> bool:
    return files.ready_path(folder, generation, rank).exists()
