"""Windows asked of a job whose ranks are played: what they note, and what the one who asks is told."""

import fcntl
import json
import os
import threading
import time

import pytest

from esprof.core.errors import InputError, OutputError
from esprof.recorder.launcher import order_window as order_window_module
from esprof.recorder.launcher.order_window import Attached, RankAnswer, attach, order_window


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(order_window_module, "_POLL_NOTES_S", 0.01)
    monkeypatch.setattr(order_window_module, "_MAX_WAIT_AFTER_LOSS_S", 0.05)


class Rank:
    """The notes of a rank, with the lock that it holds as long as it lives."""

    def __init__(self, raw, rank):
        raw.mkdir(parents=True, exist_ok=True)
        self.path = raw / f"rank-{rank:05d}.jsonl"
        self.file = self.path.open("a", buffering=1)
        fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.note("rank", rank=rank, world_size=2)

    def note(self, kind, **row):
        self.file.write(json.dumps({"kind": kind} | row) + "\n")

    def window(self, first, last, phase="timed"):
        self.note("window", phase=phase, first=first, last=last)

    def end(self):
        self.file.close()


@pytest.fixture
def ranks(tmp_path):
    made = [Rank(tmp_path / "run" / "raw", rank) for rank in (0, 1)]
    yield made
    for rank in made:
        rank.end()


def orders(raw):
    return sorted(raw.glob("orders/*.json"))


def attached(run, react, *, raw=None, **options):
    """What `attach` returns; `react` is what the job does once it is asked."""

    def job():
        deadline = time.monotonic() + 30
        while not orders(raw or run / "raw"):
            assert time.monotonic() < deadline
            time.sleep(0.005)
        react()

    thread = threading.Thread(target=job)
    thread.start()
    try:
        return attach(run, **options)
    finally:
        thread.join()


def test_an_order_is_there_whole_and_for_its_owner_alone(tmp_path):
    order = order_window(tmp_path, at=120)
    assert json.loads(order.read_text()) == {"at": 120}
    assert order.stat().st_mode & 0o777 == 0o600
    assert order.parent.stat().st_mode & 0o777 == 0o700
    assert int(order.stem) <= time.time_ns()
    assert json.loads(order_window(tmp_path).read_text()) == {"at": None}
    assert len(list(order.parent.iterdir())) == 2


def test_an_order_that_cannot_be_left_is_an_error_and_leaves_nothing(tmp_path):
    (tmp_path / "orders").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        order_window(tmp_path)


def test_all_ranks_answer(tmp_path, ranks):
    def react():
        for rank in ranks:
            rank.window(40, 47)
            rank.window(49, 50, "stack")

    ranks[0].window(5, 12)
    report = attached(tmp_path / "run", react)
    assert report.whole
    assert str(report) == "ranks 0–1 recorded steps 40 to 47"
    assert json.loads(orders(tmp_path / "run" / "raw")[0].read_text()) == {"at": None}


def test_a_window_before_the_step_that_was_asked_for_is_another(tmp_path, ranks):
    def react():
        for rank in ranks:
            rank.window(40, 47)
        time.sleep(0.1)
        for rank in ranks:
            rank.window(102, 109)

    report = attached(tmp_path / "run", react, at=100)
    assert [answer.steps for answer in report.ranks] == [(102, 109)] * 2
    assert report.begins_after(100)
    assert not report.begins_after(102)


def test_ranks_that_miss_it_or_end_are_named(tmp_path, ranks):
    def react():
        ranks[1].note("missed", at=40, step=41)
        ranks[0].end()

    report = attached(tmp_path / "run", react)
    assert not report.whole
    assert [answer.outcome for answer in report.ranks] == ["ended", "missed"]
    assert "in step 41" in str(report)


def test_what_is_left_of_a_window_that_was_cut_short_counts(tmp_path, ranks):
    def react():
        for rank in ranks:
            rank.note("lost", first=43, phase="timed", reason="the rest would exceed the memory limit")
        ranks[0].window(40, 42)

    report = attached(tmp_path / "run", react)
    assert [answer.outcome for answer in report.ranks] == ["recorded", "lost"]


def test_a_rank_that_first_steps_later_is_waited_for(tmp_path, ranks):
    def react():
        third = Rank(tmp_path / "run" / "raw", 2)
        for rank in (*ranks, third):
            time.sleep(0.05)
            rank.window(40, 47)
        third.end()

    assert [answer.rank for answer in attached(tmp_path / "run", react).ranks] == [0, 1, 2]


def test_the_launcher_of_rank_0_gets_the_order_and_all_ranks_answer(tmp_path):
    made = [Rank(tmp_path / f"part-{rank:05d}" / "raw", rank) for rank in (0, 1)]
    report = attached(tmp_path, lambda: [rank.window(40, 47) for rank in made], raw=tmp_path / "part-00000" / "raw")
    assert len(report.ranks) == 2
    for rank in made:
        rank.end()


def test_a_job_that_ends_meanwhile_is_an_error(tmp_path, ranks):
    with pytest.raises(InputError, match="ended before the end of the window"):
        attached(tmp_path / "run", lambda: [rank.end() for rank in ranks])


def test_a_job_that_stands_still_is_an_error(tmp_path, ranks):
    with pytest.raises(InputError, match="no optimizer step ended within"):
        attach(tmp_path / "run", timeout_s=0.1)


def test_a_window_that_does_not_close_in_time_is_an_error(tmp_path, ranks):
    def react():
        (tmp_path / "run" / "raw" / "rank-00000.roll.0.jsonl").write_text("{}\n")
        ranks[1].note("stopped", message="recording failed: OSError")
        ranks[0].window(40, 47)

    with pytest.raises(InputError, match="rank 1 waiting: recording failed: OSError"):
        attached(tmp_path / "run", react, timeout_s=0.5)


def test_a_job_that_has_not_stepped_yet_is_an_error_in_the_end(tmp_path):
    (tmp_path / "raw").mkdir()
    with pytest.raises(InputError, match="no rank of the job ended a step"):
        attach(tmp_path, timeout_s=0.05)


@pytest.mark.parametrize(
    ("made", "reason"), [("", "does not exist"), ("run", "is not being recorded"), ("run/raw", None)]
)
def test_where_no_job_runs_there_is_nothing_to_attach_to(tmp_path, made, reason):
    (tmp_path / made).mkdir(parents=True, exist_ok=True)
    if reason is None:
        Rank(tmp_path / "run" / "raw", 0).end()
    with pytest.raises(InputError, match=reason or "no process of the job is alive"):
        attach(tmp_path / "run")


def test_a_finished_run_is_called_so(tmp_path):
    (tmp_path / "run.json").touch()
    with pytest.raises(InputError, match="the job has ended"):
        attach(tmp_path)


def test_another_user_s_job_is_left_to_that_user(tmp_path, ranks, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(InputError, match="another user's"):
        attach(tmp_path / "run")
    assert orders(tmp_path / "run" / "raw") == []


def test_ranks_with_the_same_outcome_share_a_line():
    answers = [RankAnswer(rank, "recorded", (40, 47)) for rank in (0, 1, 3)] + [RankAnswer(2, "lost", reason="why")]
    assert str(Attached(tuple(answers))) == "ranks 0–1, 3 recorded steps 40 to 47\nrank 2 lost: why"
