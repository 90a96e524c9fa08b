"""A part's process: its lines, its end, and what is left of it."""

import os
import sys
import time
from pathlib import Path

from benchmarks.gpu import processes

PATIENCE_S = 30


def run(tmp_path, code, limit_s=60.0):
    lines = []
    error = processes.run([sys.executable, "-c", code], limit_s, tmp_path / "log", lines.append)
    return error, lines, (tmp_path / "log").read_text()


def test_lines_and_errors_go_their_ways(tmp_path):
    error, lines, log = run(tmp_path, "import sys; print('one'); print('two'); print('aside', file=sys.stderr)")
    assert error is None
    assert lines == ["one\n", "two\n"]
    assert log == "aside\n"


def test_a_failure_is_told(tmp_path):
    error, lines, log = run(tmp_path, "print('one', flush=True); raise SystemExit('no such luck')")
    assert error == "ended with 1"
    assert lines == ["one\n"]
    assert log == "no such luck\n"


def test_all_that_was_started_ends_with_the_time(tmp_path):
    """A child in a session of its own, as torchrun's ranks are."""
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    error, (pid,), _ = run(tmp_path, code, limit_s=3)
    assert error == "was not done within 3 s"
    assert gone(int(pid))


def test_what_a_part_leaves_behind_ends_with_it(tmp_path):
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True,"
        " stdout=subprocess.DEVNULL)\n"
        "print(child.pid)\n"
    )
    error, (pid,), _ = run(tmp_path, code)
    assert error is None
    assert gone(int(pid))


def gone(pid):
    """Whether a process has ended; one that nobody waited for yet has, too."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_other_processes_are_left_alone():
    processes.end("a mark that nobody bears")
    assert os.getpid()
