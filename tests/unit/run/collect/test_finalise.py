"""From `raw` to the Run: whole, interrupted, spoilt, or still being written."""

import errno
import fcntl
import json
import os
import stat
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import msgspec
import pytest

from esprof import load
from esprof.core.errors import InputError, OutputError
from esprof.run.collect.finalise import finalise
from esprof.run.overhead import Overhead
from esprof.run.raw.names import FINISHING
from esprof.run.raw.reasons import LossReason
from esprof.run.raw.settings import Settings
from esprof.run.run import Window
from tests.cases.flight import SIGTERM_TEXT, snapshot
from tests.cases.raw import (
    EPOCH_NS,
    STEP_NS,
    event,
    identity,
    make,
    note,
    roll,
    shaped_rank,
    step,
    trace,
    whole_rank,
    window,
)


def finished(raw, exit_code=0, **options):
    return finalise(raw.parent, ("train.py",), exit_code, Settings.read(str(raw)), **options)


def codes(run) -> list[tuple[str, tuple[int, ...]]]:
    return [(warning.code, warning.ranks) for warning in run.warnings]


def test_a_whole_recording_becomes_a_run_and_raw_goes(tmp_path):
    raw = make(tmp_path / "run", ranks=2)
    for rank in (0, 1):
        whole_rank(raw, rank, 2, (3, 5))
    run = finished(raw)
    assert (run.ranks, run.world_size, run.warnings) == ([0, 1], 2, ())
    assert (run.meta.command, run.meta.exit_code, run.meta.created_ns) == (("train.py",), 0, EPOCH_NS)
    assert run.rank(1).windows == (Window(first=3, last=5),)
    assert (run.rank(1).peak_memory, run.rank(1).ended, run.rank(1).dropped_steps) == (1 << 20, True, 0)
    assert run.steps(0).ints("step").tolist() == list(range(1, 9))
    assert run.flight(0).ended
    assert not raw.exists()


def test_a_run_is_finished_by_one_process_at_a_time(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 2, (3, 5))
    with (raw / FINISHING).open("w") as other, ThreadPoolExecutor(1) as later:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = later.submit(finished, raw)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        assert raw.exists()
        fcntl.flock(other, fcntl.LOCK_UN)
        assert waiting.result().ranks == [0]


def test_a_run_is_finished_where_no_file_can_be_locked(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 2, (3, 5))
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert finished(raw).ranks == [0]
    assert not raw.exists()


