"""Records the steps of a running job as a Run, which replay, diagnosis and checks read like a profiled one."""

import os
import socket
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from esprof.core.assignment import Est
from esprof.core.credentials import without_secrets
from esprof.core.errors import EsprofError
from esprof.core.types import Ns
from esprof.elastic.runtime.agree import gather_values, together
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.telemetry.spans import Span, StepSpans
from esprof.elastic.telemetry.watched_transport import TimedCollective, WatchedTransport
from esprof.recorder.shared.identity import device, peak_memory, versions
from esprof.run.directory import write_meta, write_table
from esprof.run.groups import Group, group_name
from esprof.run.raw.stages import ELASTIC_SAVE
from esprof.run.run import Exchange, RankMeta, RunMeta, Window
from esprof.run.schema import EVENTS, STAGES, STEPS, Table, table

_MAX_STEPS_RETAINED = 256
"""Number of steps that a Run holds, the newest ones."""

_CALL_OF_COLLECTIVE = {
    "all_to_all": "c10d::alltoall_base_",
    "all_gather": "c10d::_allgather_base_",
    "broadcast": "c10d::broadcast_",
    "all_reduce": "c10d::allreduce_",
}
"""What PyTorch's profiler calls the call that starts a collective."""

_LOADER_EVENT = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"
_CONCURRENT_COLLECTIVES = {"gloo": 2}
"""Collectives that a backend executes at the same time: gloo has two threads. NCCL has one stream per group."""


@dataclass(frozen=True)
class _Step:
    """What was noted of one step; times are ns since the Unix epoch."""

    number: int
    start_ns: Ns
    end_ns: Ns
    phase: str
    samples: int
    spans: list[Span]
    collectives: list[TimedCollective]
    loader_event: str
    """Name of the events of its loader."""


@dataclass(frozen=True)
class _EventRow:
    """A row of the event table; the names are its columns'."""

    name: str
    kind: str
    start_ns: Ns
    dur_ns: Ns
    step: int
    est: Est | None = None
    tid: int | None = None
    """Number of the communication thread; None for the thread that trains."""
    coll_seq: int | None = None
    collective: str | None = None
    peer: int | None = None
    in_bytes: int | None = None
    out_bytes: int | None = None
    dtype: str | None = None


