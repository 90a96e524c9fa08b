"""Dumps of PyTorch's Flight Recorder made by hand, as pickles with the opcodes of torch's pickler, and as JSON."""

import json
import os
import pickle

S = 1_000_000_000
BEGAN_NS = 1_700_000_000 * S


def entry(
    number, name="all_reduce", *, over=True, group=("0", "default_pg"), elements=64, line=16, backend="nccl", **fields
):
    """An entry of a dump as of torch 2.13; with `over=False` the rank still waits in the collective."""
    frames = [
        {
            "name": name,
            "filename": "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
            "line": 9,
        },
        {"name": "evaluate", "filename": "/job/train.py", "line": line},
    ]
    return {
        "frames": frames,
        "record_id": number,
        "process_group": tuple(group),
        "collective_seq_id": number,
        "profiling_name": f"{backend}:{name}",
        "time_created_ns": BEGAN_NS + number * S,
        "input_sizes": [[elements]],
        "input_dtypes": ["Float"],
        "state": "completed" if over else "started",
        "time_discovered_started_ns": None,
        "retired": over,
        "is_p2p": False,
    } | fields


def dump(*entries, world=3, **fields):
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}} if world else {}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries)} | fields


def pickled(document):
    """The pickle of a document with the opcodes that torch writes, which memoizes only texts."""
    return b"\x80\x02" + _instructions(document) + b"."


def _instructions(value):
    if isinstance(value, dict):
        items = b"".join(_instructions(key) + _instructions(item) for key, item in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_instructions, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_instructions, value)) + b"t"
    return pickle.dumps(value, 2)[2:-1]


def write(folder, by_rank, *, seen_s=600, as_json=False):
    """One file per rank, with modification times `seen_s` after the first collective."""
    folder.mkdir(exist_ok=True)
    for rank, document in by_rank.items():
        file = folder / (f"fr_rank{rank}.json" if as_json else f"nccl_trace_rank_{rank}")
        file.write_bytes(json.dumps(document).encode() if as_json else pickled(document))
        os.utime(file, ns=(BEGAN_NS + seen_s * S, BEGAN_NS + seen_s * S))
    return folder


def hung(world=3, absent=1):
    """Dumps of a job in which `absent` did not enter collective 4."""
    past = [entry(number) for number in range(1, 4)]
    waits = entry(4, over=False, line=18)
    return {rank: dump(*past, *([] if rank == absent else [waits]), world=world) for rank in range(world)}
