"""`esprof record` without its talk: runs a training command with the recorder around it, and makes the Run."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from esprof.errors import EsprofError, MissingDependencyError, OutputError, UsageError
from esprof.output import claim
from esprof.trace.run import Run
from esprof.tracer.child import run_child
from esprof.tracer.injected.environment import with_hook
from esprof.tracer.injected.settings import Settings

HOOK = Path(__file__).resolve().parent / "hook"


@dataclass(frozen=True)
class Recording:
    """How a recorded command ended, and its Run, or what kept it from being made."""

    exit_code: int
    run: Run | None
    trouble: EsprofError | None = None


def launch(command: Sequence[str], out: Path, settings: Settings, *, force: bool = False, stdout: int = 1) -> int:
    """Run `command` with the recorder around it, its standard output being the file descriptor `stdout`.

    Returns its exit code and leaves what was noted in `out`, for `collect`. Raises EsprofError where the command cannot
    start, or where `out` is taken.
    """
    require_torch(command[0])
    raw = _make_room(out, force) / "raw"
    try:
        raw.mkdir()
        settings.write(str(raw))
        return run_child(command, os.environ | with_hook(os.environ, str(raw), str(HOOK)), stdout=stdout)
    except EsprofError:
        shutil.rmtree(out)
        raise


def collect(command: Sequence[str], out: Path, settings: Settings, exit_code: int) -> Recording:
    """Make the Run of a command that `launch` ran. Trouble is returned: it must not hide how the command ended."""
    # Parquet and msgspec load only now: nothing of ours should sit in memory beside the job.
    from esprof.tracer.finalise import finalise

    try:
        return Recording(exit_code, finalise(out, command, exit_code, settings))
    except EsprofError as trouble:
        return Recording(exit_code, None, trouble)
    except Exception as fault:  # noqa: BLE001  the same holds for a fault of our own
        return Recording(exit_code, None, EsprofError(f"could not be made into a run: {fault!r}", path=out / "raw"))


def require_torch(program: str) -> None:
    """Raise MissingDependencyError where `program` would run here without torch, UsageError where there is none.

    A program of another environment (a container's `python`, say) brings its own torch, or does not.
    """
    found = shutil.which(program)
    is_ours = found is None or Path(found).parent == Path(sys.executable).parent
    if is_ours and Path(program).name.startswith(("python", "torchrun")) and find_spec("torch") is None:
        raise MissingDependencyError("torch is not installed here", remedy='pip install "esprof[torch]"')
    if found is None:
        raise UsageError(f"cannot run {program!r}: no such command")


def _make_room(out: Path, force: bool) -> Path:
    """Make `out` an empty folder, and return its full path; `force` removes an older Run there, but nothing else."""
    claim(out, force=force)
    try:
        if out.exists():
            if not (out / "run.json").exists() and not (out / "raw").exists() and any(out.iterdir()):
                raise OutputError("is not a Run, and is not overwritten", path=out, remedy="Choose another name.")
            shutil.rmtree(out)
        out.mkdir(parents=True)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", path=out) from error
    return out.resolve()
