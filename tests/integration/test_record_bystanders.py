"""`esprof record` and what is around the job: its exit code, its signals, its relatives, its own profiler, and faults."""

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios

import numpy as np
import pytest

from esprof import load
from esprof.replay import Replayed
from esprof.run.run import Window
from tests.cases.marks import KNOWS_GLOO, soak
from tests.cases.record import JOBS, environment, job, pid_of, ranks, record, recording, run, torchrun

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("code", [soak(0), 7])
def test_the_exit_code_passes_through(tmp_path, code):
    ended = record(tmp_path / "run", job("train.py", "--exit", code), steps=4, stack_steps=0)
    assert ended.code == code
    assert ended.run.meta.exit_code == code


@pytest.mark.parametrize("closed", ["1>&-", "2>&-"])
def test_a_closed_stream_does_not_prevent_recording(tmp_path, closed):
    command = recording(tmp_path / "run", job("train.py"), stack_steps=0)
    ended = run(["sh", "-c", f'"$@" {closed}', "sh", *command], tmp_path / "run")
    assert ended.code == 0
    assert ended.run.ranks == [0]


def test_a_signal_that_ends_the_command_becomes_128_plus_its_number(tmp_path):
    ended = record(tmp_path / "run", ["sh", "-c", "kill -KILL $$"])
    assert ended.code == 128 + signal.SIGKILL
    assert "nothing was recorded" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_a_command_that_cannot_start_is_a_usage_error_and_leaves_nothing(tmp_path):
    ended = record(tmp_path / "run", ["no-such-trainer"])
    assert ended.code == 2
    assert "no such command" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_only_a_run_is_overwritten_and_only_with_force(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    for flags in ([], ["--force"]):
        command = recording(tmp_path / "thesis", ["true"])
        command[4:4] = flags
        ended = run(command)
        assert ended.code == 1
        assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_the_sitecustomize_of_the_user_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("value = 'set by the user at start-up'\n")
    variables = {"PYTHONPATH": str(tmp_path)}
    ended = record(tmp_path / "run", job("site_value.py"), variables, stack_steps=0)
    assert ended.stdout == run(job("site_value.py"), **variables).stdout
    assert ended.stdout == "set by the user at start-up\n"
    assert ended.run.ranks == [0]


@pytest.mark.parametrize(
    "python_path", [soak({}, id="unset"), pytest.param({"PYTHONPATH": "/somewhere:/else"}, id="set")]
)
def test_unrelated_children_of_a_launchers_worker_find_nothing_of_us(tmp_path, python_path):
    variables = {"LOCAL_RANK": "0"} | python_path
    ended = record(tmp_path / "run", job("relatives.py"), variables, stack_steps=0)
    assert ended.run.ranks == [0]
    assert ended.stdout == run(job("relatives.py"), **variables).stdout
    assert ended.stdout.count("PYTHONPATH") == 2


def test_unrelated_children_of_a_script_find_nothing_of_us_once_it_trains(tmp_path):
    ended = record(tmp_path / "run", job("relatives.py"), stack_steps=0)
    assert ended.stdout == run(job("relatives.py")).stdout
    assert ended.stdout.count("PYTHONPATH") == 1


@pytest.mark.parametrize(("first", "timed"), [(9, (7, 8)), soak(25, (7, 14))])
def test_the_profiler_is_yielded_to_a_job_that_profiles_itself(tmp_path, first, timed):
    ended = record(tmp_path / "run", job("own_profiler.py", first))
    assert ended.code == 0
    assert ended.stdout == run(job("own_profiler.py", first)).stdout
    assert ended.stdout.endswith("profiled True\n")
    window = ended.run.rank(0).windows[0]
    assert (window.first, window.last) == timed
    cut_short = "profiler-taken" in {warning.code for warning in ended.warnings}
    assert cut_short == (first == 9)


@pytest.mark.soak
def test_a_job_that_profiles_itself_first_is_not_profiled(tmp_path):
    ended = record(tmp_path / "run", job("own_profiler.py", 2))
    assert ended.code == 0
    assert ended.stdout == run(job("own_profiler.py", 2)).stdout
    assert "lost: the job's own profiler was on" in ended.stderr
    assert ended.run.rank(0).windows == ()
    assert len(ended.run.steps(0)) == 29


def whole(steps: list[int]) -> tuple[Window, ...]:
    return (Window(first=steps[0], last=steps[-1]),)


@pytest.mark.compat("own profiler")
@pytest.mark.parametrize(
    ("kind", "name", "taken"),
    [
        ("around", "rankRANK.json", list(range(1, 30))),
        pytest.param("scheduled", "rankRANK.json.gz", list(range(5, 10)), marks=pytest.mark.soak),
    ],
)
def test_the_trace_that_a_job_writes_itself_is_taken_into_the_run(kind, name, taken, tmp_path):
    """With the steps of the job, whatever its profiler counts, and with what is noted beside a window."""
    ended = record(tmp_path / "run", torchrun("own_trace.py", kind, tmp_path / name))
    assert ended.code == 0
    assert (tmp_path / name.replace("RANK", "1")).exists()
    for rank in (0, 1):
        assert ended.run.rank(rank).windows == whole(taken)
        steps, events = ended.run.steps(rank), ended.run.events(rank)
        phases = dict(zip(steps.ints("step").tolist(), steps.texts("phase"), strict=True))
        assert {phases[step] for step in taken[1:]} == {"timed"}
        assert set(events.ints("step").tolist()) - {-1} == set(taken)
        calls = events.where(events.is_kind("collective"))
        assert len(calls) >= len(taken)
        assert not KNOWS_GLOO or (calls.ints("in_bytes") > 0).sum() >= len(taken)
    assert np.abs(Replayed.of(ended.run, max_error_pct=1000).error_pct).max() <= 2


def test_a_job_shorter_than_the_first_window_says_how_to_record_it(tmp_path):
    ended = record(tmp_path / "run", job("train.py", "--steps", 5))
    assert ended.code == 0
    assert "the first timed step is 7, but the job ended after 5 steps" in ended.stderr
    again = record(tmp_path / "run", job("train.py", "--steps", 5), skip=1, warmup=1, steps=2)
    assert again.run.rank(0).windows[0].last == 3


def test_a_job_that_ends_inside_the_window_keeps_its_whole_steps(tmp_path):
    ended = record(tmp_path / "run", job("train.py", "--steps", 11))
    assert (ended.run.rank(0).windows[0].first, ended.run.rank(0).windows[0].last) == (7, 10)
    events = ended.run.events(0)
    assert events.where(events.is_kind("step")).ints("step").tolist() == [7, 8, 9, 10]
    assert {warning.code for warning in ended.warnings} == {"window-short"}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["true"], "no Python process of the command loaded the recorder"),
        ([sys.executable, "-c", "1"], "none imported torch"),
        ([sys.executable, "-c", "import torch"], "no step was detected"),
    ],
    ids=["no Python", "no torch", "no step"],
)
def test_a_command_that_does_not_train_is_told_what_was_seen(tmp_path, command, reason):
    ended = record(tmp_path / "run", command)
    assert ended.code == 0
    assert reason in ended.stderr
    assert not (tmp_path / "run").exists()


