"""Allocations in traces of torch.profiler with `profile_memory=True`."""

import json

from esprof.run.collect.allocations import read_allocations
from tests.cases.graph import EPOCH_NS, events_of, step


def instant(ts: float, size: int, address: int = 16, kind: int = 0) -> dict:
    args = {"Total Reserved": 0, "Total Allocated": 4096, "Bytes": size, "Device Id": -1, "Device Type": kind}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "s": "t",
        "name": "[memory]",
        "ts": ts,
        "args": args | {"Addr": address},
    }


def test_each_instant_event_is_a_row(tmp_path):
    high = (1 << 64) - 512
    rows = [instant(30.5, -64), instant(10.25, 64), instant(20, 512, high, kind=1), {"name": "[memory]", "args": {}}]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"baseTimeNanoseconds": EPOCH_NS, "traceEvents": rows}))
    found = read_allocations(file, events_of([step(3, 15, 40)], {})).arrow.to_pylist()
    assert [row["at_ns"] - EPOCH_NS for row in found] == [10_250, 20_000, 30_500]
    assert [(row["step"], row["on_gpu"], row["address"], row["bytes"]) for row in found] == [
        (None, False, 16, 64),
        (3, True, -512, 512),
        (3, False, 16, -64),
    ]
    assert {row["allocated"] for row in found} == {4096}


def test_a_trace_without_any_has_no_rows(tmp_path):
    file = tmp_path / "trace.json"
    file.write_text('{"traceEvents": []}')
    assert len(read_allocations(file, events_of([step(0, 0, 1)], {}))) == 0
