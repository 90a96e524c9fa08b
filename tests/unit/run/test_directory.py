"""The Run directory: what is written comes back; what is missing, broken or foreign is named."""

import json
import os
import stat

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from esprof import load
from esprof.core.errors import InputError
from esprof.run.directory import SCHEMAS, read_run
from esprof.run.files import table_path
from esprof.run.flight.log import FlightLog, Snapshot, StackFrame, StackThread
from esprof.run.groups import Group
from esprof.run.run import RankMeta, Run, RunMeta, RunWarning, Window
from esprof.run.schema import EVENTS, STEPS, table
from tests.cases.run_directory import write_run

META = RunMeta(
    created_ns=1_712_000_000_000_000_000,
    command=("torchrun", "train.py"),
    exit_code=0,
    versions={"torch": "2.13.0"},
    world_size=2,
    ranks=(
        RankMeta(rank=0, host="node0", device="H100", clock_offset_ns=-5, windows=(Window(first=3, last=5),), events=2),
        RankMeta(rank=1, host="node1", events=2, peak_memory=1 << 33, peak_memory_of="cuda"),
    ),
    groups=(Group(name="0-1", ranks=(0, 1), backend="gloo"),),
    warnings=(RunWarning("overhead-high", "recording cost 7 %", (1,)),),
)


def events(rank):
    names = ["aten::mm", None if rank else "gloo:all_reduce"]
    return table({"name": names, "kind": ["op", "collective"], "start_ns": [1, 2], "dur_ns": [5, None]}, EVENTS)


def steps(rank):
    return table({"step": [3, 4], "start_ns": [1, 9], "dur_ns": [8, 8], "phase": ["timed", "plain"]}, STEPS)