def started(command: list[str], lines: int) -> tuple[subprocess.Popen[str], int]:
    """`command`, once it has printed so many lines, and the keyboard's end of the terminal that it runs in."""
    keyboard, screen = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=screen,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env=environment(),
    )
    os.close(screen)
    for _ in range(lines):
        process.stdout.readline()
    return process, keyboard


CTRL_C = b"\x03"


@pytest.mark.parametrize("at_keyboard", [soak(True, id="at the keyboard"), pytest.param(False, id="to esprof alone")])
def test_ctrl_c_inside_the_window_leaves_a_readable_run(tmp_path, at_keyboard):
    command = job("train.py", "--steps", 100_000, "--pause", 0.005)
    process, keyboard = started(recording(tmp_path / "run", command, steps=50_000), lines=30)
    if at_keyboard:
        os.write(keyboard, CTRL_C)
    else:
        os.kill(process.pid, signal.SIGINT)
    _, talk = process.communicate(timeout=200)
    assert process.returncode == 128 + signal.SIGINT, talk
    assert "KeyboardInterrupt" in talk
    window = load(tmp_path / "run").rank(0).windows[0]
    assert window.first == 7
    assert window.last >= 25


def test_ctrl_c_under_torchrun_leaves_a_run_of_both_ranks(tmp_path):
    command = torchrun("train.py", "--steps", 100_000, "--pause", 0.005)
    process, keyboard = started(recording(tmp_path / "run", command, steps=50_000), lines=30)
    os.write(keyboard, CTRL_C)
    _, talk = process.communicate(timeout=200)
    assert process.returncode != 0
    assert load(tmp_path / "run").ranks == [0, 1], talk


