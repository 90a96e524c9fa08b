"""Jobs in which a rank hangs or dies: messages while they run, and findings of their Run."""

import re
import signal
import subprocess
from contextlib import contextmanager

import pytest

from esprof import load
from esprof.analyzers import diagnose
from esprof.core.types import NS_PER_S
from esprof.run.raw.settings import Settings
from tests.cases.marks import flight_recorder_of_gloo, soak
from tests.cases.record import JOBS, environment, job, record, recording, torchrun

pytestmark = pytest.mark.integration

HANG = JOBS / "hang.py"
START = JOBS / "hang_at_start.py"


@contextmanager
def recorded(out, command, **options):
    """The process that records `command`, its stderr to be read by line; ended as a user would, and gone at the end."""
    process = subprocess.Popen(
        recording(out, command, flight=100, **options),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def next_word(process):
    """The next line that esprof says."""
    return next(line for line in process.stderr if line.startswith("esprof: ")).removeprefix("esprof: ").strip()


def line_of(text, script=HANG):
    """The line of the job that holds `text`."""
    return next(n for n, line in enumerate(script.read_text().splitlines(), 1) if text in line)


@pytest.mark.promise
@pytest.mark.compat("hangs")
@flight_recorder_of_gloo
def test_a_rank_that_skips_a_collective_is_reported_while_it_hangs_and_afterwards(tmp_path):
    """With the settings that everybody has."""
    out = tmp_path / "run"
    with recorded(out, torchrun("hang.py", "asleep")) as process:
        said = next_word(process)
        match = re.match(r"step 9 has been hanging for (\d+) s: rank 1 did not enter all_reduce (\d+), which", said)
        assert match, said
        assert int(match[1]) >= Settings().hang_s
        location = f"{HANG}({line_of('time.sleep(600)')}): wander"
        assert next_word(process) == f"rank 1 is at {location}"
        running = diagnose(load(out))
    assert running.findings[0].title.startswith("The job hangs in step 9: rank 1 did not enter all_reduce")
    assert {"still-running"} <= {warning.code for warning in running.warnings}

    found = diagnose(load(out)).findings[0]
    assert (found.id, found.ranks, found.title.partition(":")[0]) == ("ESP801", (1,), "The job hung in step 9")
    assert found.evidence["stacks"].of(1) == location
    assert found.evidence["stacks"].of(0).endswith(": asleep")
    assert (found.evidence["number"].value, found.evidence["size"].value) == (int(match[2]), 2048)
    fatal = load(out).flight(0).fatal
    assert f'"{HANG}"' in fatal, "where the rank was when the launcher ended it"


@pytest.mark.parametrize(
    ("way", "id", "ranks", "said"),
    [
        soak("other_collective", "ESP802", (1,), "rank 1 entered broadcast of 28 B as number"),
        ("crosses", "ESP802", (0, 1), "for rank 1 and rank 1 waits in all_reduce 1 of group 0-1"),
        soak("late_in_validation", "ESP801", (1,), "rank 1 did not enter all_reduce"),
    ],
)
def test_each_kind_of_hang_is_distinguished(tmp_path, way, id, ranks, said):
    with recorded(tmp_path / "run", torchrun("hang.py", way), hang=1) as process:
        assert said in next_word(process)
    found = diagnose(load(tmp_path / "run")).findings[0]
    assert (found.id, found.ranks) == (id, ranks)


def test_a_late_rank_is_reported_and_becomes_a_stall(tmp_path):
    out = tmp_path / "run"
    with recorded(out, torchrun("hang.py", "checkpoint", 3), hang=1) as process:
        assert "rank 0 did not enter barrier" in next_word(process)
        assert next_word(process).endswith(": save_checkpoint")
        assert next_word(process) == "the hang has ended: the ranks that waited continue"
        assert process.wait(60) == 0
    (found,) = diagnose(load(out)).findings
    assert (found.id, found.ranks) == ("ESP804", (0,))
    assert found.evidence["took"].of(9) > 3 * NS_PER_S
    assert found.evidence["stacks"].of(0).endswith(": save_checkpoint")


@pytest.mark.parametrize(
    ("way", "id", "title"),
    [
        soak("leaves", "ESP801", "Rank 1 ended after step 8, but rank 0"),
        ("is_killed", "ESP803", "Rank 1 died in step"),
    ],
)
def test_a_rank_that_exits_is_named_and_not_the_one_waiting_for_it(tmp_path, way, id, title):
    ended = record(tmp_path / "run", torchrun("hang.py", way), flight=100)
    assert ended.code == 1
    found = diagnose(ended.run).findings[0]
    assert (found.id, found.ranks) == (id, (1,))
    assert found.title.startswith(title)


@pytest.mark.parametrize(
    ("way", "code", "fault"),
    [
        ("fault", 128 + signal.SIGSEGV, "Segmentation fault"),
        ("terminated", 128 + signal.SIGTERM, None),
        ("answers_terminated", 7, None),
        soak("child_terminated", 0, None),
        soak("own_faulthandler", 128 + signal.SIGSEGV, None),
    ],
)
def test_a_job_crashes_as_without_esprof_and_its_stacks_are_stored(tmp_path, way, code, fault):
    ended = record(tmp_path / "run", job("deadly.py", way), flight=100)
    assert ended.code == code
    log = ended.run.flight(0)
    assert (log.fault, log.was_terminated) == (fault, way == "terminated")
    if fault or log.was_terminated:
        assert log.location.function == way
    else:
        assert not log.fatal
    assert ("Segmentation fault" in ended.stderr) == (way == "own_faulthandler")


@pytest.mark.compat("hangs")
def test_the_exception_that_ends_a_job_is_found_with_its_line(tmp_path):
    ended = record(tmp_path / "run", job("deadly.py", "raises"), flight=100)
    assert ended.code == 1
    (found,) = diagnose(ended.run).findings
    assert found.title == "Rank 0 died in step 5: ValueError: bad sample"
    assert found.evidence["stacks"].of(0).endswith(": raises")


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("before_joining", "rank 1 did not enter init_process_group, which rank 0 waits in"),
        ("before_collective", "rank 1 did not enter all_gather 1, which rank 0 waits in"),
    ],
)
def test_a_rank_that_hangs_before_the_first_step_is_reported_at_once_and_afterwards(tmp_path, way, said):
    out = tmp_path / "run"
    with recorded(out, torchrun(START.name, way), hang=0.25) as process:
        assert re.fullmatch(
            rf"the job hangs before the end of its first step \(.* without progress\): {said}", next_word(process)
        )
        location = f"{START}({line_of('# anything but', START)}): wander"
        assert next_word(process) == f"rank 1 is at {location}"
    found = diagnose(load(out)).findings[0]
    assert (found.id, found.ranks) == ("ESP801", (1,))
    assert found.title == f"The job hung before its first step: {said}"
    assert found.evidence["stacks"].of(1) == location


