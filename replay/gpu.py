"""The GPU part of a rank's graph: kernels in stream order, collectives as arrive -> join -> transfer, and their reasons."""

import itertools
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

from esprof.replay import rules
from esprof.replay.builder import GraphBuilder
from esprof.replay.collectives import Collective
from esprof.replay.dfg import Cls, Edge
from esprof.replay.rank_events import RankEvents
from esprof.types import Ns


@dataclass
class Kernel:
    """One piece of GPU work. For a matched collective `first` is its arrival and `last` its transfer; else both are one."""

    row: int
    stream: int
    start: Ns
    end: Ns
    first: int
    last: int
    launch: int | None
    """Row of the runtime call."""
    launched: Ns
    """When it was launched; its own start where that was not recorded."""
    is_collective: bool


def _launched(kernel: Kernel) -> Ns:
    return kernel.launched


@dataclass
class GpuWork:
    """All GPU work of one rank, and the indexes that dependencies are looked up in."""

    events: RankEvents
    kernels: list[Kernel]
    by_row: dict[int, Kernel] = field(default_factory=dict)
    by_launch: dict[int, Kernel] = field(default_factory=dict)
    """Row of a runtime call -> the first work that it launched."""
    by_stream: dict[int, list[Kernel]] = field(default_factory=lambda: defaultdict(list))
    """In order of execution."""
    launches_to: dict[int, list[Kernel]] = field(default_factory=lambda: defaultdict(list))
    """Stream -> its work in launch order, which is not always the order of recorded times."""
    launches_by: dict[int, list[Kernel]] = field(default_factory=lambda: defaultdict(list))
    """Thread -> what it launched, in order."""
    syncs: dict[int, int] = field(default_factory=dict)
    """Correlation of a runtime call -> row of the synchronisation record that belongs to it."""
    makes_room: dict[int, Kernel] = field(default_factory=dict)
    """Row of a launch -> the work whose end lets it into the GPU's finite launch queue."""

    def __post_init__(self) -> None:
        for kernel in self.kernels:
            self.by_row[kernel.row] = kernel
            self.by_stream[kernel.stream].append(kernel)
        for kernel in sorted(self.kernels, key=lambda kernel: (kernel.launched, kernel.row)):
            self.launches_to[kernel.stream].append(kernel)
            if kernel.launch is not None:
                self.by_launch.setdefault(kernel.launch, kernel)
                self.launches_by[self.events.tid[kernel.launch]].append(kernel)
        for row, kind in enumerate(self.events.kind):
            if kind == "sync" and self.events.correlation[row] >= 0:
                self.syncs[self.events.correlation[row]] = row
        self.makes_room = _launch_queue(self)

    def last_on(self, stream: int, moment: Ns) -> Kernel | None:
        """The last work launched to `stream` before `moment`."""
        return _last(self.launches_to.get(stream, []), moment)

    def last_by(self, tid: int, moment: Ns) -> Kernel | None:
        """The last work that thread `tid` launched before `moment`."""
        return _last(self.launches_by.get(tid, []), moment)

    def next_by(self, tid: int, moment: Ns) -> Kernel | None:
        """The next work that thread `tid` launches after `moment`."""
        return _next(self.launches_by.get(tid, []), moment)

    def next_on(self, stream: int, moment: Ns) -> Kernel | None:
        """The next work launched to `stream` after `moment`."""
        return _next(self.launches_to.get(stream, []), moment)

    def last_per_stream(self, moment: Ns) -> list[Kernel]:
        """On each stream, the last work launched before `moment`."""
        found = (self.last_on(stream, moment) for stream in self.launches_to)
        return [kernel for kernel in found if kernel is not None]


def _last(order: list[Kernel], moment: Ns) -> Kernel | None:
    at = bisect_right(order, moment, key=_launched)
    return order[at - 1] if at else None


def _next(order: list[Kernel], moment: Ns) -> Kernel | None:
    at = bisect_right(order, moment, key=_launched)
    return order[at] if at < len(order) else None


def _launch_queue(gpu: GpuWork) -> dict[int, Kernel]:
    """Launch n returns only after kernel n - Q has started, where Q is the depth of the launch queue.

    Q is the most launches seen outstanding, if that is near the known depth of about 1,000; else the queue was never
    full (docs/replay.md §1.6). A kernel starts when the one before it on its stream ends.
    """
    order = sorted(gpu.kernels, key=lambda kernel: (kernel.launched, kernel.row))
    starts = sorted(kernel.start for kernel in order)
    outstanding = [n - bisect_right(starts, kernel.launched) for n, kernel in enumerate(order)]
    depth = max(outstanding, default=0)
    if depth < rules.QUEUE_DEPTH:
        return {}
    before = {k.row: b for kernels in gpu.by_stream.values() for b, k in itertools.pairwise(kernels)}
    room = {}
    for n in range(depth, len(order)):
        first_out = before.get(order[n - depth].row)
        launch = order[n].launch
        if launch is not None and first_out is not None:
            room[launch] = first_out
    return room


