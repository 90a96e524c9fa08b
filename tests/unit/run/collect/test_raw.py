"""What the recorder's log writes is what the launcher reads; and how processes find the recorder."""

import os

from esprof.recorder.injected.log.notes import Log
from esprof.recorder.shared.environment import RUN, changed, with_hook
from esprof.run.collect.notes import Caller
from esprof.run.collect.raw import (
    any_rank_alive,
    claimed_again,
    processes,
    read_job,
    read_notes,
    read_rows,
    snapshot_paths,
)
from esprof.run.raw import names
from tests.cases.raw import identity, note, roll, step


def logging(raw, rank: int = 0, limit: int = 1 << 20) -> Log:
    log = Log()
    log.open(os.path.join(raw, f"rank-{rank:05d}"), limit)
    log.note(**identity(rank, 2))
    return log


def test_notes_come_back_by_rank_and_kind(tmp_path):
    for rank in (1, 0):
        log = logging(tmp_path, rank)
        log.note("window", phase="timed", first=12, last=13)
        log.note("window", phase="stack", first=5, last=6)
        log.note("frame", number=1, caller=0, file="train.py", line=7, function="main")
        log.note("memory", peak=10, of="rss")
        log.note("memory", peak=20, of="rss")
        log.note("memory-limit", limit=1 << 40, of="rss")
        log.note("clock", at_ns=5, offset_ns=-7, rtt_ns=2)
        log.note("fault", message="disk full")
    (first, second), unattributed = read_notes(tmp_path)
    assert (first.rank, second.rank, second.identity.pid, unattributed) == (0, 1, 11, [])
    assert [(window.phase, window.first, window.last) for window in first.windows] == [
        ("stack", 5, 6),
        ("timed", 12, 13),
    ]
    assert [window.first for window in first.taken("timed")] == [12]
    assert first.callers == {1: Caller(1, 0, "train.py", 7, "main")}
    assert (first.memory.peak, first.memory_limit.limit) == (20, 1 << 40)
    assert [(reading.at_ns, reading.offset_ns) for reading in first.clock] == [(5, -7)]
    assert (first.faults, first.ended, first.stopped) == (["disk full"], False, False)


def test_a_fault_that_ended_all_recording_is_told_from_one_of_a_part(tmp_path):
    log = logging(tmp_path)
    log.note("fault", message="watch for hangs ended: no")
    log.note("stopped", message="recording ended: no")
    (notes,), _ = read_notes(tmp_path)
    assert notes.faults == ["watch for hangs ended: no", "recording ended: no"]
    assert (notes.stopped, notes.ended) == (True, False)


def test_the_rows_of_every_step_come_back_by_time(tmp_path):
    log = logging(tmp_path)
    log.note("workers", process="host.1.2", iterator=0, start_ns=1, pids=[50])
    for number in (1, 2):
        log.roll("steps", (number, number * 10, 10, "plain"))
        log.roll("nexts", (0, 0, number, 0, 1, 2, number * 10, number * 10 + 5, 4, None, True))
        log.roll("memories", (number, None, number * 10, None, None, None, 1 << 20))
        log.roll("stages", ("decode", number, number + 1))
    log.flush()
    roll(tmp_path, "fetch.host.1.2.50.roll.0", "fetches", [50, 0, 0, 1, 20, 25, 4])
    roll(tmp_path, "fetch.host.1.2.50.roll.1", "fetches", [50, 0, 0, 0, 10, 15, 4])
    roll(tmp_path, "fetch.host.1.2.50.roll.1", "stages", ["decode", 11, 12])
    roll(tmp_path, "fetch.host.9.9.60.roll.0", "fetches", [60, 0, 0, 0, 10, 15, 4])
    (notes,), _ = read_notes(tmp_path)
    rows = read_rows(tmp_path, notes)
    assert [(row.step, row.start_ns, row.phase) for row in rows.steps] == [(1, 10, "plain"), (2, 20, "plain")]
    assert [(row.batch, row.prefetch, row.training) for row in rows.nexts] == [(1, 2, True), (2, 2, True)]
    assert [(row.step, row.phase, row.rss) for row in rows.memories] == [(1, None, 1 << 20), (2, None, 1 << 20)]
    assert [row.name for row in rows.stages] == ["decode", "decode"]
    assert [row.batch for row in rows.fetches] == [0, 1]
    assert [(pid, row.start_ns) for pid, stages in rows.worker_stages.items() for row in stages] == [(50, 11)]
    assert rows.unreadable == []


