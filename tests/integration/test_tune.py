"""`esprof tune` around a job of real processes."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from esprof.run.logs import HISTORY, ROUNDS, Tail
from tests.cases import record
from tests.cases.command_line import esprof
from tests.cases.elastic_job import small_trainer

pytestmark = pytest.mark.integration

STEPS = 130


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """(the folder of a job that was tuned, how the command ended)."""
    folder = tmp_path_factory.mktemp("tuned")
    job = record.forks(2, record.JOBS / "tuned.py", STEPS, folder / "tuned.jsonl")
    options = ["--json", "--block-steps", "6", "--blocks", "3", "--steps", "8"]
    return folder, esprof("tune", "-o", folder / "run", *options, "--", *job)


@pytest.mark.promise
def test_the_job_s_exit_code_passes_through_and_its_rounds_are_told(tuned):
    folder, ended = tuned
    assert ended.returncode == 7, ended.stderr
    done = json.loads(ended.stdout)
    assert done["schema"] == "esprof.tune/1"
    assert [one["round"] for one in done["rounds"]] == list(range(len(done["rounds"])))
    assert len(ROUNDS.read(folder / "run")) == len(done["rounds"]) >= 1


@pytest.mark.promise
def test_the_rank_that_is_slow_was_to_have_less(tuned):
    folder, ended = tuned
    # On a busy machine the first steps may be too uneven to tell.
    first = next(one for one in ROUNDS.read(folder / "run") if one.counts)
    assert first.counts[1] < 2 < first.counts[0], ended.stderr
    assert "trying" in [event.what for event in HISTORY.read(folder / "run")]


@pytest.mark.promise
def test_no_bit_of_the_training_depends_on_it(tuned):
    folder, _ = tuned
    static = small_trainer(hash_log=folder / "static.jsonl")
    for _ in range(STEPS):
        static.step()
    static.close()
    done = esprof("elastic", "diff", folder / "static.jsonl", folder / "tuned.jsonl")
    assert (done.returncode, done.stdout[:5]) == (0, "equal"), done.stdout


@pytest.mark.promise
def test_the_report_shows_the_rounds(tuned):
    folder, _ = tuned
    page = folder / "report.html"
    assert esprof("report", folder / "run", "-o", page).returncode == 0
    assert '<section id="tuning">' in page.read_text()


@pytest.mark.parametrize(
    ("words", "says"), [((), "needs either a command"), (("--attach", "nowhere"), "there is no Run directory nowhere")]
)
def test_what_cannot_be_tuned_is_refused(tmp_path, words, says):
    done = esprof("tune", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_run_is_not_overwritten(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "live.jsonl").touch()
    done = esprof("tune", "-o", tmp_path / "run", "--", "true")
    assert done.returncode == 1
    assert "already exists" in done.stderr
    assert esprof("tune", "-f", "-o", tmp_path / "run", "--", "false").returncode == 1
    assert esprof("tune", "-f", "-o", tmp_path / "run", "--", "no-such-command").returncode == 2
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").touch()
    done = esprof("tune", "-f", "-o", tmp_path / "thesis", "--", "true")
    assert "is not a Run" in done.stderr
    assert (tmp_path / "thesis" / "thesis.txt").exists()
    assert esprof("tune", "-f", "-q", "-o", tmp_path / "run", "--", "true").stdout == ""


def test_a_loop_that_is_killed_leaves_the_job_alone_and_another_one_goes_on(tmp_path):
    run, steps = tmp_path / "run", Tail(tmp_path / "run")
    job = record.ranks(2, record.JOBS / "tuned.py", STEPS, tmp_path / "tuned.jsonl")
    words = [*record.ESPROF, "tune", "-q", "-o", run, "--", *job]
    with subprocess.Popen(list(map(str, words)), env=record.environment()) as loop:
        wait_for(steps.read)
        loop.kill()
    options = ("--block-steps", "5", "--blocks", "2", "--steps", "5", "--rounds", "1", "--json")
    done = esprof("tune", "--attach", run, *options)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rounds"]) == 1
    log = tmp_path / "tuned.jsonl"
    wait_for(lambda: len(log.read_text().splitlines()) > STEPS)  # The first line is the job's.
    assert esprof("tune", "--attach", run, "-q").returncode == 0  # The job has ended.


def loops(run) -> list[int]:
    """Processes that tune this Run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"--attach" in words and os.fsencode(run) in words:
                found.append(int(path.parent.name))
    return found


def test_a_job_that_has_itself_tuned(tmp_path):
    run = tmp_path / "run"
    words = record.ranks(2, record.JOBS / "tunes_itself.py", run)
    ended = record.run(words)
    assert ended.code == 0, ended.stderr
    assert len(ROUNDS.read(run)) == 1
    assert "esprof: round 0" in ended.stderr
    wait_for(lambda: not loops(run))


def test_a_job_that_is_killed_takes_its_loop_with_it(tmp_path):
    run = tmp_path / "run"
    words = record.ranks(2, record.JOBS / "tunes_itself.py", run)
    with subprocess.Popen(list(map(str, words)), env=record.environment(), start_new_session=True) as job:
        wait_for(lambda: loops(run))
        os.killpg(job.pid, signal.SIGKILL)
    wait_for(lambda: not loops(run))


def wait_for(found):
    until = time.monotonic() + 120
    while not found():
        assert time.monotonic() < until
        time.sleep(0.05)