@pytest.fixture
def run(tmp_path):
    """The path of a whole Run of two ranks."""
    path = tmp_path / "run"
    tables = {("events", rank): events(rank) for rank in range(2)} | {("steps", rank): steps(rank) for rank in range(2)}
    write_run(path, META, tables)
    return path


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["run.json", "probes.json", "history.jsonl", "events/rank-00000.parquet"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_device_in_place_of_a_file_is_unreadable(run, name, kind):
    path = run / name
    path.unlink(missing_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    if name == "run.json":
        with pytest.raises(InputError, match="it is no regular file"):
            load(run)
    else:
        assert "it is no regular file" in load(run).warnings[-1].message


@pytest.mark.timeout(30)
def test_a_pipe_among_traces_is_none(tmp_path):
    os.mkfifo(tmp_path / "trace.json")
    with pytest.raises(InputError, match="contains no run"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["created_ns", "events", "peak_memory", "clock_residual_ns"])
def test_a_number_that_nothing_could_hold_is_refused(run, name):
    about = msgspec.json.decode((run / "run.json").read_bytes())
    (about if name == "created_ns" else about["ranks"][0])[name] = 10**400
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=name):
        load(run)


def test_what_is_written_comes_back(run):
    opened = load(run)
    assert isinstance(opened, Run)
    assert (opened.meta, opened.warnings, opened.path) == (META, META.warnings, run)
    for rank in range(2):
        assert opened.events(rank).arrow.equals(events(rank).arrow)
        assert opened.steps(rank).arrow.equals(steps(rank).arrow)
        assert len(opened.stages(rank)) == len(opened.stacks(rank)) == 0


def test_a_run_is_read_again_with_fields_of_a_newer_version(run):
    written = msgspec.json.decode((run / "run.json").read_bytes()) | {"mood": "good"}
    (run / "run.json").write_bytes(msgspec.json.encode(written))
    assert load(run).meta == META


def test_secrets_in_a_command_that_an_earlier_version_stored_are_not_shown(run):
    written = msgspec.json.decode((run / "run.json").read_bytes()) | {"command": ["train.py", "--wandb-key=abc"]}
    (run / "run.json").write_bytes(msgspec.json.encode(written))
    assert load(run).meta.command == ("train.py", "--wandb-key=REDACTED")


def test_no_temporary_file_stays(run):
    files = sorted(str(file.relative_to(run)) for file in run.rglob("*") if file.is_file())
    assert files == sorted(
        [f"{t}/rank-0000{rank}.parquet" for t in ("events", "steps") for rank in (0, 1)] + ["run.json"]
    )


def test_a_run_is_for_its_owner_alone(run):
    folders = {run, run / "events", run / "steps"}
    for path in [run, *run.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path in folders else 0o600)


def test_a_rank_without_a_window_is_not_among_those_with_events(run):
    ranks = tuple(msgspec.structs.replace(rank, windows=(), events=2 * rank.rank) for rank in META.ranks)
    write_run(run, msgspec.structs.replace(META, ranks=ranks), {})
    assert load(run).ranks == [1]
    ranks = tuple(msgspec.structs.replace(rank, events=0) for rank in ranks)
    write_run(run, msgspec.structs.replace(META, ranks=ranks), {})
    assert load(run).ranks == [0, 1]


def test_a_flight_log_comes_back_and_a_rank_without_one_ended_well(run):
    threads = (StackThread(name="MainThread", training=True, frames=(StackFrame("train.py", 7, "main"),)),)
    snapshot = Snapshot(reason="hang", rank=1, at_ns=9, step=4, since_ns=2, threads=threads)
    log = FlightLog(snapshots=(snapshot,), fatal="Fatal Python error: Aborted")
    write_run(run, META, {}, {1: log})
    opened = load(run)
    assert opened.flight(1) == log
    assert not opened.flight(0).died
    (run / "flight" / "rank-00001.json").write_bytes(b"[")
    with pytest.raises(InputError, match="is not a valid flight log"):
        load(run).flight(1)


def test_a_window_of_any_length_can_be_shown(run):
    meta = json.loads((run / "run.json").read_text())
    meta["ranks"][0]["windows"] = [{"first": 3, "last": 1 << 62}]
    (run / "run.json").write_text(json.dumps(meta))
    assert "2 ranks" in repr(load(run))


# Missing and broken ranks


def damage_missing(path):
    path.unlink()


def damage_truncated(path):
    path.write_bytes(path.read_bytes()[:-100])


def damage_garbage(path):
    path.write_bytes(b"\x00garbage" * 100)


def damage_empty(path):
    path.write_bytes(b"")


def damage_names(path):
    path.write_bytes(path.read_bytes().replace(b"start_ns", b"st\xffrt_ns"))


def damage_columns(path):
    pq.write_table(pq.read_table(path).drop_columns(["start_ns"]), path)


@pytest.mark.parametrize(
    "damage", [damage_missing, damage_truncated, damage_garbage, damage_empty, damage_names, damage_columns]
)
def test_a_rank_that_cannot_be_read_is_left_out_and_named(run, damage):
    damage(table_path(run, "events", 1))
    opened = load(run)
    assert (opened.ranks, opened.world_size) == ([0], 2)
    assert [(w.code, w.ranks) for w in opened.warnings] == [("overhead-high", (1,)), ("rank-unreadable", (1,))]
    assert opened.warnings[1].message.startswith("rank 1: its events ")


@pytest.mark.parametrize("damage", [damage_truncated, damage_garbage, damage_empty, damage_columns])
def test_a_side_table_that_cannot_be_read_is_named_and_taken_as_absent(run, damage):
    damage(table_path(run, "steps", 1))
    opened = load(run)
    assert opened.ranks == [0, 1]
    assert [(w.code, w.ranks) for w in opened.warnings][1:] == [("table-unreadable", (1,))]
    assert opened.steps(0).ints("step").tolist() == [3, 4]
    assert opened.steps(1).ints("step").tolist() == [0]  # The window, from the events.


def test_where_no_rank_is_whole_all_faults_are_told(run):
    damage_missing(table_path(run, "events", 0))
    damage_garbage(table_path(run, "events", 1))
    with pytest.raises(InputError, match="no rank of this run is readable") as caught:
        load(run)
    assert "rank 0: its events are missing" in str(caught.value)
    assert "rank 1: its events cannot be read" in str(caught.value)


def test_data_broken_behind_a_whole_footer_names_the_file(run):
    path = table_path(run, "events", 1)
    raw = bytearray(path.read_bytes())
    raw[4:200] = bytes(196)
    path.write_bytes(raw)
    opened = load(run)
    with pytest.raises(InputError, match="cannot be read") as caught:
        opened.events(1)
    assert caught.value.path == path
    assert caught.value.remedy
    assert caught.value.rank == 1


def test_events_that_go_after_the_run_was_opened_are_missed(run):
    path = table_path(run, "events", 1)
    opened = load(run)
    path.unlink()
    with pytest.raises(InputError, match="missing") as caught:
        opened.events(1)
    assert (caught.value.path, caught.value.rank) == (path, 1)


def test_tables_in_another_order_or_with_more_columns_read(run):
    path = table_path(run, "steps", 0)
    rows = pq.read_table(path)
    pq.write_table(rows.select(rows.column_names[::-1]).append_column("mood", pa.array(["good", "bad"])), path)
    assert load(run).steps(0).arrow.equals(steps(0).arrow)


def test_a_run_of_an_earlier_version_lacks_what_was_added_since(run):
    for name, added in (("steps", ["cpu_ns", "ready_ns", "throttled_ns"]), ("events", ["channel"])):
        path = table_path(run, name, 0)
        pq.write_table(pq.read_table(path).drop_columns(added), path)
    opened = load(run)
    assert opened.warnings == META.warnings
    assert opened.steps(0).arrow.equals(steps(0).arrow)
    assert set(opened.events(0).texts("channel")) == {None}


def test_a_small_file_that_unpacks_to_a_large_table_is_left_out(run, monkeypatch):
    path = table_path(run, "events", 1)
    count = 1_000_000
    zeros = {field.name: np.zeros(count, np.int64) for field in EVENTS if pa.types.is_int64(field.type)}
    pq.write_table(table(zeros, EVENTS).arrow, path, compression="zstd")
    assert path.stat().st_size < 200_000
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", str(100 << 20))
    opened = load(run)
    assert opened.ranks == [0]
    assert "larger than the memory limit (1000000 rows)" in opened.warnings[-1].message


# A broken or foreign run.json


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a valid run.json"),
        (b"{", "is not a valid run.json"),
        (b"\xff\xfe\x00", "is not a valid run.json"),
        (b'{"schema": "\xff"}', "is not a valid run.json"),
        (b'{"x": ' + b"[" * 100_000, "is not a valid run.json"),
        (b"[]", "is not a valid run.json"),
        (b'{"project": "somebody else\'s"}', "is not a valid run.json"),
        (b'{"schema": 1}', "is not a valid run.json"),
        (b'{"schema": "esprof.run/2", "other": 1}', "'esprof.run/2' is not 'esprof.run/1'"),
        (b'{"schema": "\\u001b[31m"}', "is not 'esprof.run/1'"),
        (b'{"schema": "esprof.run/1"}', "is not a valid run.json"),
        (b'{"schema": "esprof.run/1", "world_size": 0, "ranks": []}', "is not a valid run.json"),
        (b'{"schema": "esprof.run/1", "world_size": 1000000000000, "ranks": []}', "is not a valid run.json"),
        (b'{"schema": "esprof.run/1", "world_size": 1, "ranks": [{"rank": -1}]}', "is not a valid run.json"),
        (b'{"schema": "esprof.run/1", "world_size": 1, "ranks": []}', "no rank of this run is readable"),
    ],
)
def test_a_run_json_that_is_none(tmp_path, content, reason):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert reason in caught.value.reason
    assert caught.value.remedy
    assert "\x1b" not in str(caught.value)


def test_a_folder_without_run_json_is_not_a_run(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file") as caught:
        read_run(tmp_path)
    assert caught.value.path == tmp_path / "run.json"


def test_a_rank_without_events_has_no_steps(tmp_path):
    meta = msgspec.structs.replace(META, warnings=())
    write_run(tmp_path, meta, {("events", rank): table({}, EVENTS) for rank in range(2)})
    assert len(load(tmp_path).steps(0)) == 0


def test_every_table_has_a_schema():
    assert set(SCHEMAS) == {
        "events",
        "steps",
        "stages",
        "memory",
        "samples",
        "stacks",
        "accesses",
        "labels",
        "travels",
        "allocations",
        "modules",
    }
