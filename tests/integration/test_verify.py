"""`esprof verify` on a real job of two processes: knobs that take, knobs that do not, and what a break leaves."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from esprof.recorder.shared import tcp
from esprof.run.logs import LEDGER, ObservedOutcome, ReplayPrediction
from tests.cases.command_line import esprof
from tests.cases.record import ESPROF, JOBS, Ended, Running, ranks, record, run, torchrun

pytestmark = pytest.mark.integration

JOB = JOBS / "to_verify.py"
# How close replay comes depends on the machine, and nothing here does.
ANY_ERROR = ("--tolerance", 1000)
FEW = ("--repeats", 1, "--skip", 2, "--steps", 10, *ANY_ERROR)


def verify(recorded: Path, *options, job=()) -> Ended:
    return run([*ESPROF, "verify", str(recorded), *map(str, (*FEW, *options)), "--", *ranks(2, JOB, *job)])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("verify") / "run"
    ended = record(out, ranks(2, JOB), skip=2, warmup=1, steps=12, stack_steps=0, shapes=True)
    assert ended.code == 0, ended.stderr
    return out


@pytest.fixture(scope="module")
def made(recorded) -> Ended:
    """A change that can be made. Larger buckets are predicted without a probe; several times as many transfers are not."""
    return verify(recorded, "--what-if", "bucket_mb=25", "--json")


def test_a_change_is_made_and_told(made):
    assert made.code == 0, made.stderr
    answer = json.loads(made.stdout)
    assert (next(iter(answer)), answer["schema"]) == ("schema", "esprof.verify/1")
    assert answer["verdict"] in ("held", "close")
    assert answer["knobs"] == [{"name": "bucket_mb", "before": "0.5", "after": "25"}]
    assert answer["job"] == {"backend": "gloo", "devices": "CPU", "world_size": 2, "gradients": "DDP"}
    (pair,) = answer["pairs"]
    assert (answer["before"]["us"], answer["observed"]["us"]) == tuple(
        pair[of]["step_us"] for of in ("before", "after")
    )
    assert answer["predicted"]["low_us"] <= answer["predicted"]["us"] <= answer["predicted"]["high_us"]


def test_the_prediction_was_written_before_anything_was_measured(made, recorded):
    prediction, outcome = LEDGER.read(recorded)
    assert isinstance(prediction, ReplayPrediction)
    assert isinstance(outcome, ObservedOutcome)
    assert (prediction.id, prediction.spec, outcome.by) == (outcome.id, "bucket_mb=25", "verify")
    assert prediction.time_ns < outcome.time_ns
    said = made.stderr.index("predicted for bucket_mb=25")
    assert (
        said < made.stderr.index("run 1 of 2, without the change") < made.stderr.index("run 2 of 2, with bucket_mb=25")
    )


def test_nothing_else_is_left_beside_the_run(made, recorded):
    assert [path.name for path in recorded.parent.iterdir()] == ["run"]


def is_allowed(control: str) -> bool:
    try:
        with socket.socket() as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
    except PermissionError:
        return False
    return True


def test_the_congestion_control_of_the_connections_is_set_and_read_back(recorded):
    others = [name for name in tcp.loaded_controls() if name != tcp.default_control() and is_allowed(name)]
    if not others:
        pytest.skip("the kernel allows a single TCP congestion control")
    ended = verify(recorded, "--set", f"network.cc={others[0]}", "--json")
    assert ended.code == 0, ended.stderr
    expected = {"name": "network.cc", "before": tcp.default_control(), "after": others[0]}
    assert json.loads(ended.stdout)["knobs"] == [expected]


def test_a_hook_is_set_and_its_codec_read_back(recorded):
    ended = verify(recorded, "--set", "compress=bf16", "--json")
    assert ended.code == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert (answer["verdict"], answer["prediction"]) == ("measured", None)
    assert answer["knobs"] == [{"name": "compress", "before": "none", "after": "bf16"}]


@pytest.mark.parametrize(
    ("options", "job", "reason"),
    [
        (
            ["--set", "compress=bf16"],
            ["--own-hook"],
            "the job has set a communication hook of its own (fp16_compress_hook)",
        ),
        (["--set", "loader.prefetch=4"], [], "a DataLoader without workers does not prefetch"),
    ],
)
def test_a_change_that_did_not_take_is_no_answer(recorded, options, job, reason):
    ended = verify(recorded, *options, job=job)
    assert (ended.code, ended.stdout) == (1, "")
    assert "did not change" in ended.stderr
    assert reason in ended.stderr


def test_a_job_that_fails_is_an_error_and_leaves_the_prediction_alone(made, recorded):
    ended = verify(recorded, "--what-if", "data[ready]=0", job=["--fail-with", "esprof_guest.recorder.knobs"])
    assert (ended.code, ended.stdout) == (1, "")
    assert "without the change, the command ended with exit code 7" in ended.stderr
    assert [line.spec for line in LEDGER.read(recorded) if isinstance(line, ObservedOutcome)] == ["bucket_mb=25"]
    assert LEDGER.read(recorded)[-1].spec == "data[ready]=0"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--what-if", "gpu=2x"], "no knob applies gpu=2x"),
        (["--what-if", "data=0"], "data[ready]=0"),
        (["--what-if", "rank0.data[ready]=0"], "a knob is set on all ranks"),
        (["--what-if", "bucket_mb=0"], "bucket_mb"),
        (["--set", "speed=2"], "there is no knob 'speed'"),
        (["--set", "threads=0"], "'0' is not a whole number from 1 on"),
        (["--set", "threads=2", "--what-if", "bucket_mb=4"], "name the change"),
        ([], "bucket_mb=4"),
    ],
)
def test_what_cannot_be_asked(recorded, options, said):
    ended = esprof("verify", recorded, *options, "--", "true")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr


def test_a_command_stands_behind_dashes(recorded):
    """Its own --steps would be taken for ours."""
    ended = esprof("verify", recorded, "--set", "threads=2", "python", "train.py", "--steps", "3")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "put -- before CMD" in ended.stderr


def test_a_prediction_that_replay_does_not_make(recorded):
    ended = esprof("verify", recorded, "--what-if", "loader.prefetch=2", "--", "true")
    assert ended.returncode == 1
    assert "no prediction of loader.prefetch=2" in ended.stderr
    assert "--set loader.prefetch=2" in ended.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_is_broken_off_leaves_no_process_and_no_file(recorded, tmp_path, number, code):
    before = len(LEDGER.read(recorded))
    started = tmp_path / "started"
    started.mkdir()
    command = torchrun("to_verify.py", "--started", started, "--slow", 0.5)
    change = ["--what-if", "data[ready]=0", "--steps", 0, *ANY_ERROR]
    running = Running([*ESPROF, "verify", *map(str, [recorded, *change]), "--", *command])
    deadline = time.monotonic() + 120
    while len(pids := [int(path.name) for path in started.iterdir()]) < 2:
        assert time.monotonic() < deadline, running.talk()
        time.sleep(0.1)
    running.process.send_signal(number)
    ended = running.end()
    assert (ended.code, ended.stdout) == (code, "")
    assert not any(is_alive(pid) for pid in pids)
    assert [path.name for path in recorded.parent.iterdir()] == ["run"]
    # The prediction was made; that nothing was measured of it is seen by that.
    assert len(LEDGER.read(recorded)) == before + 1


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
