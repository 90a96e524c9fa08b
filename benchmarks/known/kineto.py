"""Writes a timeline as torch's profiler does: one Chrome JSON a rank, with the rows and arguments that Kineto writes."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.known.comms import Group
from benchmarks.known.program import AUTOGRAD, MAIN, Ns, Program
from benchmarks.known.timeline import Row, Timeline

BASE_NS = 1_790_857_026_000_000_000
OPENED_NS: Ns = 4_458_676_416_788_066
"""When the machine's clock, which counts from the program's begin, stood at 0; since BASE_NS."""

_CBID = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cudaMemcpyAsync": 41, "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147, "cudaEventSynchronize": 137, "cudaStreamSynchronize": 131, "cudaDeviceSynchronize": 165,
    "cudaGraphLaunch": 311, "cudaMalloc": 20, "cudaFree": 22, "cuLaunchKernel": 307,
}  # fmt: skip
_SYNC = {
    "cudaStreamWaitEvent": "Stream Wait Event",
    "cudaEventSynchronize": "Event Sync",
    "cudaStreamSynchronize": "Stream Sync",
    "cudaDeviceSynchronize": "Context Sync",
}
_UNSEEN = ("loader",)
"""What names of threads begin with that are other processes, which the profiler does not see."""


@dataclass(frozen=True)
class Recording:
    """What of a timeline is recorded, and how."""

    first: int
    """The first step of the window."""
    steps: bool = True
    """Whether the job reports its steps to the profiler."""
    syncs: bool = False
    """Whether `enable_cuda_sync_events` is on."""
    described: bool = True
    """Whether NCCL kernels carry the arguments of their call, as since torch 2.4."""
    missing: int | None = None
    """The rank of which there is no file."""
    lost: tuple[int, int] | None = None
    """A rank, and the step of which it recorded nothing."""
    clocks: tuple[Ns, ...] = ()
    """How far each rank's clock is ahead."""
    hosts: int = 1


def write(folder: Path, program: Program, timeline: Timeline, groups: Iterable[Group], how: Recording) -> list[Path]:
    """Write the trace of each rank into `folder`, as `rankN.pt.trace.json`."""
    rows: list[list[Row]] = [[] for _ in program.ranks]
    for row in timeline.rows:
        rows[row.rank].append(row)
    listed = list(groups)
    written = []
    for rank in range(len(program.ranks)):
        if rank != how.missing:
            path = folder / f"rank{rank}.pt.trace.json"
            path.write_text(_Trace(program, timeline, rank, listed, how).document(rows[rank]))
            written.append(path)
    return written


