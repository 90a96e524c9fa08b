"""Training jobs for the recorder's tests, run with and without it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from esprof import Run, load

JOBS = Path(__file__).parent / "integration" / "jobs"
ESPROF = [sys.executable, "-c", "from esprof.cli import main; main()"]


@dataclass(frozen=True)
class Ended:
    """How a command ended, and the Run directory that it was to write, if any."""

    code: int
    stdout: str
    stderr: str
    out: Path

    @property
    def run(self) -> Run:
        return load(self.out)


def job(name: str, *arguments: object) -> list[str]:
    """One of the scripts in `jobs`, in one process."""
    return [sys.executable, str(JOBS / name), *map(str, arguments)]


def torchrun(name: str, *arguments: object) -> list[str]:
    """The same under torchrun, on two workers."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [sys.executable, *launcher, str(JOBS / name), *map(str, arguments)]


def recording(out: Path, command: list[str], **options: object) -> list[str]:
    """The command line that records `command` into `out`; `options` such as `stack_steps=0`."""
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*ESPROF, "record", "-q", "-o", str(out), *flags, "--", *command]


def run(command: list[str], out: Path = Path(), **variables: str) -> Ended:
    """Run `command` to its end, with `variables` added to the environment."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment(**variables))
    return Ended(done.returncode, done.stdout, done.stderr, out)


def record(out: Path, command: list[str], variables: dict[str, str] | None = None, **options: object) -> Ended:
    """Record `command` into `out`."""
    return run(recording(out, command, **options), out, **(variables or {}))


def environment(**variables: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"} | variables
