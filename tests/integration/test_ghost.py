"""`esprof export --format ghost`: a job of three processes with a straggler, and one real rank of it with replayed peers."""

import json
import os
import subprocess
import sys

import pytest

from esprof.analyzers.ghost.peers import ghost_schedule
from esprof.replay.replayed import Replayed
from esprof.reports.export.ghost import write_ghost
from tests.cases.command_line import esprof
from tests.cases.exported import cpu_run
from tests.cases.record import JOBS, ranks, record_alone

pytestmark = pytest.mark.integration

JOB = JOBS / "slow_rank.py"
RANKS, SLOW, LATE_S = 3, 2, 0.2


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    out = tmp_path_factory.mktemp("ghost") / "run"
    record_alone(out, ranks(RANKS, JOB, SLOW, LATE_S), skip=2, warmup=1, steps=4, stack_steps=0)
    return out


def ghost(recorded, rank, folder):
    """(what the real rank printed, the report at its end)."""
    exported = esprof("export", recorded, "--format", "ghost", "--rank", rank, "-o", folder / "ghost")
    if "sizes of its collectives are unknown" in exported.stderr:
        pytest.skip("this torch does not record the sizes of gloo's collectives")
    assert exported.returncode == 0, exported.stderr
    # Where esprof is not installed: the folder is all that there is.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(folder / "ghost" / "run.py"), str(JOB), str(SLOW), str(LATE_S)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=folder, check=True)
    return json.loads(done.stdout), done.stderr


@pytest.mark.promise
@pytest.mark.compat("reproducer")
def test_an_innocent_rank_waits_for_the_replayed_straggler(recorded, tmp_path):
    printed, report = ghost(recorded, 0, tmp_path)
    assert (printed["rank"], printed["ranks"], printed["loaded"]) == (0, RANKS, [])
    # In the first step buckets are others, and in the second the peers join in. Alone, a step takes a few ms.
    assert min(printed["steps"][3:]) > 0.9 * LATE_S
    assert "ghost: rank 0 met its 2 replayed peers in 10 steps" in report
    assert f"for rank {SLOW}" in report
    assert "not in the recording, so ended at once: all_reduce of 492 bytes in a group of 3, 1 time" in report


def test_the_straggler_meets_its_replayed_peers(recorded, tmp_path):
    printed, report = ghost(recorded, SLOW, tmp_path)
    assert printed["rank"] == SLOW
    assert "ghost: rank 2 met its 2 replayed peers in 10 steps" in report
    assert {line.split("  ")[0] for line in report.splitlines()} >= {"here", "recorded", "replayed"}


def test_a_script_may_call_what_it_likes(tmp_path):
    write_ghost(ghost_schedule(Replayed.of(cpu_run()), 1), tmp_path / "ghost", force=False)
    command = [sys.executable, tmp_path / "ghost" / "run.py", JOBS / "many_collectives.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "all ended\n"), done.stderr
    # No step of this script is like a recorded one.
    assert "no peer has joined in" in done.stderr