def add_gpu_work(
    builder: GraphBuilder, events: RankEvents, matched: dict[int, Collective], joins: dict[int, int]
) -> GpuWork:
    """Add a node for each GPU row, in stream order; `matched` maps rows to collectives, `joins` collectives to nodes."""
    lanes: dict[int, int] = {}
    kernels = []
    for row in events.gpu_rows:
        stream = events.stream[row]
        if stream not in lanes:
            lanes[stream] = builder.add_lane(events.rank, "stream", f"stream {stream}")
        launch = events.launch_row(row)
        first, last = add_transfer(builder, lanes[stream], events, row, matched.get(row), joins)
        kernels.append(
            Kernel(
                row=row,
                stream=stream,
                start=events.start[row],
                end=events.end[row],
                first=first,
                last=last,
                launch=launch,
                launched=events.start[launch] if launch is not None else events.start[row],
                is_collective=events.kind[row] == "collective",
            )
        )
    gpu = GpuWork(events, kernels)
    builder.counts["kernels"] += len(kernels)
    builder.counts["kernels_without_launch"] += sum(_orphans(stream) for stream in gpu.by_stream.values())
    return gpu


def _orphans(stream: list[Kernel]) -> int:
    """Kernels whose launch the profiler lost. Those at the head of a stream were launched before the window opened."""
    launched = [kernel.launch is not None for kernel in stream]
    return launched[launched.index(True) :].count(False) if any(launched) else 0


def add_transfer(
    builder: GraphBuilder,
    lane: int,
    events: RankEvents,
    row: int,
    collective: Collective | None,
    joins: dict[int, int],
) -> tuple[int, int]:
    """Add one row of a stream or communication thread; returns its first and last node.

    A matched collective is an arrival of no duration, the join of all ranks, and a transfer; what lies between arrival
    and join is waiting (docs/replay.md §2; Lumos, MLSys 2025). An unmatched one stays whole: how much of it was waiting for
    a peer nobody knows, so with peers it counts as unexplained.
    """
    name, step, start, end = events.name[row], events.step[row], events.start[row], events.end[row]
    cls = Cls.COMMUNICATION if events.kind[row] == "collective" else Cls.COMPUTE
    if collective is None:
        cls = Cls.RESIDUAL if row in events.shared else cls
        node = builder.add(lane, name, cls, start, end - start, step=step, event=row, nbytes=events.bytes[row])
        return node, node
    number = collective.number
    arrive = builder.add(lane, f"{name} (arrive)", Cls.WAIT, start, 0, step=step, collective=number)
    begin = min(max(start, collective.arrival), end)
    builder.counts["negative_transfers"] += collective.arrival > end
    transfer = builder.add(
        lane, name, cls, begin, end - begin, step=step, event=row, collective=number, nbytes=events.bytes[row]
    )
    builder.link(arrive, joins[number], Edge.RENDEZVOUS)
    builder.link(joins[number], transfer, Edge.RENDEZVOUS)
    return arrive, transfer


def link_launches(builder: GraphBuilder, gpu: GpuWork, lane_of: dict[int, int]) -> None:
    """Tie each kernel to its launch and to its stream, with the latencies that this rank shows.

    The launch latency counts from the start of the call, since a kernel may run before the call returns: the edge comes
    from the node before the call. No latency is taken as longer than this kernel's own.
    """
    events = gpu.events
    latency, pause = _latencies(gpu)
    for kernels in gpu.by_stream.values():
        for before, kernel in zip([None, *kernels], kernels, strict=False):
            if before is not None:
                own = kernel.start - before.end
                builder.link(before.last, kernel.first, Edge.LANE, min(own, pause))
            if kernel.launch is None:
                continue
            lane = lane_of.get(events.tid[kernel.launch])
            source = builder.ending_by(lane, kernel.launched) if lane is not None else None
            if source is not None:
                builder.link(source, kernel.first, Edge.LAUNCH, min(kernel.start - kernel.launched, latency))


def _latencies(gpu: GpuWork) -> tuple[Ns, Ns]:
    """Median (launch latency on an idle stream, pause between kernels of a busy stream), ns."""
    latencies, pauses = [], []
    for kernels in gpu.by_stream.values():
        for before, kernel in zip([None, *kernels], kernels, strict=False):
            if kernel.launch is None:
                continue
            if before is None or before.end < kernel.launched:
                latencies.append(kernel.start - kernel.launched)
            elif kernel.start - before.end <= rules.STREAM_GAP:
                pauses.append(kernel.start - before.end)
    return int(median(latencies)) if latencies else 0, int(median(pauses)) if pauses else 0


