"""The controller of a job's generations, with workers that are no training."""

import json
import os
import signal
import stat
import sys
import threading
import time

import pytest

from esprof.core.errors import UsageError
from esprof.elastic.launch.generation import WorkerSlot
from esprof.elastic.launch.messages import LAUNCH_LOG, Left, launch_of_environment, taken, want
from esprof.elastic.launch.supervisor import Supervisor, SupervisorSettings
from esprof.elastic.launch.worker import Launched

WORKER = """
import json, os, signal, sys, time
from pathlib import Path
Path(os.environ["ESPROF_LAUNCH_READY"]).touch()
line = sys.stdin.readline()
if not line:
    sys.exit(0)
os.environ.update(json.loads(line))
launch = json.loads(os.environ["ESPROF_LAUNCH"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
generation, folder = launch.get("generation", 0), Path(launch["folder"])

def leave(*_, next_world=None):
    if rank == 0:
        request = {"step": 1, "reason": "asked", "asked": True, "stopped_ns": time.time_ns(), "world": next_world}
        (folder / "part").write_text(json.dumps(request))
        (folder / "part").rename(folder / f"left-{generation}.json")
    os._exit(0)

signal.signal(signal.SIGTERM, leave)
with (folder / "seen").open("a") as file:
    file.write(json.dumps([generation, rank, world, os.environ["LOCAL_RANK"]]) + "\\n")
BODY
"""


def supervised(folder, body, places=3, world=1, drive=None, broken=None, **settings):
    """(the exit code, what workers have noted, the log) of a job whose workers do `body`; `drive` runs beside it. The place
    `broken` has no Python."""
    worker = folder / "worker.py"
    worker.write_text(WORKER.replace("BODY", body))
    python = folder / "python"  # Runs this in place of the bootstrap.
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {worker}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    launch = folder / "launch"
    pythons = [str(python) if place != broken else "no-python" for place in range(places)]
    supervisor = Supervisor(
        [WorkerSlot(python=one) for one in pythons], ["script.py"], launch, SupervisorSettings(**settings)
    )
    thread = threading.Thread(target=drive, args=(launch,)) if drive else None
    if thread:
        thread.start()
    code = supervisor.run(world)
    if thread:
        thread.join()
    seen = [json.loads(line) for line in (launch / "seen").read_text().splitlines()]
    return code, seen, [(line.what, line.world) for line in LAUNCH_LOG.read(launch)]


def wait_until(found):
    until = time.monotonic() + 60
    while not found():
        assert time.monotonic() < until
        time.sleep(0.01)


def seen(launch, count):
    return lambda: (launch / "seen").exists() and len((launch / "seen").read_text().splitlines()) >= count


def test_a_job_that_ends_by_itself(tmp_path):
    code, noted, log = supervised(tmp_path, "os._exit(0)", world=2)
    assert code == 0
    assert sorted(noted) == [[0, 0, 2, "0"], [0, 1, 2, "1"]]
    assert log == [("began", 2), ("ended", 2)]


@pytest.mark.parametrize("warm", [True, False])
def test_another_number_is_asked_for(tmp_path, warm):
    def drive(launch):
        wait_until(seen(launch, 1))
        want(launch, 3)
        wait_until(seen(launch, 4))
        want(launch, 9)  # There are no such places: nothing happens.
        want(launch, 2)
        wait_until(seen(launch, 6))
        os.kill(os.getpid(), signal.SIGTERM)

    code, noted, log = supervised(tmp_path, "time.sleep(60)", drive=drive, warm=warm)
    assert code == 0
    assert [world for _, _, world, _ in noted] == [1, 3, 3, 3, 2, 2]
    assert log == [
        *(("began", 1), ("asked", 1), ("left", 1), ("began", 3), ("asked", 3), ("left", 3), ("began", 2), ("ended", 2))
    ]
    reports = {path.name for path in (tmp_path / "launch").glob("left-*.json")}
    assert reports <= {"left-2.json"}  # Those of earlier generations would be ever more files.


