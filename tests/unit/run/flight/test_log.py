"""Reading what a flight recorder left."""

import fcntl

import msgspec
import pytest

from esprof.run.flight.log import FlightLog, StackFrame, main_stack, may_be_alive, own_frame, read_flight
from esprof.run.raw import names
from tests.cases.flight import SEGV_TEXT, SIGTERM_TEXT, call, killed, snapshot


@pytest.mark.parametrize(
    "library",
    [
        "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py",
        "/usr/lib/python3.12/threading.py",
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "/src/pytorch/torch/_dynamo/eval_frame.py",
        "/opt/esprof/recorder/injected/loader.py",
        "/opt/esprof/recorder/shared/files.py",
        "<frozen runpy>",
    ],
)
def test_the_place_is_the_innermost_line_of_the_jobs_own_code(library):
    own = StackFrame("/home/me/torch/train.py", 7, "step")
    assert own_frame([StackFrame(library, 1, "f"), own, StackFrame("/home/me/main.py", 9, "main")]) == own


def test_without_code_of_the_job_the_place_is_the_innermost_line_of_all():
    inner = StackFrame("/usr/lib/python3.12/threading.py", 1, "wait")
    assert own_frame([inner, StackFrame("/usr/lib/python3.12/runpy.py", 2, "run")]) == inner
    assert own_frame([]) is None


def test_a_line_is_named_as_in_the_rest_of_the_run():
    assert str(StackFrame("train.py", 88, "save")) == "train.py(88): save"


def test_what_faulthandler_wrote_tells_the_signal_and_the_line():
    assert [killed(fatal=text).fault for text in (SIGTERM_TEXT, SEGV_TEXT)] == [None, "Segmentation fault"]
    assert [killed(fatal=text).was_terminated for text in (SIGTERM_TEXT, SEGV_TEXT)] == [True, False]
    assert killed(fatal=SEGV_TEXT).location == StackFrame("/job/train.py", 88, "step")
    assert (killed().fault, killed().was_terminated) == (None, False)
    assert [frame.function for frame in main_stack(SIGTERM_TEXT)] == ["all_reduce", "step", "<module>"]


def test_a_fault_that_the_process_outlived_did_not_end_it():
    outlived = FlightLog(fatal=SEGV_TEXT, ended=True)
    assert (outlived.fault, outlived.was_terminated) == (None, False)


def test_snapshots_are_read_by_time_and_broken_ones_left_out(tmp_path):
    for number, at_ns in enumerate((30, 10, 20)):
        taken = snapshot(3, [call(1)], at_ns=at_ns)
        (tmp_path / f"flight-00003.{number}.json").write_bytes(msgspec.json.encode(taken))
    (tmp_path / "flight-00003.3.json").write_text('{"reason": "hang", "ra')
    (tmp_path / "flight-00003.4.json").write_bytes(b'{"reason": "\xff"}')
    (tmp_path / "flight-00004.0.json").write_text("{}")
    (tmp_path / "fatal-00003.txt").write_text(SIGTERM_TEXT)
    log = read_flight(tmp_path, names.files_of(3), ended=False)
    assert [taken.at_ns for taken in log.snapshots] == [10, 20, 30]
    assert (log.fatal, log.ended, log.alive) == (SIGTERM_TEXT, False, False)


def test_a_log_survives_json():
    log = killed(snapshot(0, [call(1), call(2, over=False)]), fatal=SEGV_TEXT)
    assert msgspec.json.decode(msgspec.json.encode(log), type=FlightLog) == log


def test_a_log_that_does_not_tell_is_of_a_rank_that_ended_well():
    assert not msgspec.json.decode(b"{}", type=FlightLog).died


def test_who_holds_the_lock_of_its_notes_is_alive(tmp_path):
    notes = tmp_path / "rank-00000.jsonl"
    assert not may_be_alive(notes)
    notes.touch()
    assert may_be_alive(notes), "it is about to take its lock"
    notes.write_text("{}\n")
    assert not may_be_alive(notes)
    with notes.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert may_be_alive(notes)
    assert not may_be_alive(notes)


def test_bytes_are_those_of_the_inputs_or_unknown():
    assert call(1).bytes == 2048
    assert call(1, "barrier", 0).bytes == 0
    assert msgspec.structs.replace(call(1), input_dtypes=("QInt8",)).bytes is None
