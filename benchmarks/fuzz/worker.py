"""The process that hands changed files to one reader, under limits of time and memory."""

import logging
import os
import resource
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NoReturn

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz.mutations import mutated
from benchmarks.fuzz.targets import Target
from esprof.core.errors import EsprofError

MAX_S = 10.0
"""Of CPU time: other work on the machine does not count."""
MAX_READ_BYTES = 64 << 20
"""What esprof is allowed to read (`ESPROF_MEMORY_LIMIT`)."""
MAX_MEMORY_BYTES = 1 << 30
"""Address space that a reader may take beyond that of the process before."""


class TooLong(BaseException):
    """A reader has not answered in MAX_S. No handler of `Exception` catches it."""


@dataclass
class Counts:
    """What became of the inputs of one target."""

    inputs: int = 0
    refused: int = 0
    answered: int = 0
    longest_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    """How often each fault was seen, by its exception and its place."""

    def add(self, other: "Counts") -> None:
        self.inputs += other.inputs
        self.refused += other.refused
        self.answered += other.answered
        self.longest_s = max(self.longest_s, other.longest_s)
        for fault, times in other.faults.items():
            self.faults[fault] = self.faults.get(fault, 0) + times


class Attempts:
    """Hands inputs to one target in a folder of its own, and counts what becomes of them."""

    def __init__(self, target: Target, folder: Path, found: Path | None) -> None:
        """`found` is the folder for inputs that show a fault."""
        self._target, self._folder, self._found = target, folder, found
        signal.signal(signal.SIGPROF, _too_long)
        self._silence = open(os.devnull, "w")  # noqa: SIM115 It goes with this object.
        self.counts = Counts()
        self._make()
        self.valid = {name: (folder / name).read_bytes() for name in target.files}
        self._call()  # What is read first loads libraries.

    def _make(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._target.make(self._folder)

    def one(self, random: Random) -> None:
        """One input: a valid file that was changed, or whose place something else takes."""
        name = random.choice(self._target.files)
        content = mutated(random, self.valid[name])
        strange = random.choice(STRANGE) if self._target.is_shared and random.random() < 0.01 else None
        self.take(name, content, strange)

    def take(self, name: str, content: bytes, strange: Callable[[Path], object] | None = None) -> None:
        """Hand this content of the file `name` to the target."""
        if self._target.is_used_up:
            self._make()
        path = self._folder / name
        path.unlink(missing_ok=True)
        if strange is not None:
            strange(path)
        else:
            path.write_bytes(content)
        began = time.process_time()
        outcome = self._call()
        self.counts.inputs += 1
        self.counts.longest_s = max(self.counts.longest_s, time.process_time() - began)
        if outcome == "answered":
            self.counts.answered += 1
        elif outcome == "refused":
            self.counts.refused += 1
        else:
            self._note(outcome, path)
        if self._target.is_used_up:
            return
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(self.valid[name])

    def _call(self) -> str:
        """`answered`, `refused`, or the fault."""
        signal.setitimer(signal.ITIMER_PROF, MAX_S)
        try:
            with redirect_stdout(self._silence), redirect_stderr(self._silence):
                self._target.read(self._folder)
        except EsprofError:
            return "refused"
        except TooLong:
            return f"no answer after {MAX_S:g} s"
        except Exception as error:  # noqa: BLE001 Whatever it is, it is a finding.
            return _described(error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return "answered"

    def _note(self, fault: str, path: Path) -> None:
        is_new = fault not in self.counts.faults
        self.counts.faults[fault] = self.counts.faults.get(fault, 0) + 1
        if is_new and self._found is not None:
            keep(self._folder, self._found, fault)


def keep(folder: Path, found: Path, fault: str) -> None:
    """Copy the input folder that shows a fault."""
    number = sum(1 for _ in found.glob("*")) if found.is_dir() else 0
    to = found / f"{number:03d}"
    with suppress(OSError, shutil.Error):
        shutil.copytree(folder, to / "input", symlinks=True)
        (to / "fault.txt").write_text(fault + "\n")


def _described(error: Exception) -> str:
    """The exception and the last place in esprof that it came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/benchmarks/" not in frame.filename]
    ours = [frame for frame in frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename]
    at = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} in {ours[-1].name}" if ours else "unknown place"
    return f"{type(error).__name__} at {at}"


STRANGE: tuple[Callable[[Path], object], ...] = (
    lambda path: None,
    lambda path: path.mkdir(),
    os.mkfifo,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("../../../../../etc/passwd"),
)
"""What another process may put in the place of a file: nothing, a folder, a pipe, a device, a loop, a file elsewhere."""


def limit() -> None:
    """Limit this process, so that a reader that asks for too much gets MemoryError."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    os.environ["ESPROF_MEMORY_LIMIT"] = str(MAX_READ_BYTES)
    warnings.simplefilter("ignore")
    logging.disable()


def _too_long(number: int, frame: FrameType | None) -> NoReturn:
    raise TooLong


def work(target: Target, folder: Path, found: Path | None, seed: int, count: int, to: Connection, beat: Any) -> None:
    """Try `count` inputs that hypothesis draws from `seed`, and send their Counts. `beat` gets the time of each."""
    attempts = Attempts(target, folder, found)
    limit()

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def one(random: Random) -> None:
        beat.value = time.monotonic()
        attempts.one(random)

    one()
    to.send(attempts.counts)