class Telemetry:
    """Notes every step of this rank. Writes the newest _MAX_STEPS_RETAINED steps as a Run, each time that many have
    ended and on `write`.

    A step lasts from the end of the one before to its own. Backends do not report when they took up a
    collective: that is estimated from when each was started and done. All ranks must make the same calls.
    """

    def __init__(
        self,
        path: Path,
        transport: Transport,
        device: torch.device,
        *,
        loads_ahead: Callable[[], bool] = lambda: False,
        model_signature: str | None = None,
    ) -> None:
        """`loads_ahead` says whether other processes make the batches now."""
        self.spans = StepSpans(device, keep=True)
        self.transport = WatchedTransport(transport, self.spans)
        self._path = path
        self.unwatched = transport
        self._device = device
        self._model_signature = model_signature
        self._loads_ahead = loads_ahead
        self._steps: deque[_Step] = deque(maxlen=_MAX_STEPS_RETAINED)
        self._saves: deque[tuple[Ns, Ns, bool]] = deque(maxlen=_MAX_STEPS_RETAINED)
        """The start and end of checkpoints, and whether they were in the background."""
        self._since_written = 0
        self._step_start_ns = time.time_ns()
        self._phase = "timed"

    def note_save(self, start_ns: Ns, end_ns: Ns, is_background: bool) -> None:
        """Note a checkpoint: while it stops the training, or until it is durable. Any thread may call this."""
        self._saves.append((start_ns, end_ns, is_background))

    def begin_step(self, *, verified: bool) -> None:
        """Begin the first step; each later one begins where the one before it ended. A verified step runs its EST steps
        twice, so its time does not count."""
        if verified:
            self._phase = "warmup"
        if not self._steps:
            self._step_start_ns = time.time_ns()
            self._forget()

    def end_step(self, number: int, samples: int) -> None:
        """End step `number`, in which this rank saw so many samples."""
        end_ns = time.time_ns()
        spans, collectives = self.spans.take(), self.transport.take()
        load = _LOADER_EVENT.format("MultiProcessing" if self._loads_ahead() else "SingleProcess")
        self._steps.append(_Step(number, self._step_start_ns, end_ns, self._phase, samples, spans, collectives, load))
        self._step_start_ns, self._phase = end_ns, "timed"
        self._since_written += 1
        if self._since_written == _MAX_STEPS_RETAINED:
            self.write()

    def write(self, since: int = 0, exchanges: Sequence[Exchange] = ()) -> None:
        """Write the Run as of now, with the retained steps from `since` on and the measured `exchanges`. All ranks
        call this together; rank 0 writes the metadata of all. If a rank cannot write, rank 0 warns and the job
        continues."""
        try:
            with together(self.unwatched):
                self._write([step for step in self._steps if step.number >= since], exchanges)
        except EsprofError as error:
            if self.unwatched.rank == 0:
                warnings.warn(f"the telemetry of the job was not written: {error}", stacklevel=3)
        self._since_written = 0
        self._phase = "export"  # The step in which this was written does not count.

    def flush(self) -> None:
        """Write the Run, if there is a step that is not in it."""
        if self._since_written:
            self.write()

    def _write(self, steps: list[_Step], exchanges: Sequence[Exchange]) -> None:
        """Write the tables of all ranks first, so that the metadata never names a table that does not exist."""
        rank, events = self.unwatched.rank, self._events(steps)
        with together(self.unwatched):
            write_table(self._path, "events", rank, events)
            write_table(self._path, "steps", rank, _steps_table(steps))
            write_table(self._path, "stages", rank, _stages_table(self._saves))
        gathered = gather_values(self.unwatched, msgspec.to_builtins(self._meta(len(events), steps)))
        metas = [msgspec.convert(meta, RankMeta) for meta in gathered]
        if rank == 0:
            write_meta(self._path, msgspec.structs.replace(self._run_meta(metas), exchanges=tuple(exchanges)))

    def _forget(self) -> None:
        self.spans.take()
        self.transport.take()

    def _events(self, steps: list[_Step]) -> Table:
        lanes = _Lanes(_backend(self._device))
        found = (row for step in steps for row in (*self._rows(step), *lanes.rows(step)))
        # Ties: the longer first, so that a parent always stands before its children.
        rows = sorted(found, key=lambda row: (row.start_ns, -row.dur_ns))
        columns = {field: [getattr(row, field) for row in rows] for field in _EventRow.__dataclass_fields__}
        main = threading.main_thread().native_id
        columns["thread_role"] = ["main" if tid is None else "comm" for tid in columns["tid"]]
        columns["tid"] = [main if tid is None else tid for tid in columns["tid"]]
        columns["pid"] = [os.getpid()] * len(rows)
        columns["group"] = [group_name(range(self.unwatched.world)) if name else None for name in columns["collective"]]
        columns["is_p2p"] = [False if name else None for name in columns["collective"]]
        return table(columns, EVENTS)

    def _rows(self, step: _Step) -> Iterator[_EventRow]:
        """The rows of the thread that trains. No operation covers the time that it waited for a collective."""
        yield _EventRow(f"ProfilerStep#{step.number}", "step", step.start_ns, step.end_ns - step.start_ns, step.number)
        waits = sorted(wait for collective in step.collectives for wait in collective.waits)
        for span in step.spans:
            if span.what == "data":
                yield _EventRow(
                    step.loader_event, "loader", span.start_ns, span.end_ns - span.start_ns, step.number, span.est
                )
            else:
                for start, end in _without(waits, span.start_ns, span.end_ns):
                    yield _EventRow(span.what, "op", start, end - start, step.number, span.est)
        for collective in step.collectives:
            launching = collective.launched_ns - collective.start_ns
            yield _EventRow(
                _CALL_OF_COLLECTIVE[collective.kind], "op", collective.start_ns, launching, step.number, collective.est
            )

    def _meta(self, events: int, steps: list[_Step]) -> RankMeta:
        name, accelerators = device()
        peak, of = peak_memory()
        timed = [step.number for step in steps if step.phase == "timed"]
        return RankMeta(
            rank=self.unwatched.rank,
            host=socket.gethostname(),
            device=name,
            accelerators=accelerators,
            pid=os.getpid(),
            windows=(Window(first=timed[0], last=timed[-1]),) if timed else (),
            events=events,
            peak_memory=peak,
            peak_memory_of=of,
        )

    def _run_meta(self, ranks: list[RankMeta]) -> RunMeta:
        world = range(self.unwatched.world)
        backend = dist.get_backend() if dist.is_available() and dist.is_initialized() else None
        return RunMeta(
            created_ns=time.time_ns(),
            command=without_secrets((sys.executable, *sys.argv)),
            versions={name: str(version) for name, version in versions().items()},  # torch's is no plain str
            world_size=self.unwatched.world,
            model_signature=self._model_signature,
            ranks=tuple(ranks),
            groups=(Group(name=group_name(world), ranks=tuple(world), backend=backend, description="elastic"),),
        )