@pytest.mark.parametrize(("sample", "when"), [(0, "before its first step"), soak(5, "in step 2")])
def test_the_source_location_of_a_hanging_loader_worker_is_reported(tmp_path, sample, when):
    out = tmp_path / "run"
    with recorded(out, job(START.name, "loader", sample), hang=0.25) as process:
        assert next_word(process).endswith(": rank 0 waits for a worker of its data loader")
        worker = r"worker 0 of its data loader \(process \d+\), which is at (.*)"
        location = re.fullmatch(rf"rank 0 is at .*: train, waiting for {worker}", next_word(process))
        assert location[1] == f"{START}({line_of('# the loader', START)}): __getitem__"
    found = diagnose(load(out)).findings[0]
    assert (found.id, found.ranks) == ("ESP808", (0,))
    assert found.title == f"The job hung {when}: rank 0 waits for a worker of its data loader"
    assert found.evidence["stacks"].of(0).endswith(location[1])


def test_a_slow_start_is_no_hang(tmp_path):
    """A rank computes for longer than one may stand still, and another one waits for it."""
    longer = 1.5 * Settings(hang_s=0.25).start_s
    ended = record(tmp_path / "run", torchrun(START.name, "slow", longer), flight=100, hang=0.25)
    assert ended.code == 0
    assert "hangs before" not in ended.stderr
    assert ended.run.rank(1).ended
