"""The folder `raw` of a recording: made by the launcher, or by the job's own processes, of which the first makes it and the
others join."""

import errno
import json
import os
import shutil
import socket
import stat
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

from esprof.core.errors import OutputError
from esprof.core.output import unwritable
from esprof.core.types import Rank
from esprof.run import files
from esprof.run.raw import names
from esprof.run.raw.new_files import NewFile, write_new
from esprof.run.raw.settings import Settings

_NAMES_OF_A_JOB = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""Variables that are the same in all processes of a job, and together hardly ever the same in two jobs."""

_ANY_JOB = "any"
"""Name of the job in a folder that is open to all."""

_ERRORS_OF_TAKEN_NAME = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}


def enter(run: Path, settings: Settings, rank: Rank, world_size: int) -> Path:
    """Make the folder of `run`, or join it where another process of this job has made it. Returns its `raw`.

    Raises OutputError where `run` holds anything else, where another process has joined as `rank`, or where nothing can be
    written.
    """
    raw, job = run.absolute() / files.RAW, _job(world_size)
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        if not _make(run, settings, job) and not _is_of(raw, job):
            raise _taken(run, "is there already, and is not overwritten")
        _join(run, raw, rank)
    except OSError as error:
        raise unwritable(run, error) from error
    return raw


def open_to_all(run: Path, settings: Settings) -> Path:
    """Make the folder of `run` for whatever processes of this user are led there, and return its `raw`.

    Raises OutputError where `run` is there already, or cannot be made.
    """
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        if not _make(run, settings, _ANY_JOB):
            raise _taken(run, "is there already, and is not overwritten")
    except OSError as error:
        raise unwritable(run, error) from error
    return run.absolute() / files.RAW


def make_raw(raw: Path, command: Sequence[str], settings: Settings, **about: object) -> None:
    """Make the folder that the job's processes write to, with the settings and a `job.json` of command, start and `about`.

    Raises OSError where it is there already or cannot be made.
    """
    raw.mkdir(mode=0o700)
    (raw / names.ORDERS).mkdir(mode=0o700)
    job = {"command": list(command), "started_ns": time.time_ns()} | about
    write_new(str(raw / names.JOB), json.dumps(job).encode())
    settings.write(str(raw))


def _join(run: Path, raw: Path, rank: Rank) -> None:
    try:
        NewFile(str(raw / names.joined(rank))).close()
    except FileExistsError as error:
        raise _taken(run, f"another process records rank {rank} there") from error


def _make(run: Path, settings: Settings, job: str) -> bool:
    """Put the folder in its place, whole. False where something else stands there."""
    made = Path(mkdtemp(prefix=f".{run.name[:100]}.", dir=run.parent))
    try:
        make_raw(made / files.RAW, [sys.executable, *sys.argv], settings, job=job)
        made.rename(run)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        if error.errno not in _ERRORS_OF_TAKEN_NAME:
            raise
        return False
    return True


def _is_of(raw: Path, job: str) -> bool:
    """Whether `raw` was made by a process of this job and user, and its run is not finished."""
    try:
        found = os.lstat(raw)
        about = json.loads((raw / names.JOB).read_bytes())
    except (OSError, ValueError):
        return False
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return (
        is_ours and isinstance(about, dict) and about.get("job") in (job, _ANY_JOB) and not files.is_whole(raw.parent)
    )


def _job(world_size: int) -> str:
    """A name of this job, the same in all of its processes."""
    if world_size == 1:
        return f"process {os.getpid()} of {socket.gethostname()} at {time.time_ns()}"
    named = [f"{name}={os.environ[name]}" for name in _NAMES_OF_A_JOB if name in os.environ]
    return " ".join(named) or f"children of {os.getppid()} on {socket.gethostname()}"


def _taken(run: Path, reason: str) -> OutputError:
    return OutputError(reason, path=run, remedy="Choose another name, or remove what is there.")