class NoTelemetry:
    """Notes nothing."""

    def __init__(self, transport: Transport, device: torch.device) -> None:
        self.spans = StepSpans(device)
        self.transport = self.unwatched = transport

    def note_save(self, start_ns: Ns, end_ns: Ns, is_background: bool) -> None: ...

    def begin_step(self, *, verified: bool) -> None: ...

    def end_step(self, number: int, samples: int) -> None: ...

    def write(self, since: int = 0, exchanges: Sequence[Exchange] = ()) -> None: ...

    def flush(self) -> None: ...


def open_telemetry(
    path: str | Path | None,
    transport: Transport,
    device: torch.device,
    loads_ahead: Callable[[], bool],
    model_signature: str,
) -> Telemetry | NoTelemetry:
    """The telemetry of a job: none where `path`, the Run to write, is None. The others are as in `Telemetry`."""
    if not path:
        return NoTelemetry(transport, device)
    return Telemetry(Path(path), transport, device, loads_ahead=loads_ahead, model_signature=model_signature)


class _Lanes:
    """The threads or streams of a backend, which execute collectives in the order in which they are started."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._free_ns = [0] * _CONCURRENT_COLLECTIVES.get(backend, 1)

    def rows(self, step: _Step) -> Iterator[_EventRow]:
        for collective in step.collectives:
            assert collective.end_ns is not None
            thread = self._free_ns.index(min(self._free_ns))
            start = min(max(collective.start_ns, self._free_ns[thread]), collective.end_ns)
            self._free_ns[thread] = collective.end_ns
            yield _EventRow(
                f"{self._backend}:{collective.kind}",
                "collective",
                start,
                collective.end_ns - start,
                step.number,
                collective.est,
                tid=thread,
                coll_seq=collective.sequence,
                collective=collective.kind,
                peer=collective.root,
                in_bytes=collective.in_bytes,
                out_bytes=collective.out_bytes,
                dtype=collective.dtype,
            )


def _backend(device: torch.device) -> str:
    """Name of the backend by which the device's tensors travel."""
    config = str(dist.get_backend_config()) if dist.is_available() and dist.is_initialized() else "cpu:gloo"
    backends = dict(entry.split(":") for entry in config.split(","))
    return backends.get(device.type) or next(iter(backends.values()))


def _without(waits: Iterable[tuple[Ns, Ns]], start: Ns, end: Ns) -> Iterator[tuple[Ns, Ns]]:
    """The intervals between `start` and `end` outside of all `waits` (sorted)."""
    for begin, over in waits:
        if over <= start or begin >= end:
            continue
        if begin > start:
            yield start, begin
        start = over
    if start < end:
        yield start, end


def _steps_table(steps: Iterable[_Step]) -> Table:
    rows = list(steps)
    start = np.array([step.start_ns for step in rows])
    loading = [sum(span.end_ns - span.start_ns for span in step.spans if span.what == "data") for step in rows]
    columns = {
        "step": [step.number for step in rows],
        "start_ns": start,
        "dur_ns": np.array([step.end_ns for step in rows]) - start,
        "phase": [step.phase for step in rows],
        "samples": [step.samples for step in rows],
        "loader_wait_ns": loading,
    }
    return table(columns, STEPS)


def _stages_table(saves: Iterable[tuple[Ns, Ns, bool]]) -> Table:
    rows = sorted(saves)
    columns = {
        "kind": ["background" if is_background else "stage" for _, _, is_background in rows],
        "name": [ELASTIC_SAVE] * len(rows),
        "pid": [os.getpid()] * len(rows),
        "start_ns": [start for start, _, _ in rows],
        "end_ns": [end for _, end, _ in rows],
    }
    return table(columns, STAGES)
