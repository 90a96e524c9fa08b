"""Run a training command with the recorder, and create its Run: `esprof record` without its output."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from esprof.core.errors import EsprofError, MissingDependencyError, OutputError, UsageError
from esprof.core.output import claim, unwritable, write_bytes
from esprof.recorder.launcher.child import run_child
from esprof.recorder.launcher.order_window import order_window
from esprof.recorder.launcher.raw_folder import make_raw, refuse_bytes
from esprof.recorder.launcher.watch import JobWatch
from esprof.recorder.shared.environment import with_hook
from esprof.recorder.shared.talk import say
from esprof.run import files
from esprof.run.raw import names
from esprof.run.raw.relaunch import that_matters
from esprof.run.raw.settings import Settings

if TYPE_CHECKING:  # A host that only records has no Arrow.
    from esprof.run.run import Run

HOOK = Path(__file__).resolve().parents[1] / "hook"

_OF_ANALYSIS = ("pyarrow", "numba", "scipy")

_ONE_OF_MANY = (
    ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"),
    ("RANK", "RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_RANK", "PMI_SIZE"),
)
"""For each launcher: a variable that only its tasks have, the variable of the task number and that of the number of tasks.

A Slurm batch script has a task number, too, but no step id."""


@dataclass(frozen=True)
class Recording:
    """Exit code of a recorded command with its Run, or with the error that prevented a Run."""

    exit_code: int
    run: "Run | None"
    trouble: EsprofError | None = None


def place(out: Path, environ: Mapping[str, str]) -> Path:
    """Path of this launcher's Run: `out`, or a folder in it if `srun` or `mpirun` started one launcher per task."""
    for mark, number, count in _ONE_OF_MANY:
        if mark in environ and environ.get(number, "").isdigit() and environ.get(count, "").isdigit():
            return files.part(out, int(environ[number])) if int(environ[count]) > 1 else out
    return out


def prepare(command: Sequence[str], out: Path, settings: Settings, *, force: bool = False) -> Path:
    """Create the folder `out` for a recording of `command`, and return the path of its `raw`, which `launch` needs.

    Raises EsprofError, and leaves no folder, if the command cannot start, or if `out` exists or cannot be written.
    """
    require_torch(command[0])
    raw = make_room(out, force) / files.RAW
    try:
        started_from = {"folder": os.getcwd(), "environment": that_matters(os.environ)}
        make_raw(raw, command, settings, launcher_pid=os.getpid(), **started_from)
    except OSError as error:
        shutil.rmtree(out, ignore_errors=True)
        raise unwritable(out, error) from error
    return raw


def launch(
    command: Sequence[str], raw: Path, *, stdout: int = 1, on_stop: Callable[[int], None] = lambda number: None
) -> int:
    """Run `command` with the recorder and return its exit code. `prepare` creates `raw`; `collect` reads it afterwards.

    `stdout` is the file descriptor of the command's standard output. `on_stop` is called with the number of each signal
    that asks the job to end; it must not raise. Raises UsageError, and leaves no folder, if the command cannot start.
    """
    try:
        watch = JobWatch(raw)
        return run_child(
            command,
            os.environ | with_hook(os.environ, str(raw), str(HOOK)),
            stdout=stdout,
            glance=_Harmless(watch.look),
            on_usr2=_Harmless(lambda: order_window(raw)),
            on_stop=on_stop,
        )
    except EsprofError:
        shutil.rmtree(raw.parent)
        raise


class _Harmless:
    """Work of the launcher during the job. It stops at the first error, so that the launcher keeps waiting for the job."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work

    def __call__(self) -> None:
        if self._work is None:
            return
        try:
            self._work()
        except Exception as fault:  # noqa: BLE001  see above
            self._work = None
            say(f"{type(fault).__name__}: {fault}")


def collect(command: Sequence[str], out: Path, settings: Settings, exit_code: int) -> Recording:
    """Create the Run of a command that `launch` ran. Errors are returned, not raised: they must not hide its exit code."""
    if not can_analyse():
        return Recording(exit_code, None, _left_as_recorded(out, exit_code))
    # Imported late: the launcher should take little memory while the job runs.
    from esprof.run.collect.finalise import finalise

    try:
        return Recording(exit_code, finalise(out, command, exit_code, settings))
    except OutputError as trouble:
        remedy = (
            f"The recorded data stays in {out}. Free space there, then run `esprof diagnose {out}` to complete the run."
        )
        return Recording(exit_code, None, OutputError(trouble.reason, path=trouble.path, remedy=remedy))
    except EsprofError as trouble:
        return Recording(exit_code, None, trouble)
    except Exception as fault:  # noqa: BLE001  nor must an internal error
        return Recording(exit_code, None, EsprofError(f"cannot be converted to a run: {fault!r}", path=out / files.RAW))


def can_analyse() -> bool:
    """Whether the libraries are installed that read a recording: a host that only records does without them."""
    return all(find_spec(library) is not None for library in _OF_ANALYSIS)


def _left_as_recorded(out: Path, exit_code: int) -> EsprofError:
    """Note the exit code of the command for who reads the recording elsewhere, and say how."""
    job = out / files.RAW / names.JOB
    try:
        write_bytes(job, msgspec.json.encode(msgspec.json.decode(job.read_bytes()) | {"exit_code": exit_code}))
    except (OSError, msgspec.MsgspecError, EsprofError) as fault:
        return EsprofError(f"cannot be completed: {fault}", path=out)
    return EsprofError(
        "is recorded; this installation of esprof cannot read it",
        path=out,
        remedy=f"Copy it to where all of esprof is installed, and run `esprof diagnose {out.name}` there.",
    )


def require_torch(program: str) -> None:
    """Raise MissingDependencyError if `program` would run here without torch, UsageError if it does not exist.

    A program of another environment, such as a container's `python`, may have its own torch and is not checked.
    """
    found = shutil.which(program)
    is_ours = found is None or Path(found).parent == Path(sys.executable).parent
    if is_ours and Path(program).name.startswith(("python", "torchrun")) and find_spec("torch") is None:
        raise MissingDependencyError("torch is not installed in this environment", remedy='pip install "esprof[torch]"')
    if found is None:
        raise UsageError(f"cannot run {program!r}: no such command", remedy="Check the name and PATH.")


def make_room(out: Path, force: bool) -> Path:
    """Create the empty folder `out` and return its absolute path. `force` removes an older Run there, but nothing else."""
    claim(out, force=force)
    refuse_bytes(out)
    try:
        if out.exists():
            if not any((out / name).exists() for name in files.MARKS_OF_RUNS) and any(out.iterdir()):
                raise OutputError("is not a Run and is not overwritten", path=out, remedy="Choose another name.")
            shutil.rmtree(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.mkdir(mode=0o700)
    except OSError as error:
        raise unwritable(out, error) from error
    return out.resolve()