@pytest.mark.soak
def test_a_rank_that_dies_after_its_window_is_kept(tmp_path):
    process, _ = started(
        recording(tmp_path / "run", torchrun("train.py", "--steps", 100_000, "--pause", 0.005)), lines=25
    )
    os.kill(pid_of(tmp_path / "run", rank=1), signal.SIGKILL)
    _, talk = process.communicate(timeout=200)
    assert process.returncode != 0
    assert load(tmp_path / "run").ranks == [0, 1], talk


def test_a_rank_whose_trace_is_lost_is_named_and_the_other_kept(tmp_path):
    process, _ = started(recording(tmp_path / "run", torchrun("train.py", "--steps", 40, "--pause", 0.05)), lines=25)
    (tmp_path / "run" / "raw" / "rank-00001.timed.7.json").write_text('{"traceEvents": [{"ph"')
    _, talk = process.communicate(timeout=200)
    assert process.returncode == 0
    assert load(tmp_path / "run").ranks == [0], talk
    assert {(warning.code, warning.ranks) for warning in load(tmp_path / "run").warnings} == {("rank-unreadable", (1,))}


def test_children_forked_inside_a_window_do_not_collect_its_events(tmp_path):
    ended = record(tmp_path / "run", job("forks.py"), warmup=1, steps=4, stack_steps=4)
    assert ended.stdout == run(job("forks.py")).stdout
    assert ended.stdout.count("False") == 18
    assert len(ended.run.steps(0)) == 17


def test_a_recorder_that_cannot_write_ends_and_stops_its_profiler(tmp_path):
    command = ["sh", "-c", 'ulimit -f 4; exec "$@"', "limited", *job("profiler_state.py")]
    ended = record(tmp_path / "run", command, steps=1000)
    assert ended.code == 0
    assert ended.stdout == run(job("profiler_state.py")).stdout == "profiled at the end: False\n"
    assert ended.stderr.count("the job continues") == 1
    # The system takes a part of what passes the limit without a word.
    assert "File too large" in ended.stderr or "No space left on device" in ended.stderr


@pytest.mark.soak
def test_a_recorder_that_loses_its_folder_ends_and_the_job_goes_on(tmp_path):
    command = job("train.py", "--steps", 40, "--pause", 0.02)
    process, _ = started(recording(tmp_path / "run", command), lines=3)
    shutil.rmtree(tmp_path / "run")
    output, talk = process.communicate(timeout=200)
    assert process.returncode == 0
    assert output.splitlines()[-1] == run(command).stdout.splitlines()[-1]
    assert talk.count("the job continues") == 1
    assert "was removed while the job ran" in talk


def test_ranks_that_learn_their_number_late_are_recorded_and_watched(tmp_path):
    ended = record(tmp_path / "run", ranks(2, JOBS / "late_ranks.py"))
    assert ended.code == 0, ended.stderr
    assert ended.run.ranks == [0, 1]
    assert ended.warnings == []
