"""Gloo transfers of a trace without shapes, told what they moved by what PyTorch's Flight Recorder noted."""

import json

import pytest

from esprof.core.errors import InputError
from esprof.run.collect.calls import RecordedCall, read_calls, with_calls
from esprof.run.groups import Group
from esprof.run.schema import EVENTS, table

WORLD, PAIR = Group(name="0-3", ranks=(0, 1, 2, 3)), Group(name="0,2", ranks=(0, 2))
GROUPS = {"0": WORLD, "7": PAIR}
MAIN, A, B, C = 1, 2, 3, 4


def call(
    number: int, made: int, elements: int = 10, *, group: str = "0", name: str = "gloo:all_reduce", **more
) -> RecordedCall:
    sizes = {"input_sizes": [[elements]], "input_dtypes": ["Float"]}
    sizes |= {"output_sizes": [[elements]], "output_dtypes": ["Float"]} | more
    who = (group, "default_pg")
    return RecordedCall(process_group=who, collective_seq_id=number, profiling_name=name, time_created_ns=made, **sizes)


def trace(calls: list[RecordedCall], *transfers: tuple[int, int, int], name: str = "gloo:all_reduce"):
    """The events of a window: a `c10d::` operation around each call, and transfers (thread, start, end)."""
    rows = [("c10d::allreduce_", "op", MAIN, one.time_created_ns - 1, one.time_created_ns + 1) for one in calls]
    rows += [(name, "collective", thread, start, end) for thread, start, end in transfers]
    rows.sort(key=lambda row: row[3])
    names, kinds, tids, starts, ends = zip(*rows, strict=True)
    durations = [end - start for start, end in zip(starts, ends, strict=True)]
    return table({"name": names, "kind": kinds, "tid": tids, "start_ns": starts, "dur_ns": durations}, EVENTS)


def described(events, calls: list[RecordedCall]) -> list[tuple]:
    """(group, number, bytes sent) of each transfer, by start."""
    found = with_calls(events, calls, GROUPS)
    transfers = found.where(found.is_kind("collective"))
    columns = transfers.texts("group"), transfers.ints("coll_seq").tolist(), transfers.ints("in_bytes").tolist()
    return list(zip(*columns, strict=True))


def test_a_transfer_is_told_group_number_sizes_and_type():
    calls = [call(5, 10, 100, output_sizes=[[4, 100]])]
    found = with_calls(trace(calls, (A, 20, 30)), calls, GROUPS)
    row = found.where(found.is_kind("collective")).to_pandas().iloc[0]
    assert (row.group, row.coll_seq, row.in_bytes, row.out_bytes, row["dtype"]) == ("0-3", 5, 400, 1600, "float")
    operation = found.where(found.is_kind("op")).to_pandas().iloc[0]
    assert operation[["group", "coll_seq", "in_bytes", "dtype"]].isna().all()


def test_calls_are_taken_up_in_the_order_in_which_they_were_made():
    calls = [call(1, 10, 1), call(2, 12, 2), call(3, 14, 3), call(4, 60, 4)]
    # B takes up the second at once, A the third when it is done with the first.
    events = trace(calls, (A, 11, 30), (B, 13, 50), (A, 31, 40), (B, 62, 70))
    assert described(events, calls) == [("0-3", 1, 4), ("0-3", 2, 8), ("0-3", 3, 12), ("0-3", 4, 16)]


def test_of_two_idle_threads_it_is_not_settled_which_took_up_which():
    calls = [call(1, 10, 1), call(2, 12, 2), call(3, 60, 3)]
    events = trace(calls, (A, 20, 30), (B, 21, 50), (A, 61, 70))
    assert described(events, calls) == [("0-3", 1, -1), ("0-3", 2, -1), ("0-3", 3, 12)]


def test_it_does_not_matter_where_both_move_the_same():
    calls = [call(1, 10, 8), call(2, 12, 8)]
    assert described(trace(calls, (A, 20, 30), (B, 21, 50)), calls) == [("0-3", 1, 32), ("0-3", 2, 32)]