def link_stream_waits(builder: GraphBuilder, gpu: GpuWork) -> None:
    """Tie kernels to those of other streams that they wait for (`cudaStreamWaitEvent`), recorded or by launch order."""
    events = gpu.events
    inside = _CollectiveCalls(events)
    for row, kind in enumerate(events.kind):
        if kind != "runtime" or not events.name[row].endswith("StreamWaitEvent"):
            continue
        record = gpu.syncs.get(events.correlation[row])
        if record is None and inside.after_launch(row, gpu):
            continue
        source, target = _recorded_wait(gpu, row, record) if record is not None else _likely_wait(gpu, row)
        if source is None or target is None or source.stream == target.stream:
            continue
        if source.end > target.start + rules.REJECT_WAIT:
            builder.counts["waits_rejected"] += 1
            continue
        builder.link(source.last, target.first, Edge.WAIT, min(0, target.start - source.end))


class _CollectiveCalls:
    """The CPU calls of collectives by thread: the waits that NCCL sets up after its launch are its own business."""

    def __init__(self, events: RankEvents) -> None:
        self._events = events
        self._calls: dict[int, list[int]] = defaultdict(list)
        for row, name in enumerate(events.name):
            if name == "record_param_comms":
                self._calls[events.tid[row]].append(row)

    def after_launch(self, row: int, gpu: GpuWork) -> bool:
        """Whether call `row` lies inside a collective's CPU call, behind the launch of that collective."""
        events, moment = self._events, self._events.start[row]
        calls = self._calls.get(events.tid[row], [])
        at = bisect_right(calls, moment, key=events.start.__getitem__)
        around = [call for call in calls[max(0, at - 3) : at] if events.end[call] >= moment]
        launched = gpu.last_by(events.tid[row], moment)
        return bool(around) and launched is not None and launched.launched >= events.start[around[0]]


def _recorded_wait(gpu: GpuWork, row: int, record: int) -> tuple[Kernel | None, Kernel | None]:
    """Source and target by the profiler's own record: last kernel of the awaited stream before the event was recorded,
    first kernel launched to the waiting stream afterwards (launch order, not GPU time)."""
    events = gpu.events
    recorded = events.runtime_of.get(events.sync_correlation[record])
    since = events.start[recorded] if recorded is not None else events.start[row]
    source = gpu.last_on(events.sync_stream[record], since)
    return source, gpu.next_on(events.stream[record], events.start[row])


def _likely_wait(gpu: GpuWork, row: int) -> tuple[Kernel | None, Kernel | None]:
    """Source and target where only the call was recorded: the thread's next launch waits for what was launched last on
    another stream; a collective, for what its own thread launched just before (docs/replay.md §1.3)."""
    moment, tid = gpu.events.start[row], gpu.events.tid[row]
    target = gpu.next_by(tid, moment)
    if target is None:
        return None, None
    if target.is_collective:
        return gpu.last_by(tid, moment), target
    others = [kernel for kernel in gpu.last_per_stream(moment) if kernel.stream != target.stream]
    return max(others, key=_launched, default=None), target


def link_late_kernels(builder: GraphBuilder, works: list[GpuWork]) -> None:
    """Find a reason for kernels that start late: another stream's kernel that just ended, or a GPU that others filled."""
    ready = _ready_times(builder, works)
    for gpu in works:
        busy = sorted(gpu.kernels, key=lambda kernel: kernel.end)
        ends = [kernel.end for kernel in busy]
        for kernel in gpu.kernels:
            since = ready[kernel.first]
            if kernel.start - since <= rules.LATE_KERNEL:
                continue
            at = bisect_right(ends, kernel.start + rules.REJECT_WAIT)
            cause = next((k for k in reversed(busy[max(0, at - 4) : at]) if k.stream != kernel.stream), None)
            if cause is not None and kernel.start - cause.end <= rules.FOLLOWS:
                builder.link(cause.last, kernel.first, Edge.INFERRED, kernel.start - cause.end)
            elif _covered(gpu, kernel, since) >= rules.CONTENDED:
                builder.contended.add(kernel.first)


def _ready_times(builder: GraphBuilder, works: list[GpuWork]) -> dict[int, Ns]:
    """First node of each kernel -> when the edges known so far allow it to start, by recorded times."""
    ready = {kernel.first: 0 for gpu in works for kernel in gpu.kernels}
    for (source, target), (lag, _) in builder.edges.items():
        if target in ready:
            ready[target] = max(ready[target], builder.start[source] + builder.dur[source] + lag)
    return {node: moment or builder.start[node] for node, moment in ready.items()}


def _covered(gpu: GpuWork, kernel: Kernel, since: Ns) -> float:
    """Share of [since, start of `kernel`] in which another stream computes. NCCL alone does not fill a GPU."""
    spans = []
    for stream, kernels in gpu.by_stream.items():
        if stream != kernel.stream:
            before = bisect_right(kernels, kernel.start, key=lambda other: other.start)
            for other in reversed(kernels[:before]):
                if other.end <= since:
                    break
                if not other.is_collective:
                    spans.append((max(other.start, since), min(other.end, kernel.start)))
    covered, reached = 0, since
    for start, end in sorted(spans):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered / (kernel.start - since)
