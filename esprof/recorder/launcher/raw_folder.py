"""Create the folder `raw` of a recording. Without a launcher, the job's first process creates it and the others join."""

import errno
import json
import os
import shutil
import socket
import stat
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from tempfile import mkdtemp

from esprof.core.credentials import without_secrets
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
    "SLURM_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""Variables with the same values in all processes of a job; two jobs hardly ever share them all."""

_ANY_JOB = "any"
"""Name of the job in a folder that any process may join."""

_ERRORS_OF_TAKEN_NAME = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}


def enter(run: Path, settings: Settings, rank: Rank, world_size: int) -> Path:
    """Create the folder `run`, or join it if another process of this job created it. Returns its `raw`.

    If an earlier start of the script has recorded there, the folder is `run-2`, then `run-3`, …: all ranks of a job find the
    same one. Raises OutputError if `run` has other content, or if nothing can be written.
    """
    job = _job(world_size)
    refuse_bytes(run)
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            numbered = run if number == 1 else run.with_name(f"{run.name}-{number}")
            raw = numbered.absolute() / files.RAW
            is_ours = (not os.path.lexists(numbered) and _make(numbered, settings, job)) or _is_of(raw, job)
            if is_ours and _join(raw, rank):
                return raw
            if not any(os.path.lexists(numbered / mark) for mark in files.MARKS_OF_RUNS):
                raise _taken(numbered, "already exists and is not overwritten")
    except OSError as error:
        raise unwritable(run, error) from error
    raise AssertionError("some number is free")


def open_to_all(run: Path, settings: Settings) -> Path:
    """Create the folder `run` for any processes of this user, and return its `raw`.

    Raises OutputError if `run` exists or cannot be created.
    """
    refuse_bytes(run)
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        if not _make(run, settings, _ANY_JOB):
            raise _taken(run, "already exists and is not overwritten")
    except OSError as error:
        raise unwritable(run, error) from error
    return run.absolute() / files.RAW


def refuse_bytes(run: Path) -> None:
    """Raise OutputError if the path is not UTF-8, to which PyTorch's profiler can save no trace."""
    try:
        str(run.absolute()).encode()
    except UnicodeEncodeError:
        reason = "its path is not UTF-8, and PyTorch's profiler could not save there"
        raise OutputError(reason, path=run, remedy="Choose another name.") from None


def make_raw(raw: Path, command: Sequence[str], settings: Settings, **about: object) -> None:
    """Create the folder `raw` with the settings and a `job.json` of command, start time and `about`.

    Raises OSError if it exists or cannot be created.
    """
    raw.mkdir(mode=0o700)
    (raw / names.ORDERS).mkdir(mode=0o700)
    job = {"command": list(without_secrets(command)), "started_ns": time.time_ns()} | about
    write_new(str(raw / names.JOB), json.dumps(job).encode())
    settings.write(str(raw))


def _join(raw: Path, rank: Rank) -> bool:
    """Note that this process records `rank`. False if another one does, or did before the job was started again."""
    try:
        NewFile(str(raw / names.joined(rank))).close()
    except FileExistsError:
        return False
    return True


def _make(run: Path, settings: Settings, job: str) -> bool:
    """Create the complete folder at once. False if the path exists."""
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
    """Whether a process of this job and user created `raw`, and its Run is incomplete."""
    try:
        found = os.lstat(raw)
        about = json.loads((raw / names.JOB).read_bytes())
    except (OSError, ValueError):
        return False
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return (
        is_ours
        and isinstance(about, dict)
        and about.get("job") in (job, _ANY_JOB)
        and not files.is_complete(raw.parent)
    )


def _job(world_size: int) -> str:
    """Return a name of this job, the same in all of its processes."""
    if world_size == 1:
        return f"process {os.getpid()} of {socket.gethostname()} at {time.time_ns()}"
    named = [f"{name}={os.environ[name]}" for name in _NAMES_OF_A_JOB if name in os.environ]
    return " ".join(named) or f"children of {os.getppid()} on {socket.gethostname()}"


def _taken(run: Path, reason: str) -> OutputError:
    return OutputError(reason, path=run, remedy="Choose another name, or remove the folder.")
