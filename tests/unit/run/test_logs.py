"""The logs of a Run: what is appended comes back, whatever else stands there."""

import fcntl
import multiprocessing
import os
import threading

import msgspec
import pytest

from esprof.core import output
from esprof.core.errors import InputError, OutputError
from esprof.run import logs
from esprof.run.logs import HISTORY, LEDGER, JobEvent, Live, LiveStep, ObservedOutcome, Tail
from tests.cases.ledger import outcome_of, predicted


def live_step(number):
    return LiveStep(step=number, took_us=1.5, busy_us=(1.0, 0.5), ests=(3, 1))


def test_events_come_back_in_their_order(tmp_path):
    events = [
        JobEvent(what="started", step=0),
        JobEvent(what="refused", step=3, plan="x", version=2, reason="no\nroom"),
    ]
    for event in events:
        HISTORY.append(tmp_path / "run", event)
    assert HISTORY.read(tmp_path / "run") == tuple(events)
    assert HISTORY.read(tmp_path) == ()


def test_half_a_line_spoils_no_other(tmp_path):
    HISTORY.append(tmp_path, JobEvent(what="started", step=0))
    path = tmp_path / "history.jsonl"
    whole = path.read_bytes()
    for torn in (whole[:-1], whole[: len(whole) // 2], b"\xff\n"):
        path.write_bytes(whole + torn)
        HISTORY.append(tmp_path, JobEvent(what="left", step=9))
        assert [event.what for event in HISTORY.read(tmp_path)][-1] == "left"
        assert HISTORY.read(tmp_path)[0].what == "started"


def test_nothing_is_written_through_a_link(tmp_path):
    target = tmp_path / "notes"
    target.write_text("of the user")
    for name in ("history.jsonl", "live.jsonl"):
        (tmp_path / name).symlink_to(target)
    with pytest.raises(OutputError, match="it is a symbolic link"):
        HISTORY.append(tmp_path, JobEvent(what="started", step=0))
    with pytest.raises(OutputError, match="it is a symbolic link"):
        Live(tmp_path)
    assert target.read_text() == "of the user"


@pytest.mark.timeout(30)
def test_a_pipe_is_no_log(tmp_path):
    os.mkfifo(tmp_path / "live.jsonl")
    with pytest.raises(InputError, match="it is no regular file"):
        Tail(tmp_path).read()
    with pytest.raises(OutputError):
        Live(tmp_path)


@pytest.mark.parametrize("field", ["time_ns", "step", "version"])
def test_a_number_that_nothing_could_hold_spoils_its_line_alone(tmp_path, field):
    HISTORY.append(tmp_path, JobEvent(what="started", step=0))
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write(f'{{"what": "left", "step": 9, "{field}": {10**40}}}\n')
    assert [event.what for event in HISTORY.read(tmp_path)] == ["started"]


def test_a_log_is_bounded_and_keeps_its_newest_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "MAX_BYTES", 1000)
    for step in range(200):
        HISTORY.append(tmp_path, JobEvent(what="checkpoint", step=step))
        steps = [event.step for event in HISTORY.read(tmp_path)]
        assert steps == list(range(step + 1 - len(steps), step + 1))
    assert 14 < len(steps) < 50
    assert sorted(path.name for path in tmp_path.iterdir()) == ["history.1.jsonl", "history.jsonl"]
    assert all(path.stat().st_size < 1200 for path in tmp_path.iterdir())


def test_processes_that_append_at_once_lose_no_line_where_a_log_is_renamed(tmp_path, monkeypatch):
    """Each renames what the others write to; 8 kB hold all lines of two files."""
    monkeypatch.setattr(logs, "MAX_BYTES", 8000)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=append_many, args=(tmp_path, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = [event.step for event in HISTORY.read(tmp_path)]
    assert sorted(found) == list(range(160))
    assert (tmp_path / "history.1.jsonl").exists()


def append_many(folder, number):
    for step in range(number, 160, 4):
        HISTORY.append(folder, JobEvent(what="checkpoint", step=step, reason="x" * 20))


def test_a_log_that_a_stopped_process_holds_is_appended_to(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "MAX_BYTES", 1)
    monkeypatch.setattr(output, "_PATIENCE_S", 0.01)
    HISTORY.append(tmp_path, JobEvent(what="started", step=0))
    with (tmp_path / "history.jsonl").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        HISTORY.append(tmp_path, JobEvent(what="left", step=1))
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "history.1.jsonl").exists()


def test_an_append_comes_after_that_of_another_host(tmp_path):
    """On NFS it would overwrite it."""
    HISTORY.append(tmp_path, JobEvent(what="started", step=0))
    with (tmp_path / "history.jsonl").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def append() -> None:
            other.write('{"what": "kept", "step": 1}\n')
            other.flush()
            fcntl.flock(other, fcntl.LOCK_UN)

        appends = threading.Timer(0.05, append)
        appends.start()
        HISTORY.append(tmp_path, JobEvent(what="left", step=2))
        appends.join()
    assert [event.what for event in HISTORY.read(tmp_path)] == ["started", "kept", "left"]


def test_of_a_log_that_was_not_bounded_the_end_is_read(tmp_path, monkeypatch):
    for step in range(50):
        HISTORY.append(tmp_path, JobEvent(what="checkpoint", step=step))
    monkeypatch.setattr(logs, "MAX_BYTES", 200)
    steps = [event.step for event in HISTORY.read(tmp_path)]
    assert 1 <= len(steps) < 50
    assert steps == list(range(50 - len(steps), 50))


def test_what_cannot_be_written_or_read_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        HISTORY.append(tmp_path / "file", JobEvent(what="started", step=0))
    (tmp_path / "history.jsonl").mkdir()
    with pytest.raises(InputError):
        HISTORY.read(tmp_path)


def test_predictions_and_outcomes_come_back_in_their_order(tmp_path):
    first, second = predicted("bucket_mb=4"), predicted("compress=fp16")
    written = [first, second, outcome_of(second)]
    for line in written:
        LEDGER.append(tmp_path / "run", line)
    assert list(LEDGER.read(tmp_path / "run")) == written


def test_a_run_without_a_ledger_has_no_lines(tmp_path):
    assert LEDGER.read(tmp_path) == ()


def test_a_torn_line_costs_itself_alone(tmp_path):
    prediction = predicted("bucket_mb=4")
    LEDGER.append(tmp_path, prediction)
    file = tmp_path / "ledger.jsonl"
    with file.open("ab") as torn:
        torn.write(msgspec.json.encode(outcome_of(prediction))[:100])
    LEDGER.append(tmp_path, prediction)
    assert LEDGER.read(tmp_path) == (prediction, prediction)


def test_what_is_no_line_of_ours_is_passed_over(tmp_path):
    prediction = predicted("bucket_mb=4")
    foreign = [b"", b"\xff\xfe", b"[1, 2]", b'{"what": "else"}', b'{"what": "predicted"}', b"[" * 10_000]
    (tmp_path / "ledger.jsonl").write_bytes(b"\n".join([*foreign, msgspec.json.encode(prediction), b""]))
    assert LEDGER.read(tmp_path) == (prediction,)


def test_a_ledger_that_was_written_by_hand_is_read(tmp_path):
    """Fixes the names of the fields: ledgers outlive the esprof that wrote them."""
    (tmp_path / "ledger.jsonl").write_text(
        '{"what":"verified","id":"ab","time_ns":1,"spec":"bucket_mb=4","terms":["bucket_mb"],"job":{"backend":"gloo",'
        '"devices":"CPU","world_size":2,"gradients":"DDP"},"by":"verify","repeats":3,"before":{"us":100,"low_us":98,'
        '"high_us":102},"predicted":{"us":90,"low_us":88,"high_us":92},"observed":{"us":91},"error_pct":-1.1,"held":true,'
        '"versions":{"torch":"2.13.0"}}\n'
    )
    (line,) = LEDGER.read(tmp_path)
    assert isinstance(line, ObservedOutcome)
    assert (line.predicted.us, line.observed.low_us, str(line.job)) == (90, None, "DDP, gloo, 2 × CPU")


def test_a_ledger_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "run").write_text("no folder")
    with pytest.raises(OutputError):
        LEDGER.append(tmp_path / "run", predicted("bucket_mb=4"))


