"""What processes note down, and how it is read again."""

import os

import msgspec

from esprof.tracer.injected.environment import RECORD, changed, with_hook
from esprof.tracer.injected.log import Log
from esprof.tracer.raw import claimed_again, processes, read_notes

WHO = {"world_size": 2, "host": "a", "device": "cpu", "accelerators": 0, "versions": {}}


def rank_log(raw, rank: int) -> Log:
    log = Log()
    log.open(os.path.join(raw, f"rank-{rank:05d}.jsonl"))
    log.write("rank", rank=rank, pid=10 + rank, **WHO)
    return log


def test_rows_wait_until_the_log_is_open_and_then_keep_their_order(tmp_path):
    log = Log()
    log.write("memory", peak=1, of="rss")
    log.open(str(tmp_path / "log"))
    log.write("memory", peak=2, of="rss")
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["peak"] for line in lines] == [1, 2]


def test_rows_that_wait_for_ever_do_not_fill_the_memory(tmp_path):
    log = Log()
    for peak in range(20_000):
        log.write("memory", peak=peak, of="rss")
    log.open(str(tmp_path / "log"))
    assert len((tmp_path / "log").read_bytes().splitlines()) == 10_000


def test_a_forked_child_does_not_write_into_its_parents_log(tmp_path):
    log = rank_log(tmp_path, 0)
    before = (tmp_path / "rank-00000.jsonl").read_bytes()
    child = os.fork()
    if child == 0:
        log.write("fault", message="from the child")
        os._exit(0 if not log.mine else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "rank-00000.jsonl").read_bytes() == before


def test_notes_come_back_by_rank_and_kind(tmp_path):
    for rank in (1, 0):
        log = rank_log(tmp_path, rank)
        log.write("step", step=1, start_ns=5, dur_ns=7, phase="plain")
        log.write("window", phase="timed", first=2, last=3)
        log.write("memory", peak=10, of="rss")
        log.write("memory", peak=20, of="rss")
        log.write("fault", message="disk full")
    first, second = read_notes(tmp_path)
    assert (first.rank, second.rank, second.identity.pid) == (0, 1, 11)
    assert [step.dur_ns for step in first.steps] == [7]
    assert (first.windows["timed"].first, first.windows["timed"].last) == (2, 3)
    assert first.memory.peak == 20
    assert first.faults == ["disk full"]


def test_a_line_that_a_killed_process_broke_off_is_passed_over(tmp_path):
    rank_log(tmp_path, 0).write("step", step=1, start_ns=5, dur_ns=7, phase="plain")
    with (tmp_path / "rank-00000.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')
    assert [step.step for step in read_notes(tmp_path)[0].steps] == [1]


def test_a_rank_that_died_before_it_said_who_it_was_is_none(tmp_path):
    (tmp_path / "rank-00000.jsonl").write_text('{"kind": "ra')
    assert read_notes(tmp_path) == []


def test_processes_and_second_lives_are_counted_by_their_marks(tmp_path):
    for name in (
        "python.1",
        "python.2",
        "torch.2",
        "again-00003.host.7.8",
        "again-00003.host.9.8",
        "again-00001.h.1.2",
    ):
        (tmp_path / name).touch()
    assert processes(tmp_path) == (2, 1)
    assert claimed_again(tmp_path) == [1, 3]


def test_the_hook_stands_before_the_users_own_path():
    assert with_hook({}, "/raw", "/hook") == {RECORD: "/raw", "PYTHONPATH": "/hook"}
    assert with_hook({"PYTHONPATH": "/a:/b"}, "/raw", "/hook")["PYTHONPATH"] == "/hook:/a:/b"


def test_a_changed_environment_comes_back_as_it_was(monkeypatch):
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.delenv("NEW", raising=False)
    with changed({"KEPT": "inside", "NEW": "inside"}):
        assert (os.environ["KEPT"], os.environ["NEW"]) == ("inside", "inside")
    assert os.environ["KEPT"] == "before"
    assert "NEW" not in os.environ