def test_of_rows_that_rolled_the_newest_come_back_in_order(tmp_path):
    log = logging(tmp_path, limit=2000)
    for number in range(1, 400):
        log.roll("steps", step(number))
        if number % 7 == 0:
            log.flush()
    log.flush()
    (notes,), _ = read_notes(tmp_path)
    rows = read_rows(tmp_path, notes)
    numbers = [row.step for row in rows.steps]
    assert numbers == list(range(numbers[0], 400))
    assert 1 < numbers[0] == rows.dropped_steps + 1


def test_a_rank_that_died_before_it_said_who_it_was_is_none(tmp_path):
    (tmp_path / "rank-00000.jsonl").write_text('{"kind": "ra')
    assert read_notes(tmp_path) == ([], [tmp_path / "rank-00000.jsonl"])


def test_a_rank_is_alive_as_long_as_it_holds_its_file(tmp_path):
    note(tmp_path, 1, identity(1, 2))
    assert not any_rank_alive(tmp_path, in_doubt=True)
    log = logging(tmp_path)
    assert any_rank_alive(tmp_path, in_doubt=False)
    assert log.mine


def test_of_a_rank_that_has_written_nothing_yet_it_cannot_be_told(tmp_path):
    (tmp_path / "rank-00000.jsonl").touch()
    assert any_rank_alive(tmp_path, in_doubt=True)
    assert not any_rank_alive(tmp_path, in_doubt=False)


def test_snapshots_are_in_the_order_in_which_they_were_taken(tmp_path):
    for number in (10, 9, 0):
        (tmp_path / f"flight-00001.{number}.json").touch()
    (tmp_path / "flight-00000.3.json").touch()
    (tmp_path / "flight-00001.11.json.part").touch()
    found = [file.name for file in snapshot_paths(tmp_path, names.files_of(1))]
    assert found == [f"flight-00001.{n}.json" for n in (0, 9, 10)]


def test_processes_and_second_lives_are_counted_by_their_marks(tmp_path):
    names = (
        "python.1",
        "python.2",
        "torch.2",
        "again-00003.h.7.8",
        "again-00003.h.9.8",
        "again-00001.h.1.2",
        "again-x",
    )
    for name in names:
        (tmp_path / name).touch()
    assert processes(tmp_path) == (2, 1)
    assert claimed_again(tmp_path) == [1, 3]


def test_a_job_of_which_nothing_is_known(tmp_path):
    assert (read_job(tmp_path).command, read_job(tmp_path).started_ns) == ((), None)


def test_the_hook_stands_before_the_users_own_path():
    assert with_hook({}, "/run/raw", "/hook") == {RUN: "/run", "PYTHONPATH": "/hook"}
    assert with_hook({"PYTHONPATH": "/a:/b"}, "/run/raw", "/hook")["PYTHONPATH"] == "/hook:/a:/b"


def test_a_changed_environment_comes_back_as_it_was(monkeypatch):
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.delenv("NEW", raising=False)
    with changed({"KEPT": "inside", "NEW": "inside"}):
        assert (os.environ["KEPT"], os.environ["NEW"]) == ("inside", "inside")
    assert os.environ["KEPT"] == "before"
    assert "NEW" not in os.environ


def test_what_was_noted_before_steps_were_counted_anew_is_dropped(tmp_path):
    log = logging(tmp_path)
    since_ns = step(3)[1]
    log.note("paced", by="loader", since_ns=step(1)[1])
    log.note("window", phase="timed", first=1, last=2)
    log.note("paced", by="optimizer", since_ns=since_ns)
    log.note("window", phase="timed", first=7, last=8)
    for number, of in ((1, 1), (2, 2), (1, 3), (2, 4)):
        log.roll("steps", (number, *step(of)[1:]))
        log.roll("memories", (number, None, step(of)[1], None, None, None, 1))
    log.flush()
    (notes,), _ = read_notes(tmp_path)
    assert (notes.paced.by, [window.first for window in notes.windows]) == ("optimizer", [7])
    rows = read_rows(tmp_path, notes)
    assert [row.start_ns for row in rows.steps] == [step(3)[1], step(4)[1]]
    assert [row.at_ns for row in rows.memories] == [step(3)[1], step(4)[1]]