def test_a_generation_that_asks_for_another_number_gets_it_and_older_wishes_are_void(tmp_path):
    body = "leave(next_world=2) if generation == 0 else os._exit(0)"
    code, noted, log = supervised(tmp_path, body)
    assert (code, [world for _, _, world, _ in noted]) == (0, [1, 2, 2])
    assert log == [("began", 1), ("left", 1), ("began", 2), ("ended", 2)]


def test_after_a_crash_the_others_are_ended_and_all_begin_again(tmp_path):
    body = (
        "os.kill(os.getpid(), 9) if rank == generation == 0 else (time.sleep(60) if generation == 0 else os._exit(0))"
    )
    code, noted, log = supervised(tmp_path, body, world=2)
    assert code == 0
    assert log == [("began", 2), ("crashed", 2), ("began", 2), ("ended", 2)]
    assert max(generation for generation, *_ in noted) == 1


def test_crashes_in_a_row_end_it_with_the_code_of_the_worker(tmp_path):
    code, _, log = supervised(tmp_path, "os._exit(7)", most_crashes=2)
    assert code == 7
    assert log == [("began", 1), ("crashed", 1), ("began", 1), ("crashed", 1), ("gave up", 1)]


def test_a_worker_that_a_signal_ended_gives_128_and_its_number(tmp_path):
    assert supervised(tmp_path, "os.kill(os.getpid(), 9)", most_crashes=1)[0] == 128 + 9


@pytest.mark.parametrize("world", [0, 4])
def test_a_world_without_enough_slots_is_refused(tmp_path, world):
    with pytest.raises(UsageError, match="allows 1 to 3"):
        supervised(tmp_path, "", world=world)


def test_a_place_that_cannot_be_entered_is_named(tmp_path):
    with pytest.raises(UsageError, match="no-such-command"):
        Supervisor([WorkerSlot(("no-such-command",))], ["script.py"], tmp_path).run(1)


def test_only_who_was_launched_can_have_another_number(monkeypatch):
    with pytest.raises(UsageError, match="only a job started by `esprof elastic launch`"):
        Launched().check_world(3, 2, saves=True)
    monkeypatch.setenv("ESPROF_LAUNCH", '{"folder": "f", "most": 4}')
    Launched().check_world(3, 2, saves=True)
    with pytest.raises(UsageError, match="allows 1 to 4"):
        Launched().check_world(5, 2, saves=True)
    with pytest.raises(UsageError, match="would restart at step 0"):
        Launched().check_world(3, 2, saves=False)
    monkeypatch.setenv("ESPROF_LAUNCH", '{"folder": "f"}')
    with pytest.raises(UsageError, match="torchrun sets the number of hosts"):
        Launched().check_world(3, 2, saves=True)
    monkeypatch.setenv("ESPROF_LAUNCH", "no JSON")
    assert launch_of_environment() is None


def test_the_job_goes_on_where_its_launcher_cannot_be_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESPROF_LAUNCH", json.dumps({"folder": str(tmp_path / "file"), "most": 2}))
    with pytest.warns(UserWarning, match="cannot be notified of the checkpoint"):
        Launched().left(Left(step=1, asked=True, stopped_ns=0))


def test_new_workers_that_cannot_be_started_leave_the_job_as_it_is(tmp_path):
    """The second place has no Python, so that its worker is never ready."""

    def drive(launch):
        wait_until(seen(launch, 1))
        want(launch, 2)
        wait_until(lambda: not (launch / "world").exists())
        os.kill(os.getpid(), signal.SIGTERM)

    code, noted, log = supervised(tmp_path, "time.sleep(60)", drive=drive, broken=1)
    assert (code, len(noted)) == (0, 1)
    assert log == [("began", 1), ("refused", 2), ("ended", 1)]


def test_a_second_signal_ends_workers_that_do_not_heed_the_first(tmp_path):
    def drive(launch):
        wait_until(seen(launch, 1))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    assert supervised(tmp_path, body, drive=drive)[0] == 128 + 9


def test_a_folder_has_one_launcher(tmp_path):
    with taken(tmp_path / "launch"), pytest.raises(UsageError, match="another launcher uses"):
        supervised(tmp_path, "os._exit(0)")
