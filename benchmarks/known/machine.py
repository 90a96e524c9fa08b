"""Runs a program: exact, deterministic, in whole nanoseconds.

A heap of (time, counter, process); a process is a generator that yields the time or the signal that it waits for. CPU
threads and GPU streams are processes.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from benchmarks.known.program import (
    MAIN,
    Acquire,
    Await,
    Busy,
    Call,
    Close,
    JoinCollective,
    Kernel,
    Kind,
    Ns,
    Open,
    Post,
    Program,
    Record,
    Release,
    Step,
    Sync,
    Wait,
)
from benchmarks.known.timeline import Row, Timeline


class Deadlock(Exception):
    """Nothing can go on, and a thread has not ended."""


class _Signal:
    __slots__ = ("is_up", "waiting")

    def __init__(self) -> None:
        self.is_up = False
        self.waiting: list[_Process] = []


_Process = Iterator["Ns | _Signal"]


@dataclass(slots=True)
class _Item:
    """What stands in the queue of a stream; without a kernel it only waits."""

    kernel: Kernel | None
    ready: Ns
    waits: _Signal | None
    done: _Signal
    row: Row | None


class _Stream:
    def __init__(self) -> None:
        self.items: deque[_Item] = deque()
        self.filled = _Signal()
        self.room = _Signal()
        self.kernels = 0
        self.free: Ns | None = None
        self.last: _Signal | None = None


class _Event:
    __slots__ = ("correlation", "done", "stream")

    def __init__(self, done: _Signal | None, stream: int, correlation: int) -> None:
        self.done, self.stream, self.correlation = done, stream, correlation


class _Device:
    """The GPU and the flags of one rank."""

    def __init__(self) -> None:
        self.streams: dict[int, _Stream] = {}
        self.events: dict[int, _Event] = {}
        self.flags: dict[int, _Signal] = {}
        self.locks: dict[str, deque[_Signal]] = {}
        self.calls, self.operations = count(1), count(1)


def run(program: Program, durations: Sequence[Ns] | None = None) -> Timeline:
    """The timeline of the program with these durations, one for each cost; without them, with those drawn."""
    return _Machine(program, program.drawn if durations is None else durations).run()


class _Machine:
    def __init__(self, program: Program, durations: Sequence[Ns]) -> None:
        self.program, self.ns = program, durations
        self.now: Ns = 0
        self.heap: list[tuple[Ns, int, _Process]] = []
        self.counter = count()
        self.devices = [_Device() for _ in program.ranks]
        self.coming = [len(collective.members) for collective in program.collectives]
        self.completed = [_Signal() for _ in program.collectives]
        self.timeline = Timeline([], [[] for _ in program.ranks], [(0, 0)] * len(program.collectives))

    def run(self) -> Timeline:
        ended: list[tuple[int, str]] = []
        for rank, threads in enumerate(self.program.ranks):
            for name in threads:
                self._push(0, self._thread(rank, name, ended))
        while self.heap:
            self.now, _, process = heapq.heappop(self.heap)
            self._resume(process)
        stuck = {(rank, name) for rank, threads in enumerate(self.program.ranks) for name in threads} - set(ended)
        if stuck:
            raise Deadlock(f"{sorted(stuck)} cannot go on at {self.now} ns")
        return self.timeline

    def _push(self, at: Ns, process: _Process) -> None:
        heapq.heappush(self.heap, (at, next(self.counter), process))

    def _resume(self, process: _Process) -> None:
        for wanted in process:
            if isinstance(wanted, _Signal):
                if not wanted.is_up:
                    wanted.waiting.append(process)
                    return
            elif wanted > self.now:
                # Only where nobody else acts until then may the clock be moved on here.
                if self.heap and self.heap[0][0] <= wanted:
                    self._push(wanted, process)
                    return
                self.now = wanted

    def _raise(self, signal: _Signal) -> None:
        signal.is_up = True
        for process in signal.waiting:
            self._push(self.now, process)
        signal.waiting.clear()

    # CPU threads

    def _thread(self, rank: int, name: str, ended: list[tuple[int, str]]) -> _Process:
        device = self.devices[rank]
        opened: list[Row] = []
        for at in self.program.ranks[rank][name]:
            match at:
                case Busy():
                    yield self.now + self.ns[at.cost]
                case Open():
                    number = next(device.operations)
                    row = Row(rank, name, at.category, at.name, self.now, 0, external=number, args=dict(at.args))
                    opened.append(row)
                    self.timeline.rows.append(row)
                case Close():
                    opened.pop().end = self.now
                case Call():
                    yield from self._call(self._runtime(rank, name, at.name, at.category, opened), at)
                case Sync():
                    yield from self._sync(self._runtime(rank, name, at.name, "cuda_runtime", opened), at)
                case Post():
                    self._raise(device.flags.setdefault(at.flag, _Signal()))
                case Await():
                    yield device.flags.setdefault(at.flag, _Signal())
                case Acquire():
                    yield from self._acquire(device.locks.setdefault(at.lock, deque()))
                case Release():
                    self._release(device.locks[at.lock])
                case JoinCollective():
                    self._arrive(at.collective)
                    yield self.completed[at.collective]
                case Step():
                    assert name == MAIN
                    self.timeline.steps[rank].append((at.number, self.now))
        ended.append((rank, name))

    def _runtime(self, rank: int, thread: str, name: str, category: str, opened: list[Row]) -> Row:
        external = opened[-1].external if opened else 0
        row = Row(rank, thread, category, name, self.now, 0, next(self.devices[rank].calls), external)
        self.timeline.rows.append(row)
        return row

    def _call(self, row: Row, call: Call) -> _Process:
        device = self.devices[row.rank]
        for number in {command.stream for command in call.commands if isinstance(command, Kernel)}:
            queue = self._stream(row.rank, number)
            while queue.kernels >= self.program.queue:
                if queue.room.is_up:
                    queue.room = _Signal()
                yield queue.room
        yield self.now + self.ns[call.cost]
        row.end = self.now
        ready = self.now + (self.ns[call.delay] if call.delay >= 0 else 0)
        for command in call.commands:
            stream = self._stream(row.rank, command.stream)
            match command:
                case Kernel():
                    self._issue(stream, _Item(command, ready, None, _Signal(), self._shown(row, command)))
                case Record():
                    device.events[command.event] = _Event(stream.last, command.stream, row.correlation)
                case Wait():
                    event = device.events[command.event]
                    row.waits = (event.stream, event.correlation)
                    row.args["on"] = command.stream
                    if event.done:
                        self._issue(stream, _Item(None, self.now, event.done, _Signal(), None))

    def _shown(self, call: Row, kernel: Kernel) -> Row:
        args = dict(kernel.args)
        row = Row(call.rank, kernel.stream, kernel.category, kernel.name, 0, 0, call.correlation, call.external, args)
        self.timeline.rows.append(row)
        return row

    def _sync(self, row: Row, sync: Sync) -> _Process:
        device = self.devices[row.rank]
        # Nothing takes no time: an allocator call that is taken away waits for nothing, either.
        is_away = self.program.costs[sync.cost].kind is Kind.ALLOCATOR and not self.ns[sync.cost]
        if sync.event >= 0:
            event = device.events[sync.event]
            row.waits = (event.stream, event.correlation)
            targets = [event.done]
        elif sync.stream >= 0:
            row.args["on"] = sync.stream
            targets = [self._stream(row.rank, sync.stream).last]
        else:
            targets = [stream.last for stream in device.streams.values()]
        for target in targets:
            if target and not is_away:
                yield target
        yield self.now + self.ns[sync.cost]
        row.end = self.now

    def _acquire(self, line: deque[_Signal]) -> _Process:
        mine = _Signal()
        line.append(mine)
        mine.is_up = len(line) == 1
        yield mine

    def _release(self, line: deque[_Signal]) -> None:
        line.popleft()
        if line:
            self._raise(line[0])

    # GPU streams

    def _stream(self, rank: int, number: int) -> _Stream:
        streams = self.devices[rank].streams
        if number not in streams:
            streams[number] = _Stream()
            self._push(self.now, self._work(streams[number]))
        return streams[number]

    def _issue(self, stream: _Stream, item: _Item) -> None:
        stream.items.append(item)
        stream.last = item.done
        stream.kernels += item.kernel is not None
        self._raise(stream.filled)

    def _work(self, stream: _Stream) -> _Process:
        """What a stream does for ever: one item after another, in the order of their issue."""
        while True:
            if not stream.items:
                stream.filled = _Signal()
                yield stream.filled
            item = stream.items[0]
            kernel = item.kernel
            earliest = item.ready
            if kernel and stream.free is not None:
                earliest = max(earliest, stream.free + self.program.spacing_ns)
            yield earliest
            if item.waits:
                yield item.waits
            if kernel and item.row:
                item.row.start = self.now
                if kernel.collective >= 0:
                    self._arrive(kernel.collective)
                    yield self.completed[kernel.collective]
                else:
                    yield self.now + self.ns[kernel.cost]
                item.row.end = stream.free = self.now
                stream.kernels -= 1
                self._raise(stream.room)
            stream.items.popleft()
            self._raise(item.done)

    # Collectives

    def _arrive(self, number: int) -> None:
        self.coming[number] -= 1
        assert self.coming[number] >= 0
        if not self.coming[number]:
            self._push(self.now, self._carry(number))

    def _carry(self, number: int) -> _Process:
        collective = self.program.collectives[number]
        handling = max((self.ns[cost] for cost in collective.handling), default=0)
        begin = self.now
        yield begin + self.ns[collective.latency] + self.ns[collective.bytes] + handling
        self.timeline.collectives[number] = (begin, self.now)
        self._raise(self.completed[number])
