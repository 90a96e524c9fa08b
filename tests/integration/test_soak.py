"""Kills at random: whatever process of a recorded job dies, and whenever, what was recorded stays readable.

The windows follow each other so closely that the profiler is nearly always on, and many a kill falls into its export.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from esprof import Run, load
from esprof.core.errors import InputError
from tests.cases.record import Ended, Running, job, recording, run

pytestmark = [pytest.mark.integration, pytest.mark.soak]

STEPS, PAUSE = 60, 0.02
KILLS = 100
OPTIONS = {"skip": 1, "warmup": 1, "steps": 3, "stack_steps": 1, "every": 7, "hang": 1}
FAULTS = {"rank-unreadable", "table-unreadable", "recorder-fault", "steps-dropped"}
"""Warnings that no kill explains."""
NO_KILL = ("Segmentation fault", "Aborted", "Bus error", "Floating point exception")


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Ended:
    """The job as it is without esprof."""
    ended = run(family(tmp_path_factory.mktemp("plain")))
    assert (ended.code, ended.stdout.count("loss")) == (0, STEPS)
    return ended


def family(folder: Path) -> list[str]:
    return job("family.py", folder / "store", STEPS, PAUSE)


def relatives(pid: int) -> list[int]:
    """The process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return found


def wait_for_moment(chance: random.Random, raw: Path) -> None:
    """Some time in the job's life; one time in three, the middle of an export."""
    if chance.random() < 1 / 3:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and not any(raw.glob("*.part")):
            pass
    else:
        time.sleep(chance.uniform(0, 1.5))


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_random_kill(tmp_path, plain, seed):
    chance = random.Random(seed)
    running = Running(recording(tmp_path / "run", family(tmp_path), **OPTIONS), tmp_path / "run")
    running.read(1 if chance.random() < 0.1 else 2)  # The second line is that of the first step.
    wait_for_moment(chance, running.out / "raw")
    family_now = relatives(running.process.pid)
    victim = chance.choice(family_now)
    role = ("launcher", "parent", "rank or worker")[min(family_now.index(victim), 2)]
    os.kill(victim, signal.SIGKILL)
    ended = running.end()
    lines = ended.stdout.splitlines()[1:]
    print(f"seed {seed}: {role} of {len(family_now)} processes, after {len(lines)} lines, code {ended.code}")
    expected = plain.stdout.splitlines()[1:]
    assert lines == expected[: len(lines)]
    if role == "launcher":
        assert lines == expected, ended.stderr
    recorded = opened(ended)
    if recorded is not None:
        check(recorded)


def opened(ended: Ended) -> Run | None:
    """The Run, finished; None where the job was killed before its first step ended."""
    deadline = time.monotonic() + 20
    while True:
        try:
            recorded = load(ended.out)
        except InputError as error:
            if ended.out.exists() and "nothing was recorded" not in str(error):
                raise
            return None
        if "still-running" not in {warning.code for warning in recorded.warnings}:
            return recorded
        assert time.monotonic() < deadline, "processes of the job do not end"
        time.sleep(0.2)


def check(recorded: Run) -> None:
    """Every file of the Run can be read, and holds what it says; nothing but the kill has ended a process."""
    # A DataLoader raises in its rank, in whatever code that is at, when a worker of it dies.
    unexplained = [warning for warning in recorded.warnings if "DataLoader worker" not in warning.message]
    assert not FAULTS & {warning.code for warning in unexplained}, unexplained
    assert not (recorded.path / "raw").exists()
    for meta in recorded.meta.ranks:
        events = recorded.events(meta.rank)
        steps = events.where(events.is_kind("step")).ints("step").tolist()
        timed = [window for window in meta.windows if not window.stacks]
        assert steps == [step for window in timed for step in range(window.first, window.last + 1)]
        for table in (recorded.steps, recorded.stages, recorded.memory, recorded.stacks):
            table(meta.rank)
        assert recorded.flight(meta.rank).fault not in NO_KILL, recorded.flight(meta.rank).fatal
