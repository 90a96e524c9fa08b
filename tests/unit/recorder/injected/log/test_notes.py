"""What a process notes down: permanent rows at once, rolling rows when they are flushed, all within bounds."""

import fcntl
import json
import os
import resource
import signal
import stat

import pytest

from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.log.rolling import RollingFile
from esprof.run.raw.new_files import NewFile, write_new


def opened(folder, limit: int = 1 << 20, stored_steps: int = 0) -> Log:
    log = Log()
    log.open(str(folder / "rank"), limit, stored_steps)
    return log


def rows(path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def steps(folder) -> list[int]:
    """The numbers of the steps in both rolling files, the older file first."""
    files = [path for path in (folder / "rank.roll.0.jsonl", folder / "rank.roll.1.jsonl") if path.exists()]
    parts = [[row[0] for line in rows(path) for row in line["rows"]] for path in files]
    return [number for part in sorted(parts) for number in part]


def test_permanent_rows_wait_until_the_log_is_open_and_then_keep_their_order(tmp_path):
    log = Log()
    log.note("memory", peak=1)
    log.open(str(tmp_path / "rank"), 1000)
    log.note("memory", peak=2)
    assert [row["peak"] for row in rows(tmp_path / "rank.jsonl")] == [1, 2]


def test_rows_that_wait_for_ever_do_not_fill_the_memory(tmp_path):
    log = Log()
    for number in range(20_000):
        log.note("memory", peak=number)
        log.roll("steps", (number,))
    log.open(str(tmp_path / "rank"), 1 << 20)
    log.flush()
    assert len(rows(tmp_path / "rank.jsonl")) == 10_000
    assert steps(tmp_path) == list(range(10_000, 20_000))


def test_rolling_rows_are_written_in_one_line_a_kind(tmp_path):
    log = opened(tmp_path)
    for number in range(3):
        log.roll("steps", (number, "plain"))
        log.roll("nexts", (number, None))
    log.flush()
    log.flush()
    assert rows(tmp_path / "rank.roll.0.jsonl") == [
        {"kind": "steps", "rows": [[0, "plain"], [1, "plain"], [2, "plain"]]},
        {"kind": "nexts", "rows": [[0, None], [1, None], [2, None]]},
    ]


def test_the_tail_knows_the_newest_rows_flushed_or_not(tmp_path):
    log = opened(tmp_path)
    for number in range(500):
        log.roll("steps", (number,))
        if number == 450:
            log.flush()
    assert log.tail("steps") == [(number,) for number in range(300, 500)]
    assert log.tail("nexts") == []


def test_notes_are_bounded_by_bytes_and_the_newest_half_is_always_there(tmp_path):
    log = opened(tmp_path, limit=4_000)
    for number in range(1_000, 2_000):
        log.roll("steps", (number,))
        log.flush()
        kept = steps(tmp_path)
        assert kept == list(range(kept[0], number + 1))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.roll.*")) <= 4_000
    assert len(kept) >= 2_000 / len('{"kind":"steps","rows":[[1234]]}\n') - 1


def test_notes_are_bounded_by_steps_if_so_asked(tmp_path):
    log = opened(tmp_path, stored_steps=10)
    for number in range(1, 96):
        log.roll("steps", (number,))
        log.flush()
    assert steps(tmp_path)[-10:] == list(range(86, 96))
    assert len(steps(tmp_path)) < 20


def test_only_one_process_can_be_a_rank(tmp_path):
    opened(tmp_path)
    with pytest.raises(FileExistsError):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["rank.jsonl", "rank.roll.0.jsonl"])
def test_a_link_that_somebody_planted_is_not_followed(tmp_path, name):
    victim = tmp_path / "victim"
    (tmp_path / name).symlink_to(victim)
    with pytest.raises(FileExistsError):
        opened(tmp_path)
    assert not victim.exists()


def test_files_are_the_users_alone(tmp_path):
    log = opened(tmp_path, limit=10)
    for number in range(2):
        log.roll("steps", (number,))
        log.flush()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert len(list(tmp_path.iterdir())) == 3


def is_locked(path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_lock_lives_as_long_as_the_rank_and_no_child_prolongs_it(tmp_path):
    start, end = os.pipe(), os.pipe()
    rank = os.fork()
    if rank == 0:
        log = opened(tmp_path)
        child = os.fork()
        if child == 0:
            log.let_go_in_child()
            log.note("fault", message="from the child")
            log.roll("steps", (1,))
            log.flush()
            os.write(start[1], str(os.getpid()).encode())
            os.read(end[0], 1)
            os._exit(0)
        os.read(end[0], 1)
        os._exit(0)
    child = int(os.read(start[0], 20))
    assert is_locked(tmp_path / "rank.jsonl")
    os.kill(rank, 9)
    os.waitpid(rank, 0)
    assert not is_locked(tmp_path / "rank.jsonl")
    os.kill(child, 9)
    assert (tmp_path / "rank.jsonl").read_bytes() == (tmp_path / "rank.roll.0.jsonl").read_bytes() == b""


def test_a_file_that_got_the_number_of_ours_is_left_alone(tmp_path):
    ours = NewFile(str(tmp_path / "ours"))
    os.close(ours.number)
    theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
    assert theirs == ours.number
    os.write(theirs, b"precious")
    for harm in (lambda: ours.append(b"x"), ours.empty):
        with pytest.raises(OSError, match="closed"):
            harm()
    ours.close()
    assert (tmp_path / "theirs").read_bytes() == b"precious"
    os.close(theirs)
    with pytest.raises(OSError, match="closed"):
        ours.append(b"x")


def test_a_file_that_does_not_fit_leaves_nothing(tmp_path):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        try:
            write_new(str(tmp_path / "file"), b"x" * 20)
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_does_not_fit_leaves_the_next_one_readable(tmp_path):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        file = NewFile(str(tmp_path / "file"))
        file.append(b"first\n")
        resource.setrlimit(resource.RLIMIT_FSIZE, (15, 15))
        try:
            file.append(b"x" * 20 + b"\n")
        except OSError:
            file.append(b"stopped\n")
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "file").read_bytes() == b"first\nstopped\n"


def test_a_line_larger_than_the_limit_is_stored_completely(tmp_path):
    file = RollingFile(str(tmp_path / "rank"), 10)
    for letter in b"abc":
        file.write(bytes([letter]) * 50 + b"\n")
    file.close()
    kept = sorted((tmp_path / f"rank.roll.{k}.jsonl").read_bytes() for k in (0, 1))
    assert kept == [b"b" * 50 + b"\n", b"c" * 50 + b"\n"]
