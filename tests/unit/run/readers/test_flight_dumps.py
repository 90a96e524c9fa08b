"""Dumps of PyTorch's Flight Recorder as a Run, and what `diagnose` makes of them."""

import os
import pickle

import pytest

from esprof import load
from esprof.analyzers import diagnose
from esprof.core.errors import InputError
from tests.cases.flight_dumps import dump, entry, hung, pickled, write

STACKS = """=== Rank 0: http://node:1/handler/dump_traceback? ===
Thread 0x00007f00 (most recent call first):
  File "/job/train.py", line 18 in evaluate
=== Rank 1: http://node:2/handler/dump_traceback? ===
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Thread 0x00007f00 (most recent call first):
  File "/job/data.py", line 77 in read_shard
=== Rank 2: http://node:3/handler/dump_traceback? ===
Error: 503
"""


def found(path):
    diagnosis = diagnose(load(path))
    return diagnosis.findings[0] if diagnosis.findings else None


def codes(run):
    return {warning.code for warning in run.warnings}


@pytest.mark.parametrize("as_json", [False, True])
def test_the_rank_that_did_not_enter(tmp_path, as_json):
    finding = found(write(tmp_path, hung(), as_json=as_json))
    assert (finding.id, finding.ranks, finding.confidence) == ("ESP801", (1,), "medium")
    assert "rank 1 did not enter all_reduce 4, which ranks 0, 2 wait in" in finding.title
    assert finding.evidence["waited"].value == (600 - 4) * 10**9
    assert "step" not in finding.evidence


def test_places_of_a_pickle(tmp_path):
    finding = found(write(tmp_path, hung()))
    assert finding.evidence["last_entered"].of(1) == "all_reduce 3 at /job/train.py(16): evaluate"
    assert finding.evidence["stacks"].of(0) == "/job/train.py(18): evaluate"
    assert "Rank 1 last entered all_reduce 3" in diagnose(load(tmp_path)).verdict


def test_the_debug_servers_stacks_tell_where_the_missing_rank_is(tmp_path):
    write(tmp_path, hung())
    (tmp_path / "stacks_20260101_000000.txt").write_text("=== Rank 1: old ===\n")
    (tmp_path / "stacks_20260101_000100.txt").write_text(STACKS)
    finding = found(tmp_path)
    assert finding.evidence["stacks"].of(1) == "/job/data.py(77): read_shard"
    assert finding.evidence["stacks"].of(2) == "/job/train.py(18): evaluate"  # Where it entered what it waits in.


def test_a_dump_taken_before_the_others_waited_says_nothing_of_its_rank(tmp_path):
    write(tmp_path, hung())
    os.utime(tmp_path / "nccl_trace_rank_1", (1, 1))
    assert "nothing is seen of rank 1" in found(tmp_path).title


def test_a_rank_without_a_dump(tmp_path):
    dumps = hung()
    del dumps[1]
    run = load(write(tmp_path, dumps))
    assert (run.world_size, run.missing_ranks) == (3, (1,))
    assert "rank-missing" in codes(run)
    assert "nothing is seen of rank 1" in found(tmp_path).title


def test_a_short_wait_may_be_none(tmp_path):
    assert found(write(tmp_path, hung(), seen_s=5)).confidence == "low"


def test_nobody_waits(tmp_path):
    diagnosis = diagnose(load(write(tmp_path, {0: dump(entry(1)), 1: dump(entry(1))})))
    assert diagnosis.findings == ()
    assert "no rank waits for another" in diagnosis.verdict


def test_different_collectives(tmp_path):
    dumps = {0: dump(entry(1, over=False), world=2), 1: dump(entry(1, "broadcast", over=False), world=2)}
    assert found(write(tmp_path, dumps)).id == "ESP802"


