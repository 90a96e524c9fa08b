"""Training jobs for the recorder's tests, run with and without it."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import esprof
from esprof import Run, load
from esprof.run.run import RunWarning, WarningCode

JOBS = Path(__file__).parents[1] / "integration" / "jobs"
ESPROF = [sys.executable, "-c", "from esprof.cli import main; main()"]


@dataclass(frozen=True)
class Ended:
    """Result of a command, and the Run directory that it should write, if any."""

    code: int
    stdout: str
    stderr: str
    out: Path

    @property
    def run(self) -> Run:
        return load(self.out)

    @property
    def warnings(self) -> list[RunWarning]:
        """Warnings of the Run, without those on features that this torch lacks."""
        return [warning for warning in self.run.warnings if warning.code != WarningCode.TORCH_LACKS]

    @property
    def talk(self) -> str:
        """Output on stderr, without the same warnings."""
        lines = self.stderr.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("esprof: warning: torch "))


def job(name: str, *arguments: object) -> list[str]:
    """One of the scripts in `jobs`, in one process."""
    return [sys.executable, str(JOBS / name), *map(str, arguments)]


def torchrun(name: str, *arguments: object) -> list[str]:
    """The same under torchrun, on two workers."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [sys.executable, *launcher, str(JOBS / name), *map(str, arguments)]


def ranks(count: int, script: Path, *arguments: object) -> list[str]:
    """A script on this number of workers, for tests that do not depend on the launcher."""
    return [sys.executable, str(JOBS / "launch.py"), str(count), str(script), *map(str, arguments)]


def forks(count: int, script: Path, *arguments: object) -> list[str]:
    """The same with fewer seconds of imports, for elastic jobs that nobody records."""
    return [sys.executable, str(JOBS / "fork.py"), str(count), str(script), *map(str, arguments)]


def recording(out: Path, command: list[str], **options: object) -> list[str]:
    """The command line that records `command` into `out`; `options` such as `stack_steps=0`, or `shapes=True`."""
    named = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    flags = [word for flag, value in named.items() for word in ([flag] if value is True else [flag, str(value)])]
    return [*ESPROF, "record", "-q", "-o", str(out), *flags, "--", *command]


def run(command: list[str], out: Path = Path(), **variables: str) -> Ended:
    """Run `command` to its end, with `variables` added to the environment."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment(**variables))
    return Ended(done.returncode, without_gloos_words(done.stdout), done.stderr, out)


def without_gloos_words(text: str) -> str:
    """Output of the job without gloo's lines on connected ranks, which torch 2.8 prints on stdout."""
    gloos = re.compile(r"\[Gloo\] Rank|connected (to \d+ )?peer ranks")  # Ranks may write into each other's lines.
    return "".join(line for line in text.splitlines(keepends=True) if not gloos.search(line))


def record(out: Path, command: list[str], variables: dict[str, str] | None = None, **options: object) -> Ended:
    """Record `command` into `out`."""
    return run(recording(out, command, **options), out, **(variables or {}))


def record_alone(out: Path, command: list[str], **settings: Any) -> Run:
    """The Run of `command`, recorded without `esprof record`, whose process takes a second of imports."""
    ended = run(command, **esprof.environment(out, **settings))
    assert ended.code == 0, ended.stderr
    return load(out)


def pid_of(out: Path, rank: int) -> int:
    """Process of this rank of the job that is being recorded into `out`."""
    with (out / "raw" / f"rank-{rank:05d}.jsonl").open() as file:
        return next(row["pid"] for row in map(json.loads, file) if row["kind"] == "rank")


class Running:
    """A running command, whose output is read as far as a test needs."""

    def __init__(self, command: list[str], out: Path = Path(), **variables: str) -> None:
        self.out = out
        self._talk = TemporaryFile("w+")  # noqa: SIM115  it goes with this object
        self._read = ""
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._talk, text=True, env=environment(**variables)
        )

    def read(self, lines: int) -> None:
        """Wait until it has printed this number of further lines."""
        assert self.process.stdout is not None
        self._read += "".join(self.process.stdout.readline() for _ in range(lines))

    def talk(self) -> str:
        """Its output on stderr so far."""
        with open(self._talk.fileno(), closefd=False) as read:
            read.seek(0)
            return read.read()

    def end(self) -> Ended:
        """Wait for its end, and for the end of all processes that write to its output."""
        assert self.process.stdout is not None
        # Not `communicate`: it overlooks what `readline` has read ahead.
        self._read += self.process.stdout.read()
        code = self.process.wait()
        self._talk.seek(0)
        return Ended(code, self._read, self._talk.read(), self.out)


def environment(**variables: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"} | variables
