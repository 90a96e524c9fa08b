"""Kineto traces made by hand: rows as the profiler writes them, whole documents, and files of them."""

import gzip
from decimal import Decimal
from pathlib import Path

import msgspec

EPOCH_US = 1_712_000_000_000_000
"""A moment in April 2024, in microseconds."""

MAIN, BACKWARD, GLOO = 100, 101, 102
"""Threads."""

_ENCODER = msgspec.json.Encoder(decimal_format="number")


def row(name, ts, dur=10, *, cat="cpu_op", pid=1, tid=MAIN, **args):
    """One complete event at `ts` µs after EPOCH_US. Arguments are spelt as `_SPELLING` says."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": EPOCH_US + ts, "dur": dur} | (
        {"args": {_spelt(key): value for key, value in args.items()}} if args else {}
    )


def step(number, ts, dur, **more):
    return row(f"ProfilerStep#{number}", ts, dur, **({"cat": "user_annotation"} | more))


def launch(ts, correlation, *, name="cudaLaunchKernel", dur=5, **more):
    return row(name, ts, dur, **({"cat": "cuda_runtime", "correlation": correlation} | more))


def kernel(ts, correlation, *, name="gemm", dur=20, stream=7, **more):
    gpu = {"cat": "kernel", "pid": 0, "tid": stream, "device": 0, "stream": stream, "correlation": correlation}
    return row(name, ts, dur, **(gpu | more))


def comms(ts, *, dur=30, **described):
    """The `record_param_comms` call that encloses a collective's launch."""
    return row("record_param_comms", ts, dur, **described)


def document(*rows, rank=None, world=None, groups=(), **fields):
    """A whole trace. `groups` are entries of `pg_config`; `fields` are top-level ones (`host_name=…`)."""
    info = {"backend": "nccl", "rank": rank, "world_size": world, "pg_config": list(groups)}
    distributed = {"distributedInfo": info} if rank is not None or world is not None or groups else {}
    return {"schemaVersion": 1} | distributed | fields | {"traceEvents": list(rows)}


def group(name, ranks, **more):
    return {"pg_name": name, "pg_desc": f"group {name}", "backend_config": "cuda:nccl", "ranks": ranks} | more


def job(rank, *, world=2, steps=4, suffix="", late_us=0):
    """One rank of a small data-parallel job: a kernel and an all-reduce in each step of a millisecond; rank 1 is late.

    `suffix` ends every name that the job chose; `late_us` moves this rank's clock.
    """
    rows = []
    for number in range(steps):
        begin, arrive, call = 1000 * number, 400 + 50 * rank, 10 * number
        described = {"collective": "allreduce", "in_elements": 1000, "dtype": "Float", "group": "0", "seq": number}
        rows += [
            step(number + 1, begin, 1000),
            row(f"aten::mm{suffix}", begin + 10, 100),
            launch(begin + 50, call),
            kernel(begin + 60, call, name=f"gemm{suffix}", dur=300),
            comms(begin + 200, dur=60, **described),
            launch(begin + 210, call + 1),
            kernel(begin + arrive, call + 1, name=f"ncclDevKernel_AllReduce{suffix}", dur=600 - arrive, stream=20),
        ]
    everyone = group("0", list(range(world)))
    return document(*moved(rows, late_us), rank=rank, world=world, groups=[everyone], host_name=f"node{rank}{suffix}")


def write_job(folder: Path, *, world=2, **more) -> Path:
    for rank in range(world):
        write(folder / f"rank{rank}.json.gz", job(rank, world=world, **more))
    return folder


def write(path: Path, content) -> Path:
    """Write a document, a bare list of rows, or bytes as they are; compressed where the name ends in `.gz`."""
    raw = content if isinstance(content, bytes) else _ENCODER.encode(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def moved(rows, by_us):
    """The same rows later."""
    return [one | {"ts": one["ts"] + by_us} for one in rows]


def exactly(ns: int) -> Decimal:
    """Nanoseconds as the microseconds that a trace holds, to the last digit."""
    return Decimal(ns).scaleb(-3)


_SPELLING = {
    "external_id": "External id",
    "function": "Record function id",
    "sequence": "Sequence number",
    "forward_thread": "Fwd thread id",
    "dims": "Input Dims",
    "types": "Input type",
    "collective": "Collective name",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "group": "Process Group Name",
    "ranks": "Process Group Ranks",
    "seq": "Seq",
    "source": "Src Rank",
    "target": "Dst Rank",
}


def _spelt(key):
    return _SPELLING.get(key, key)
