"""What may happen to a recorded job: it does as it would without esprof, and all windows already closed are readable."""

import os
import shutil
import signal
import subprocess
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from esprof import Run, load
from esprof.recorder.launcher.order_window import attach
from esprof.run.run import WarningCode
from tests.cases.marks import soak
from tests.cases.record import Ended, Running, job, pid_of, recording, run, torchrun

pytestmark = pytest.mark.integration

WINDOW = {"warmup": 1, "steps": 3, "stack_steps": 0}
MODES = {
    "windows by step": WINDOW | {"skip": 3},
    "repeated windows": WINDOW | {"skip": 3, "every": 10},
    "on demand": WINDOW | {"flight": 1000},
    "flight recorder": {"flight": 1000},
}
CLOSED = {"windows by step": 1, "repeated windows": 3, "on demand": 1, "flight recorder": 0}
"""Windows of each rank that are closed when `started` returns."""
STEPS = {"windows by step": 100, "repeated windows": 100, "on demand": 320, "flight recorder": 100}
"""A window on demand lies three seconds ahead, so that every rank hears of it in time."""


def modes(*usual: str):
    """A test in each mode; `make test` runs the `usual` ones, in which what it does to the job is most likely to hurt."""
    every = [mode if mode in usual else soak(mode) for mode in MODES]
    return pytest.mark.parametrize("mode", every)


def started(out: Path, command: list[str], mode: str) -> Running:
    """The recorded `command`, with its first windows closed and the next one to come soon, or open."""
    running = Running(recording(out, command, **MODES[mode]), out)
    running.read(5)
    if mode == "on demand":
        assert attach(out, timeout_s=300).whole
    running.read(35)
    return running


def train(mode: str, *more: object) -> tuple[object, ...]:
    """A job long enough for the windows of this mode, and for what happens to it after them."""
    return ("train.py", "--steps", STEPS[mode], "--pause", 0.02, *more)


FOR_EVER = ("train.py", "--steps", 100_000, "--pause", 0.02)


@cache
def plain(*command: str) -> Ended:
    """How `train.py` ends without esprof, where nothing that has to happen meanwhile needs its pauses."""
    return run([*command, "--pause", "0"])


def check(recorded: Run, mode: str, ranks: tuple[int, ...] = (0,)) -> None:
    """All windows that were closed are there, whole; and so are the steps around them."""
    for rank in ranks:
        windows = recorded.rank(rank).windows
        assert len(windows) >= CLOSED[mode]
        events = recorded.events(rank)
        steps = events.where(events.is_kind("step")).ints("step").tolist()
        assert steps == [step for window in windows for step in range(window.first, window.last + 1)]
        assert len(recorded.steps(rank)) >= 25
        recorded.flight(rank), recorded.stages(rank), recorded.memory(rank), recorded.stacks(rank)


def codes(recorded: Run) -> set[tuple[str, tuple[int, ...]]]:
    lacks = WarningCode.TORCH_LACKS
    return {(warning.code, warning.ranks) for warning in recorded.warnings if warning.code != lacks}


def unharmed(ended: Ended, command: list[str]) -> None:
    expected = plain(*command)
    assert (ended.stdout, ended.code) == (expected.stdout, expected.code), ended.stderr


@modes("on demand")
def test_losses_are_the_same_to_the_bit(tmp_path, mode):
    command = torchrun(*train(mode, "--workers", 1))
    ended = started(tmp_path / "run", command, mode).end()
    unharmed(ended, command)
    assert ended.stdout.count("loss") == STEPS[mode]
    check(ended.run, mode, (0, 1))
    assert ended.warnings == []


@modes("repeated windows")
def test_a_worker_is_killed(tmp_path, mode):
    running = started(tmp_path / "run", torchrun(*FOR_EVER), mode)
    os.kill(pid_of(running.out, rank=1), signal.SIGKILL)
    ended = running.end()
    assert ended.code == 1  # As torchrun ends.
    check(ended.run, mode, (0, 1))
    assert ("rank-killed", (1,)) in codes(ended.run)
    assert ended.run.meta.exit_code == 1
    assert ended.run.flight(1).died