def test_a_prediction_as_shares_of_the_step():
    prediction = predicted("bucket_mb=4", step_us=200, predicted_us=150, saving_us=(40, 60))
    assert prediction.shares == pytest.approx((0.75, 0.7, 0.8))


def test_steps_are_read_once_each(tmp_path):
    tail, job = Tail(tmp_path / "run"), Live(tmp_path / "run")
    assert tail.read() == []
    for number in range(3):
        job.note(live_step(number))
    assert tail.read() == [live_step(0), live_step(1), live_step(2)]
    job.note(live_step(3))
    assert tail.read() == [live_step(3)]
    assert tail.read() == []
    assert Tail(tmp_path / "run").read() == [live_step(number) for number in range(4)]


def test_half_a_line_is_read_when_it_is_whole_and_what_is_no_step_is_left_out(tmp_path):
    Live(tmp_path).note(live_step(0))
    path, tail = tmp_path / "live.jsonl", Tail(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + b"[]\n\xff\n" + whole[:10])
    assert tail.read() == [live_step(0)]
    path.write_bytes(whole + b"[]\n\xff\n" + whole)
    assert tail.read() == [live_step(0)]


def test_a_large_file_is_begun_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "MAX_BYTES_OF_LIVE", 500)
    tail, job, found = Tail(tmp_path), Live(tmp_path), []
    for number in range(100):
        job.note(live_step(number))
        found += tail.read()
        assert (tmp_path / "live.jsonl").stat().st_size < 1000
    assert found == [live_step(number) for number in range(100)]


def test_a_job_that_begins_again_begins_the_file_anew(tmp_path):
    for first in (0, 7):
        job = Live(tmp_path)
        job.note(live_step(first))
        job.close()
    assert Tail(tmp_path).read() == [live_step(7)]


def test_steps_that_cannot_be_written_are_an_error(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(OutputError):
        Live(tmp_path / "run")


def test_steps_that_cannot_be_read_are_an_error(tmp_path):
    (tmp_path / "live.jsonl").mkdir()
    with pytest.raises(InputError):
        Tail(tmp_path).read()