def test_a_secret_of_the_command_is_stored_nowhere(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    run = finalise(raw.parent, ("train.py", "--wandb-key=s3cr3t"), 0, Settings.read(str(raw)))
    assert run.meta.command == ("train.py", "--wandb-key=REDACTED")
    assert b"s3cr3t" not in b"".join(file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file())


def test_overhead_is_told_by_the_plain_steps_beside_the_windows(tmp_path):
    """The job's first step is long, and far from the windows it is another job: neither counts."""
    raw = make(tmp_path / "run")
    note(raw, 0, identity(), window(201, 203), window(241, 243), {"kind": "end", "step": 600})
    for first in (201, 241):
        trace(raw, 0, first, first + 2)
    timed = {*range(201, 204), *range(241, 244)}
    took = {
        n: STEP_NS * 2 if n in timed else STEP_NS * (9 if n == 1 or n < 100 or n > 350 else 1) for n in range(1, 600)
    }
    rows = [[n, EPOCH_NS + n * 9 * STEP_NS, took[n], "timed" if n in timed else "plain"] for n in took]
    roll(raw, "rank-00000.roll.0", "steps", *rows)
    assert finished(raw).rank(0).overhead == Overhead(pct=100.0, low_pct=100.0, high_pct=100.0)


def test_nobody_else_may_read_what_is_recorded(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    (tmp_path / "run").chmod(0o700)
    finished(raw)
    for path in [tmp_path / "run", *(tmp_path / "run").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_ranks_can_be_read_by_other_processes(tmp_path):
    raw = make(tmp_path / "run", ranks=2)
    for rank in (0, 1):
        whole_rank(raw, rank, 2, (3, 5))
    with ProcessPoolExecutor(1) as executor:
        run = finished(raw, executor=executor)
    assert run.ranks == [0, 1]
    assert len(run.events(1)) == 12


def test_windows_of_a_rank_are_joined_and_their_ids_kept_apart(tmp_path):
    raw = make(tmp_path / "run", every=10)
    whole_rank(raw, 0, 1, (3, 5), (13, 15), steps=20)
    run = finished(raw)
    assert run.rank(0).windows == (Window(first=3, last=5), Window(first=13, last=15))
    events = run.events(0)
    steps = events.where(events.is_kind("step"))
    assert steps.ints("step").tolist() == [3, 4, 5, 13, 14, 15]
    kernels, calls = (events.where(events.is_kind(kind)) for kind in ("kernel", "runtime"))
    assert kernels.ints("correlation").tolist() == calls.ints("correlation").tolist()
    assert len(set(calls.ints("correlation").tolist())) == 6
    assert (events.ints("start_ns")[1:] >= events.ints("start_ns")[:-1]).all()


def shapes_of(run) -> dict[str, set[str | None]]:
    events = run.events(0).where(run.events(0).is_kind("op"))
    found = {name: set() for name in events.texts("name")}
    for name, shapes in zip(events.texts("name"), events.texts("shapes"), strict=True):
        found[name].add(shapes)
    return found


def test_timed_operations_get_the_shapes_of_the_steps_with_stacks(tmp_path):
    raw = make(tmp_path / "run", stack_steps=2, shapes=True)
    shaped_rank(raw, 8, 8)
    run = finished(raw)
    assert run.warnings == ()
    assert run.rank(0).windows == (Window(first=3, last=5), Window(first=7, last=8, stacks=True))
    assert shapes_of(run) == {"aten::linear": {"[[8, 4]]"}, "aten::mm": {None}}
    assert set(run.events(0).ints("step").tolist()) == {3, 4, 5}


@pytest.mark.parametrize("widths", [(8, 9), ()])
def test_shapes_that_are_not_those_of_the_timed_steps_are_left_out_with_a_warning(tmp_path, widths):
    """They differ from step to step, or the job ended before the steps that record them."""
    raw = make(tmp_path / "run", stack_steps=2, shapes=True)
    shaped_rank(raw, *widths)
    run = finished(raw)
    (warning,) = run.warnings
    assert (warning.code, warning.ranks) == ("shapes-unknown", (0,))
    assert "--stack-steps 0" in warning.message
    assert shapes_of(run) == {"aten::linear": {None}, "aten::mm": {None}}


def test_where_one_window_lacks_shapes_no_window_has_them(tmp_path):
    raw = make(tmp_path / "run", stack_steps=2, shapes=True, every=10)
    shaped_rank(raw, 8, 8)
    trace(raw, 0, 13, 15)
    note(raw, 0, window(13, 15))
    run = finished(raw)
    assert [warning.code for warning in run.warnings] == ["shapes-unknown"]
    assert "from step 13" in run.warnings[0].message
    assert shapes_of(run) == {"aten::linear": {None}, "aten::mm": {None}}


def with_jobs_trace(raw, path, first: int, last: int, rank: int = 0, **fields) -> None:
    """A rank of ten steps whose own profiler was on from the middle of step `first` to the middle of step `last`."""
    note(
        raw, rank, identity(rank, 2), {"kind": "lost", "first": 3, "phase": "timed", "reason": LossReason.JOBS_PROFILER}
    )
    at = [EPOCH_NS + number * STEP_NS + STEP_NS // 2 for number in (first, last)]
    note(raw, rank, {"kind": "jobs-trace", "path": str(path), "start_ns": at[0], "end_ns": at[1]} | fields)
    roll(raw, f"rank-{rank:05d}.roll.0", "steps", *[step(number, "timed") for number in range(1, 11)])
    note(raw, rank, {"kind": "end", "step": 11})


def test_a_trace_that_the_job_wrote_itself_is_taken_in_with_the_steps_of_the_job(tmp_path):
    raw = make(tmp_path / "run")
    written = trace(raw, 0, 2, 8).rename(tmp_path / "mine.json")
    # The profiler was told of other steps than the job's.
    written.write_text(written.read_text().replace("ProfilerStep#", "ProfilerStep#10"))
    with_jobs_trace(raw, written, 2, 7)
    run = finished(raw)
    assert run.rank(0).windows == (Window(first=3, last=6),)
    events = run.events(0)
    kernels = events.where(events.is_kind("kernel"))
    assert kernels.ints("step").tolist() == [3, 4, 5, 6]
    assert not events.is_kind("step").any()
    assert written.exists()
    assert ("windows-lost", (0,)) in codes(run)


def test_a_trace_of_the_jobs_that_cannot_be_taken_in_is_named_and_left_alone(tmp_path):
    cases = {
        "gone": "No such file",
        "another": "it is of rank 1",
        "early": "it contains no complete step",
        "large": "more than the 1000 B allowed",
        "broken": "is not valid JSON",
    }
    for name, reason in cases.items():
        raw = make(tmp_path / name, max_trace=1_000 if name == "large" else 1 << 20)
        written = trace(raw, int(name == "another"), 2, 8).rename(tmp_path / f"{name}.json")
        if name == "broken":
            written.write_text(written.read_text()[:500])
        with_jobs_trace(raw, tmp_path / "no" if name == "gone" else written, 2, 2 if name == "early" else 7)
        run = finished(raw)
        (message,) = [warning.message for warning in run.warnings if warning.code == "jobs-trace"]
        assert reason in message
        assert run.rank(0).windows == ()
        assert len(run.steps(0)) == 10
        assert written.exists()


def test_a_transfer_that_reaches_into_the_window_is_told_by_its_call_before_it(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    begins_ns = EPOCH_NS + 3 * STEP_NS
    begins_us = begins_ns / 1000
    trace(
        raw,
        0,
        3,
        5,
        event("cpu_op", "c10d::allreduce_", begins_us - 300, 20),
        event("cpu_op", "gloo:all_reduce", begins_us - 200, 250, tid=20),
    )
    entry = {"process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce", "collective_seq_id": 5}
    entry |= {"time_created_ns": begins_ns - 290_000, "input_sizes": [[10]], "input_dtypes": ["Float"]}
    (raw / "rank-00000.calls.3.json").write_text(json.dumps({"version": "2.10", "entries": [entry]}))
    events = finished(raw).events(0)
    assert "c10d::allreduce_" not in events.texts("name")
    transfers = events.where(events.is_kind("collective"))
    assert (transfers.ints("coll_seq").tolist(), transfers.ints("in_bytes").tolist()) == ([5], [40])


def test_a_step_that_was_not_finished_is_cut_off(tmp_path):
    raw = make(tmp_path / "run")
    note(raw, 0, identity(), window(3, 4), {"kind": "end", "step": 5})
    trace(raw, 0, 3, 5)
    run = finished(raw)
    assert run.events(0).ints("step").max() == 4
    assert codes(run) == [("window-short", (0,))]
    assert "has 2 of 3 steps" in run.warnings[0].message


def test_a_flight_recording_is_a_run_without_windows(tmp_path):
    raw = make(tmp_path / "run", windows=False)
    whole_rank(raw)
    snapshot = {"reason": "hang", "rank": 0, "at_ns": 5, "step": 8, "since_ns": 1}
    (raw / "flight-00000.0.json").write_bytes(msgspec.json.encode(snapshot))
    run = finished(raw)
    assert (run.ranks, run.warnings) == ([0], ())
    assert (len(run.events(0)), len(run.steps(0))) == (0, 8)
    assert [one.reason for one in run.flight(0).snapshots] == ["hang"]
    assert not run.flight(0).died


def test_a_killed_rank_and_its_last_window_are_named(tmp_path):
    raw = make(tmp_path / "run", ranks=2, every=10)
    whole_rank(raw, 0, 2, (3, 5), (13, 15), steps=16)
    note(raw, 1, identity(1, 2), window(3, 5))
    trace(raw, 1, 3, 5)
    rows = [step(number, "timed" if number % 10 in (3, 4, 5) else "plain") for number in range(1, 15)]
    roll(raw, "rank-00001.roll.0", "steps", *rows)
    (raw / "rank-00001.timed.13.json.part").write_text('{"traceEvents": [')
    run = finished(raw, exit_code=1)
    assert run.ranks == [0, 1]
    assert codes(run) == [("rank-killed", (1,)), ("windows-lost", (1,))]
    assert "its last recorded step is 14" in run.warnings[0].message
    assert "1 window at step 13 lost" in run.warnings[1].message
    assert (run.rank(1).ended, run.rank(1).windows_lost, run.flight(1).died) == (False, 1, True)
    assert not raw.exists()


def test_a_rank_killed_before_its_window_is_told_apart_from_those_with_events(tmp_path):
    raw = make(tmp_path / "run", ranks=2)
    whole_rank(raw, 0, 2, (3, 5))
    note(raw, 1, identity(1, 2))
    roll(raw, "rank-00001.roll.0", "steps", step(1), step(2))
    run = finished(raw, exit_code=1)
    assert run.ranks == [0]
    assert codes(run) == [("rank-killed", (1,)), ("no-timed-window", (1,))]
    assert len(run.steps(1)) == 2


def test_a_rank_that_left_nothing_is_missing(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, 1, 3, (3, 5))
    assert codes(finished(raw)) == [("rank-missing", (0, 2))]


def test_what_the_rank_could_not_keep_is_counted(tmp_path):
    raw = make(tmp_path / "run", every=10)
    reason = "the traces exceeded the disk limit"
    whole_rank(raw, 0, 1, (3, 5), (13, 15), steps=20)
    note(raw, 0, {"kind": "lost", "first": 3, "phase": "timed", "reason": reason})
    (raw / "rank-00000.timed.3.json").unlink()
    note(raw, 0, {"kind": "missed", "at": 17, "step": 19}, {"kind": "profiler-taken", "step": 18})
    note(raw, 0, {"kind": "fault", "message": "watch for hangs ended: no"})
    run = finished(raw)
    assert run.rank(0).windows == (Window(first=13, last=15),)
    assert [code for code, _ in codes(run)] == ["recorder-fault", "profiler-taken", "order-missed", "windows-lost"]
    assert run.warnings[-1].message == f"rank 0: 1 window at step 3 lost: {reason}"


def test_dropped_steps_are_counted_by_their_numbers(tmp_path):
    raw = make(tmp_path / "run", windows=False)
    note(raw, 0, identity(), {"kind": "end", "step": 10})
    roll(raw, "rank-00000.roll.1", "steps", step(5), step(6))
    roll(raw, "rank-00000.roll.0", "steps", step(7), step(8))
    run = finished(raw)
    assert run.steps(0).ints("step").tolist() == [5, 6, 7, 8]
    assert run.rank(0).dropped_steps == 4
    assert codes(run) == [("steps-dropped", (0,))]


# What cannot be read


def test_a_truncated_trace_is_named_and_kept_and_so_is_all_the_rest(tmp_path):
    raw = make(tmp_path / "run", every=10)
    whole_rank(raw, 0, 1, (3, 5), (13, 15), (23, 25), steps=30)
    broken = raw / "rank-00000.timed.13.json"
    broken.write_bytes(broken.read_bytes()[:-40])
    (raw / "orders").mkdir()
    run = finished(raw)
    assert run.rank(0).windows == (Window(first=3, last=5), Window(first=23, last=25))
    assert codes(run) == [("rank-unreadable", (0,))]
    assert "its window from step 13 on" in run.warnings[0].message
    assert list(raw.iterdir()) == [broken]
    assert load(tmp_path / "run").meta == run.meta


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 100, b"{}", b'{"traceEvents": []}', b'{"traceEvents": [{"ph": "X"}]}']
)
def test_a_rank_whose_only_trace_is_garbage_keeps_its_steps(tmp_path, content):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    (raw / "rank-00000.timed.3.json").write_bytes(content)
    run = finished(raw)
    assert len(run.steps(0)) == 8
    assert run.rank(0).windows == ()
    assert codes(run) == [("rank-unreadable", (0,))]
    assert (raw / "rank-00000.timed.3.json").exists()


def test_a_trace_of_other_steps_than_noted_is_not_taken(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    trace(raw, 0, 13, 15).rename(raw / "rank-00000.timed.3.json")
    run = finished(raw)
    assert run.rank(0).windows == ()
    assert "does not contain its first step" in run.warnings[0].message


@pytest.mark.parametrize(
    "name", ["rank-00001.jsonl", "flight-00000.1.json", "rank-00000.calls.3.json"], ids=["notes", "snapshot", "calls"]
)
def test_garbage_is_named_and_kept(tmp_path, name):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    (raw / name).write_bytes(b"\xff{garbage" * 10)
    run = finished(raw)
    assert run.rank(0).windows == (Window(first=3, last=5),)
    assert [code for code, _ in codes(run)] == ["rank-unreadable"]
    assert [file.name for file in raw.iterdir()] == [name]


@pytest.mark.parametrize("name", ["rank-00000.jsonl", "rank-00000.roll.0.jsonl"])
@pytest.mark.parametrize(
    "line",
    [b'{"kind": "st', b"\xff\xfe", b"[]", b'{"kind": "else"}', b"[" * 100_000, b'{"kind": "steps", "rows": [[1]]}'],
    ids=["torn", "no text", "list", "kind", "deep", "short"],
)
def test_lines_that_are_no_rows_are_counted_and_the_others_read(tmp_path, name, line):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    with (raw / name).open("ab") as file:
        file.write(line)
    run = finished(raw)
    assert len(run.steps(0)) == 8
    assert [warning.message for warning in run.warnings] == [f"rank 0: {name}: 1 line is corrupt"]
    assert not raw.exists()


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("steps", [10**12, 1, 1, "plain"]),
        ("steps", [9, 10**30, 1, "plain"]),
        ("steps", [9, 1, -1, "plain"]),
        ("memories", [9, None, 1, 1 << 63, 0, 0, 0]),
        ("nexts", [0, 0, -5, None, 0, None, 1, 2, None, None, True]),
    ],
)
def test_numbers_that_no_table_can_hold_are_no_rows(tmp_path, kind, row):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    roll(raw, "rank-00000.roll.0", kind, row)
    run = finished(raw)
    assert len(run.steps(0)) == 8
    assert codes(run) == [("rank-unreadable", (0,))]


def test_notes_under_another_ranks_name_are_not_taken(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 2, (3, 5))
    note(raw, 1, identity(0, 2))
    assert [code for code, _ in codes(finished(raw))] == ["rank-unreadable", "rank-missing"]


def test_where_the_run_cannot_be_written_raw_stays_for_later(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    (tmp_path / "run" / "steps").write_text("a file where a folder should be")
    with pytest.raises(OutputError):
        finished(raw)
    assert raw.exists()
    (tmp_path / "run" / "steps").unlink()
    assert load(tmp_path / "run").rank(0).windows == (Window(first=3, last=5),)
    assert not raw.exists()


# Nothing recorded


def test_a_job_that_ended_before_its_window_leaves_no_run(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, steps=2)
    with pytest.raises(InputError, match="the first timed step is 3, but the job ended after 3 steps"):
        finished(raw)
    assert not (tmp_path / "run").exists()


def test_a_job_that_was_killed_before_its_window_leaves_one(tmp_path):
    raw = make(tmp_path / "run")
    note(raw, 0, identity())
    roll(raw, "rank-00000.roll.0", "steps", step(1))
    run = finished(raw, exit_code=137)
    assert codes(run) == [("rank-killed", (0,)), ("no-timed-window", (0,))]
    assert len(run.steps(0)) == 1


# A Run without a launcher


def test_a_run_whose_launcher_was_killed_is_finished_when_it_is_opened(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    run = load(tmp_path / "run")
    assert (run.meta.command, run.meta.exit_code, run.meta.created_ns) == (("train.py",), None, EPOCH_NS)
    assert [code for code, _ in codes(run)] == ["launcher-gone"]
    assert not raw.exists()
    assert load(tmp_path / "run").meta == run.meta


def test_a_run_whose_job_lives_is_read_as_it_stands(tmp_path):
    raw = make(tmp_path / "run", every=10)
    note(raw, 0, identity(), window(3, 5))
    trace(raw, 0, 3, 5)
    rows = [step(number, "timed" if number % 10 in (3, 4, 5) else "plain") for number in range(1, 15)]
    roll(raw, "rank-00000.roll.0", "steps", *rows)
    with (raw / "rank-00000.jsonl").open("a") as rank:
        fcntl.flock(rank, fcntl.LOCK_EX)
        run = load(tmp_path / "run")
        assert [code for code, _ in codes(run)] == ["still-running"]
        assert (run.rank(0).windows, run.flight(0).alive) == ((Window(first=3, last=5),), True)
        assert len(run.events(0)) == 12
        assert len(run.steps(0)) == 14
        assert len(run.stages(0)) == 0
    assert raw.exists()
    assert [code for code, _ in codes(load(tmp_path / "run"))] == ["launcher-gone", "rank-killed", "windows-lost"]


def test_a_rank_that_outlives_its_command_is_not_cut_off(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    with (raw / "rank-00000.jsonl").open("a") as rank:
        fcntl.flock(rank, fcntl.LOCK_EX)
        run = finished(raw, exit_code=137)
        assert codes(run) == [("still-running", ())]
        assert run.meta.exit_code == 137
    assert codes(load(tmp_path / "run")) == []
    assert load(tmp_path / "run").meta.exit_code == 137
    assert not raw.exists()


@pytest.mark.parametrize("garbage", ["job.json", "settings.json"])
def test_garbage_from_the_launcher_costs_what_it_said_alone(tmp_path, garbage):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    (raw / garbage).write_bytes(b"\xff[" * 10_000)
    assert load(tmp_path / "run").rank(0).windows == (Window(first=3, last=5),)


def test_what_others_may_write_is_read_but_not_removed(tmp_path):
    raw = make(tmp_path / "run")
    whole_rank(raw, 0, 1, (3, 5))
    raw.chmod(0o777)
    run = load(tmp_path / "run")
    assert len(run.events(0)) == 12
    assert raw.exists()
    assert not (tmp_path / "run" / "run.json").exists()


def test_an_unfinished_run_in_which_nothing_was_recorded_stays_as_it_is(tmp_path):
    raw = make(tmp_path / "run")
    with pytest.raises(InputError, match=r"no torch\.optim optimizer stepped"):
        load(tmp_path / "run")
    assert raw.exists()


def test_a_folder_called_raw_makes_no_run_of_a_folder_of_traces(tmp_path):
    trace(tmp_path, 0, 3, 5)
    (tmp_path / "raw").mkdir()
    assert load(tmp_path).meta.source == "kineto"


# Hosts


def test_hosts_are_brought_to_the_clock_of_rank_0(tmp_path):
    raw = make(tmp_path / "run", ranks=2)
    whole_rank(raw, 0, 2, (3, 5))
    note(raw, 1, identity(1, 2, host="b"))
    trace(raw, 1, 3, 5)
    roll(raw, "rank-00001.roll.0", "steps", *(step(number) for number in range(1, 9)))
    reading = {"kind": "clock", "offset_ns": 300_000, "rtt_ns": 50}
    note(raw, 1, *(reading | {"at_ns": EPOCH_NS + at * STEP_NS} for at in (0, 9)), window(3, 5))
    note(raw, 1, {"kind": "end", "step": 9})
    run = finished(raw)
    assert run.rank(0).clock_offset_ns is None
    assert (run.rank(1).clock_offset_ns, run.rank(1).clock_residual_ns) == (300_000, 25)
    for name in ("events", "steps"):
        first, second = (getattr(run, name)(rank).ints("start_ns") for rank in (0, 1))
        assert set((first - second).tolist()) == {300_000}


def starting(raw, rank, *, since_ns=5, world_size=2, fatal=None, looked_at=None):
    """A process that was to be `rank` and ended no step, with the stacks and the snapshot that it left."""
    prefix = f"starting-{rank:05d}.{since_ns}"
    (raw / f"{prefix}.jsonl").write_text(json.dumps(identity(rank, world_size)) + "\n")
    (raw / f"{prefix}.txt").write_text(fatal or "")
    if looked_at is not None:
        (raw / f"{prefix}.0.json").write_bytes(msgspec.json.encode(looked_at))


def test_ranks_that_stood_still_before_their_first_step_make_a_run(tmp_path):
    raw = make(tmp_path / "run", ranks=2)
    starting(raw, 0, fatal=SIGTERM_TEXT)
    starting(raw, 1, looked_at=snapshot(1, [], step=0, stands_still=True))
    run = finished(raw, exit_code=143)
    assert (run.ranks, run.world_size) == ([0, 1], 2)
    assert codes(run) == [("no-step", (0,)), ("no-step", (1,))]
    assert [(run.flight(rank).starting, run.flight(rank).ended) for rank in (0, 1)] == [(True, False)] * 2
    assert run.flight(0).was_terminated
    assert run.flight(1).snapshots[0].stands_still
    assert not len(run.steps(0))


def test_of_several_lives_of_a_rank_that_ended_no_step_the_last_counts(tmp_path):
    raw = make(tmp_path / "run")
    starting(raw, 0, since_ns=99, world_size=1, fatal="an earlier life")
    starting(raw, 0, since_ns=100, world_size=1, fatal=SIGTERM_TEXT)
    assert finished(raw, exit_code=1).flight(0).fatal == SIGTERM_TEXT


def test_helpers_that_never_train_are_no_ranks(tmp_path):
    """Where the command ended well, where a rank of that number trained, and where their own exception ended them."""
    raw = make(tmp_path / "run")
    starting(raw, 0, fatal=SIGTERM_TEXT)
    with pytest.raises(InputError, match="nothing was recorded"):
        finished(raw, exit_code=0)
    raw = make(tmp_path / "trained")
    whole_rank(raw, 0, 1, (3, 5))
    starting(raw, 0, world_size=1, fatal=SIGTERM_TEXT)
    run = finished(raw, exit_code=1)
    assert (run.ranks, run.flight(0).starting, codes(run)) == ([0], False, [])
    raw = make(tmp_path / "raised")
    starting(raw, 0, looked_at=snapshot(0, [], step=0, reason="error", error="ValueError: no such file"))
    with pytest.raises(InputError, match="nothing was recorded"):
        finished(raw, exit_code=1)