def test_a_thread_that_was_busy_settles_the_order():
    calls = [call(1, 5, 1), call(2, 10, 2), call(3, 12, 3)]
    # B was at the first call until after A had taken up the second.
    events = trace(calls, (B, 6, 25), (A, 20, 30), (B, 26, 50))
    assert described(events, calls) == [("0-3", 1, 4), ("0-3", 2, 8), ("0-3", 3, 12)]


def test_groups_have_threads_of_their_own():
    calls = [call(1, 10, 1), call(9, 40, 2, group="7"), call(2, 70, 3), call(10, 100, 4, group="7")]
    events = trace(calls, (A, 11, 30), (C, 41, 60), (A, 71, 90), (C, 101, 120))
    assert described(events, calls) == [("0-3", 1, 4), ("0,2", 9, 8), ("0-3", 2, 12), ("0,2", 10, 16)]


def test_a_group_that_the_trace_does_not_know_has_no_name():
    calls = [call(1, 10, group="13")]
    assert described(trace(calls, (A, 11, 30)), calls) == [(None, 1, 40)]


def test_calls_that_the_recorder_has_forgotten_leave_the_first_transfers_untold():
    calls = [call(number, 20 * number, number) for number in range(1, 6)]
    events = trace(calls, *((A, 20 * number + 2, 20 * number + 9) for number in range(1, 6)))
    assert described(events, calls[2:]) == [
        (None, -1, -1),
        (None, -1, -1),
        ("0-3", 3, 12),
        ("0-3", 4, 16),
        ("0-3", 5, 20),
    ]


def test_a_transfer_that_the_window_did_not_live_to_see_is_no_harm():
    calls = [call(1, 10, 1), call(2, 40, 2)]
    assert described(trace(calls, (A, 11, 30)), calls) == [("0-3", 1, 4)]


def test_calls_made_outside_of_the_window_count_for_nothing():
    before, inside, elsewhere = call(1, 5, 1), call(2, 10, 2), call(3, 100, 3)
    assert described(trace([inside], (A, 11, 30)), [before, inside, elsewhere]) == [("0-3", 2, 8)]


def test_where_a_transfer_is_missing_in_the_midst_nothing_is_told():
    calls = [call(number, 20 * number, number) for number in range(1, 4)]
    assert described(trace(calls, (A, 22, 30), (A, 62, 70)), calls) == [(None, -1, -1)] * 2


def test_a_barrier_moves_nothing_and_a_type_of_unknown_size_is_not_counted():
    nothing = {"input_sizes": [], "input_dtypes": [], "output_sizes": [], "output_dtypes": []}
    calls = [call(1, 10, **nothing), call(2, 50, input_dtypes=["Quaternion"])]
    assert described(trace(calls, (A, 11, 30), (A, 51, 60)), calls) == [("0-3", 1, -1), ("0-3", 2, -1)]


def test_a_trace_without_gloo_stays_as_it_is():
    events = trace([], (A, 20, 30), name="nccl:all_reduce")
    assert with_calls(events, [call(1, 10)], GROUPS) is events


def test_calls_are_read_by_time(tmp_path):
    entry = {
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:barrier",
        "is_p2p": False,
        "state": "scheduled",
    }
    entries = [entry | {"collective_seq_id": number, "time_created_ns": 100 - number} for number in (1, 2)]
    (tmp_path / "calls").write_text(json.dumps({"version": "2.10", "entries": entries}))
    assert [one.collective_seq_id for one in read_calls(tmp_path / "calls")] == [2, 1]
    (tmp_path / "none").write_text('{"version": "2.10"}')
    assert read_calls(tmp_path / "none") == []


@pytest.mark.parametrize("content", [b"", b"\xff", b'{"entries": [{}]}', b'{"entries": ' + b"[" * 100_000])
def test_garbage_is_no_dump(tmp_path, content):
    (tmp_path / "calls").write_bytes(content)
    with pytest.raises(InputError, match="Flight Recorder"):
        read_calls(tmp_path / "calls")


def test_a_dump_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_calls(tmp_path / "calls")