def test_groups_whose_ranks_are_not_told(tmp_path):
    """As gloo dumps them: the config has a nameless group alone."""
    nameless = {"": {"name": "", "desc": "", "ranks": "[]"}}
    pair = ("7", "undefined")
    dumps = {
        0: dump(entry(1), entry(1, over=False, group=pair), pg_config=nameless),
        1: dump(entry(1), pg_config=nameless, pg_status={"7": {}}),
        2: dump(entry(1), pg_config=nameless),
    }
    run = load(write(tmp_path, dumps))
    assert "group-guessed" in codes(run)
    assert found(tmp_path).ranks == (1,)


def test_a_rank_with_dumps_of_two_backends(tmp_path):
    write(tmp_path, hung())
    for rank in range(3):
        (tmp_path / f"gloo_rank_{rank}").write_bytes(pickled(dump(entry(1, backend="gloo"))))
    assert [len(load(tmp_path).flight(rank).snapshots[0].calls) for rank in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("second", ["other_rank_0", "fr_0"])
def test_two_dumps_of_one_rank_and_backend(tmp_path, second):
    write(tmp_path, hung())
    (tmp_path / second).write_bytes(pickled(hung()[0]))
    with pytest.raises(InputError, match=r"both .* are of rank 0"):
        load(tmp_path)


@pytest.mark.parametrize(("rank", "world", "how"), [(0, 4, "3 and 4 ranks"), (5, 3, "rank 5 are not|rank 5")])
def test_dumps_of_two_jobs(tmp_path, rank, world, how):
    write(tmp_path, hung())
    (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickled(dump(entry(1), world=world)))
    with pytest.raises(InputError, match=how):
        load(tmp_path)


def test_a_broken_dump_is_left_out_and_named(tmp_path):
    write(tmp_path, hung())
    whole = (tmp_path / "nccl_trace_rank_2").read_bytes()
    (tmp_path / "nccl_trace_rank_2").write_bytes(whole[:-9])
    run = load(tmp_path)
    assert run.ranks == [0, 1]
    assert any("truncated" in warning.message for warning in run.warnings)
    assert found(tmp_path).ranks == (1,)


class _Runs:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_dump_that_wants_to_run_a_command(tmp_path):
    mark = tmp_path / "ran"
    call = pickle.dumps(_Runs(f"touch {mark}"), 2)[2:-1]
    head = pickled({"version": "2.10"})[:-2]  # The dict still open.
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(head + pickle.dumps("entries", 2)[2:-1] + call + b"u.")
    with pytest.raises(InputError, match="more than plain values"):
        load(file)
    assert not mark.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"collective_seq_id": "1"},
        {"collective_seq_id": -1},
        {"time_created_ns": None},
        {"time_created_ns": float("nan")},
        {"time_created_ns": -1},
        {"input_sizes": [[-4]]},
        {"process_group": ("0",)},
        {"profiling_name": None},
        {"frames": [{"name": "f"}]},
    ],
)
def test_entries_of_wrong_types(tmp_path, fields):
    write(tmp_path, {0: dump(entry(1, **fields))})
    with pytest.raises(InputError, match=r"nccl_trace_rank_0: is not a dump of the Flight Recorder: .*entries"):
        load(tmp_path)


def test_ranks_that_no_job_has(tmp_path):
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 99999999999]"}}
    assert load(write(tmp_path, {0: dump(entry(1), pg_config=config)})).world_size == 1


@pytest.mark.parametrize("name", ["nccl_trace", "rank99999999"])
def test_a_name_without_a_rank(tmp_path, name):
    (tmp_path / name).write_bytes(pickled(dump(entry(1))))
    with pytest.raises(InputError, match="has no rank in its name"):
        load(tmp_path / name)


def test_an_empty_dump_says_that_the_recorder_was_off(tmp_path):
    assert "dump-empty" in codes(load(write(tmp_path, {0: dump(), 1: dump()})))


def test_process_groups_of_dumps_have_a_graph(tmp_path):
    groups = load(write(tmp_path, hung())).analyze().process_groups()
    assert sorted(groups["0-2"]) == [0, 1, 2]