@dataclass(frozen=True)
class _Trace:
    program: Program
    timeline: Timeline
    rank: int
    groups: list[Group]
    how: Recording

    def document(self, rows: Iterable[Row]) -> str:
        seen = self._seen(rows)
        events = [*self._names(seen), *self._steps(), *(text for row in seen for text in self._row(row))]
        head = json.dumps(self._head(), indent=1)
        return head[:-2] + ',\n "traceEvents": [\n' + ",\n".join(events) + "\n]}"

    def _head(self) -> dict[str, object]:
        world = len(self.program.ranks)
        device = {"totalGlobalMem": 85174583296, "computeMajor": 8, "computeMinor": 0, "numSms": 108}
        names = dict.fromkeys(self.program.devices)
        return {
            "schemaVersion": 1,
            "deviceProperties": [
                {"id": at, "name": name} | device for at, name in enumerate(self.program.devices[: self._local + 1])
            ],
            **({"cuda_runtime_version": 12040, "cuda_driver_version": 12040} if names else {}),
            "trace_id": f"{self.rank:032X}",
            "distributedInfo": {
                "backend": "nccl" if names else "gloo",
                "rank": self.rank,
                "world_size": world,
                "pg_count": len(self.groups) or 1,
                "pg_config": self._configured(),
                **({"nccl_version": "2.21.5"} if names else {}),
            },
            "host_name": f"node{self.rank // self._per_host}",
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
            "traceName": f"rank{self.rank}.pt.trace.json",
        }

    @property
    def _per_host(self) -> int:
        return -(-len(self.program.ranks) // self.how.hosts)

    @property
    def _local(self) -> int:
        return self.rank % self._per_host

    @property
    def _pid(self) -> int:
        return 2_910_000 + 1_000 * self.rank

    def _configured(self) -> list[dict[str, object]]:
        everyone = list(range(len(self.program.ranks)))
        backend = "cuda:nccl" if self.program.devices else "cpu:gloo,cuda:gloo"
        shown = [("0", "default_pg", everyone)]
        shown += [
            (one.name, one.what, list(one.ranks)) for one in self.groups if one.name != "0" and self.rank in one.ranks
        ]
        return [
            {"pg_name": name, "pg_desc": what, "backend_config": backend, "pg_size": len(ranks), "ranks": ranks}
            for name, what, ranks in shown
        ]

    def _seen(self, rows: Iterable[Row]) -> list[Row]:
        """Rows that began while the profiler was on, without work launched in a lost step."""
        marks = self.timeline.steps[self.rank]
        opened = next(at for number, at in marks if number == self.how.first)
        seen = [row for row in rows if row.start >= opened and not str(row.lane).startswith(_UNSEEN)]
        if not self.how.lost or self.how.lost[0] != self.rank:
            return seen
        at = next(at for at, (number, _) in enumerate(marks) if self.how.lost and number == self.how.lost[1])
        begin, end = marks[at][1], marks[at + 1][1]
        gone = {row.correlation for row in seen if isinstance(row.lane, str) and begin <= row.start < end} - {0}
        return [
            row
            for row in seen
            if row.correlation not in gone and (isinstance(row.lane, int) or not begin <= row.start < end)
        ]

    def _names(self, rows: list[Row]) -> Iterator[str]:
        opened = min(row.start for row in rows)
        pids = [(self._pid, "CPU"), *([(self._local, f"GPU {self._local}")] if self.program.devices else [])]
        for pid, label in pids:
            for name, args in (("process_name", {"name": "python"}), ("process_labels", {"labels": label})):
                yield self._text({"name": name, "ph": "M", "pid": pid, "tid": 0, "args": args}, opened)
        for lane in sorted({row.lane for row in rows}, key=str):
            pid, tid, title = self._place(lane)
            yield self._text(
                {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": title}}, opened
            )
        span = {"ph": "X", "cat": "Trace", "pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)"}
        last = max(row.end for row in rows)
        yield self._text(span | {"args": {"Op count": 0}}, opened, last - opened)
        yield self._text({"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": ""}, last)

    def _place(self, lane: str | int) -> tuple[int, int, str]:
        if isinstance(lane, int):
            return self._local, lane, f"stream {lane}"
        tid = self._pid + {MAIN: 0, AUTOGRAD: 57}.get(lane, 0) + (90 + int(lane[4:]) if lane.startswith("gloo") else 0)
        return self._pid, tid, f"thread {tid} (python)"

    def _steps(self) -> Iterator[str]:
        marks = self.timeline.steps[self.rank]
        if not self.how.steps:
            return
        for (number, begin), (_, end) in pairwise(marks):
            if number is None or number < self.how.first or self.how.lost == (self.rank, number):
                continue
            pid, tid, _ = self._place(MAIN)
            row = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": pid, "tid": tid}
            yield self._text(row | {"args": {"External id": 10_000_000 + number}}, begin, end - begin)

    def _row(self, row: Row) -> Iterator[str]:
        pid, tid, _ = self._place(row.lane)
        args: dict[str, object] = {"External id": row.external or row.correlation}
        args |= {key: value for key, value in row.args.items() if key != "on"}
        if row.correlation:
            args["correlation"] = row.correlation
            args |= self._on_gpu(row) if isinstance(row.lane, int) else {"cbid": _CBID.get(row.name, 0)}
        event = {"ph": "X", "cat": row.category, "name": row.name, "pid": pid, "tid": tid, "args": args}
        yield self._text(event, row.start, row.end - row.start)
        flow = {"id": row.correlation, "pid": pid, "tid": tid, "cat": "ac2g", "name": "ac2g"}
        if isinstance(row.lane, int):
            yield self._text({"ph": "f", **flow, "bp": "e"}, row.start)
        elif "Launch" in row.name or "Memcpy" in row.name:
            yield self._text({"ph": "s", **flow}, row.start)
        if self.how.syncs and row.name in _SYNC:
            yield self._sync(row)

    def _on_gpu(self, row: Row) -> dict[str, object]:
        args: dict[str, object] = {"device": self._local, "context": 1, "stream": row.lane}
        if row.category == "gpu_memcpy":
            moved = row.args["bytes"]
            assert isinstance(moved, int)
            return args | {"memory bandwidth (GB/s)": round(moved / max(1, row.end - row.start), 6)}
        shape = {"registers per thread": 96, "shared memory": 0, "grid": [512, 1, 1], "block": [256, 1, 1]}
        args |= {"queued": 0, "blocks per SM": 4.740741, "warps per SM": 37.925926, "est. achieved occupancy %": 50}
        return args | shape

    def _sync(self, row: Row) -> str:
        """CUPTI's record of a synchronization, on the waiting stream; -1 for the whole device."""
        stream = row.args.get("on", -1)
        described = {"cuda_sync_kind": _SYNC[row.name], "stream": stream, "correlation": row.correlation}
        if row.waits:
            described |= {"wait_on_stream": row.waits[0], "wait_on_cuda_event_record_corr_id": row.waits[1]}
            described |= {"wait_on_cuda_event_id": row.waits[1]}
        args = {"External id": row.external} | described | {"device": self._local, "context": 1}
        event = {"ph": "X", "cat": "cuda_sync", "name": _SYNC[row.name], "pid": self._local, "tid": stream}
        return self._text(event | {"args": args}, row.start, row.end - row.start)

    def _text(self, event: dict[str, object], at: Ns, duration: Ns | None = None) -> str:
        """The event as JSON, with microseconds to the last digit."""
        clock = self.how.clocks[self.rank] if self.how.clocks else 0
        if not self.how.described and event.get("cat") == "kernel":
            args = event["args"]
            assert isinstance(args, dict)
            event["args"] = {key: value for key, value in args.items() if not _is_in_call(key)}
        took = "" if duration is None else f', "dur": {_us(duration)}'
        return f'{json.dumps(event)[:-1]}, "ts": {_us(OPENED_NS + at + clock)}{took}}}'


def _is_in_call(key: str) -> bool:
    return key.startswith(("Collective", "In ", "Out ", "Process Group", "Group size", "dtype", "Seq", "Src", "Dst"))


def _us(ns: Ns) -> str:
    return f"{ns // 1000}.{ns % 1000:03}"
