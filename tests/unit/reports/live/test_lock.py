"""One process at a time serves a Run."""

import os
import signal
import subprocess
import sys

import pytest

from esprof.core.errors import EsprofError, OutputError
from esprof.reports.live.lock import Lock

HOLD = """
import sys
from pathlib import Path
from esprof.reports.live.lock import Lock
lock = Lock(Path(sys.argv[1]))
lock.publish("http://127.0.0.1:1/")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_server_reports_the_holder_and_a_killed_one_releases_the_lock(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(EsprofError, match=rf"served already at http://127.0.0.1:1/ \(process {holder.pid} on"):
            Lock(tmp_path)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with Lock(tmp_path):
        pass


def test_the_address_of_an_earlier_server_is_not_reported(tmp_path):
    with Lock(tmp_path) as first:
        first.publish("http://127.0.0.1:1/")
    with Lock(tmp_path), pytest.raises(EsprofError) as error:
        Lock(tmp_path)
    assert "127.0.0.1" not in str(error.value)


def test_a_link_in_place_of_the_lock_file_leaves_its_target_as_it_is(tmp_path):
    target = tmp_path / "notes"
    target.write_text("of the user")
    (tmp_path / "serve.lock").symlink_to(target)
    with pytest.raises(OutputError, match="it is a symbolic link"):
        Lock(tmp_path)
    assert target.read_text() == "of the user"


def test_a_lock_file_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "serve.lock").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        Lock(tmp_path)