@modes("windows by step")
def test_the_launcher_is_killed(tmp_path, mode):
    command = job(*train(mode))
    running = started(tmp_path / "run", command, mode)
    running.process.kill()
    running.process.wait()
    living = load(running.out)
    check(living, mode)
    assert ("still-running", ()) in codes(living)
    ended = running.end()
    assert ended.stdout == plain(*command).stdout
    finished = load(running.out)
    check(finished, mode)
    assert codes(finished) == {("launcher-gone", ())}
    assert list(finished.meta.command) == command
    assert load(running.out).meta == finished.meta
    assert not (running.out / "raw").exists()


@modes("flight recorder")
@pytest.mark.parametrize("whom", ["worker", soak("launcher")])
def test_it_is_terminated(tmp_path, mode, whom):
    running = started(tmp_path / "run", job(*FOR_EVER), mode)
    os.kill(pid_of(running.out, rank=0) if whom == "worker" else running.process.pid, signal.SIGTERM)
    ended = running.end()
    assert ended.code == 128 + signal.SIGTERM
    check(ended.run, mode)
    assert ("rank-killed", (0,)) in codes(ended.run)
    assert "train.py" in ended.run.flight(0).fatal


@contextmanager
def small_disk(path: Path):
    """A file system of 8 MiB."""
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def fill(path: Path, but: int = 0) -> None:
    """Take all room that is left, but for so many bytes."""
    with path.open("wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(file.tell() - but)


WHOLE = ": the trace could not be written whole"
"""What is said of a window beside the reason."""


@modes("repeated windows")
def test_the_disk_fills_up(tmp_path, mode):
    command = job(*train(mode))
    with small_disk(tmp_path / "disk") as disk:
        running = started(disk / "run", command, mode)
        fill(disk / "filler")
        ended = running.end()
        unharmed(ended, command)
        assert ended.stderr.count("the job continues") == 1
        assert f"{disk}/run/raw/rank-00000." in ended.stderr
        assert f"No space left on device (on the disk at {disk})" in ended.stderr.replace(WHOLE, "")
        (disk / "filler").unlink()
        recorded = load(disk / "run")
        check(recorded, mode)
        # Its last words may or may not have found room.
        assert {("recorder-fault", (0,)), ("rank-killed", (0,))} & codes(recorded)


@pytest.mark.parametrize(
    ("room", "lost", "says"),
    [
        (8192, "rank-00000.jsonl", "rank 0 trained, but could not write to this folder"),
        (32768, "timed.4.json.part", WHOLE),
    ],
)
def test_a_disk_without_room_for_a_window_is_named_at_once_and_at_the_end(tmp_path, room, lost, says):
    command = job("train.py", "--steps", 20)
    with small_disk(tmp_path / "disk") as disk:
        fill(disk / "filler", but=room)
        ended = run(recording(disk / "run", command, **WINDOW, skip=3), disk / "run")
        unharmed(ended, command)
        *at_once, at_the_end = ended.stderr.split("the command ended with 0; ")
        assert f"{lost}: No space left on device" in at_once[0]
        assert f"(on the disk at {disk})" in at_once[0]
        assert says in at_the_end
        assert [file.name for file in disk.iterdir()] == ["filler"]


def test_a_disk_that_is_full_when_the_job_has_ended_keeps_what_was_recorded(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        command = ["sh", "-c", f'"$@"; cat /dev/zero > {disk}/filler', "sh", *job("train.py", "--steps", 20)]
        ended = run(recording(disk / "run", command, **WINDOW, skip=3), disk / "run")
        assert ended.code == 1  # It is the job's: `cat` found no room.
        assert f"No space left on device (on the disk at {disk})" in ended.stderr
        assert f"run `esprof diagnose {disk}/run` to complete the run" in ended.stderr
        (disk / "filler").unlink()
        assert [(window.first, window.last) for window in ended.run.rank(0).windows] == [(4, 6)]
        assert (disk / "run" / "run.json").exists()


@contextmanager
def read_only(folder: Path):
    """Nothing new can be made in `folder`."""
    if os.geteuid():
        folder.chmod(0o500)
        yield
        folder.chmod(0o700)
        return
    for options in (["--bind"], ["-o", "remount,bind,ro"]):
        if subprocess.run(["mount", *options, folder, folder], capture_output=True).returncode:
            pytest.skip("nothing can be mounted here")
    yield
    subprocess.run(["umount", folder], check=True)


@modes("repeated windows")
def test_the_folder_becomes_read_only(tmp_path, mode):
    command = job(*train(mode))
    running = started(tmp_path / "run", command, mode)
    with read_only(running.out / "raw"):
        ended = running.end()
    unharmed(ended, command)
    check(ended.run, mode)
    assert ended.stderr.count("the job continues") == (mode == "repeated windows")
    lost = {("recorder-fault", (0,)), ("windows-lost", (0,))}
    assert codes(ended.run) == (lost if mode == "repeated windows" else set())


@modes("on demand")
def test_the_folder_is_removed(tmp_path, mode):
    command = job(*train(mode))
    running = started(tmp_path / "run", command, mode)
    shutil.rmtree(running.out / "raw")
    ended = running.end()
    unharmed(ended, command)
    assert "was removed while the job ran" in ended.stderr
    assert not running.out.exists()


@modes("repeated windows")
def test_the_job_forks(tmp_path, mode):
    command = job(*train(mode, "--fork"))
    ended = started(tmp_path / "run", command, mode).end()
    unharmed(ended, command)
    assert ended.stdout.count("child") == STEPS[mode] // 10
    check(ended.run, mode)
    assert ended.warnings == []


@modes("windows by step")
def test_the_job_ends_without_a_word(tmp_path, mode):
    command = job(*train(mode, "--hard-exit", "--exit", 7))
    ended = started(tmp_path / "run", command, mode).end()
    unharmed(ended, command)
    assert ended.code == 7
    check(ended.run, mode)
    assert codes(ended.run) == {("rank-killed", (0,))}


# What others may have planted


def recorded_after(tmp_path: Path, deed: str) -> Ended:
    """A recording whose command first does something to its `raw`."""
    out = tmp_path / "run"
    command = ["sh", "-c", f'cd "$0" && {deed} && exec "$@"', str(out / "raw"), *job("train.py", "--steps", 20)]
    return run(recording(out, command, **MODES["windows by step"]), out)


@pytest.mark.parametrize(
    "deed", ["chmod 777 .", soak("chmod 720 ."), soak("chown 12345 ."), "mv ../raw ../other && ln -s other ../raw"]
)
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path, deed):
    if deed.startswith("chown") and os.geteuid():
        pytest.skip("only root can give a folder away")
    ended = recorded_after(tmp_path, deed)
    assert ended.code == 0
    assert ended.stdout == plain(*job("train.py", "--steps", 20)).stdout
    assert "nothing was recorded" in ended.stderr


@pytest.mark.parametrize(
    "name", ["rank-00000.jsonl", soak("rank-00000.roll.0.jsonl"), soak("rank-00000.timed.4.json.part")]
)
def test_a_planted_link_is_not_followed(tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("years of work")
    ended = recorded_after(tmp_path, f"ln -s {victim} {name}")
    assert ended.code == 0
    assert ended.stdout == plain(*job("train.py", "--steps", 20)).stdout
    assert victim.read_text() == "years of work"


def test_folders_and_files_are_for_their_owner_alone_while_the_job_runs(tmp_path):
    running = started(tmp_path / "run", job(*train("repeated windows", "--workers", 1)), "repeated windows")
    modes = {path.relative_to(running.out): path.stat().st_mode & 0o777 for path in running.out.rglob("*")}
    assert modes
    assert set(modes.values()) == {0o700, 0o600}, modes
    running.end()
