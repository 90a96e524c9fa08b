"""A small reader of Perfetto traces, which fails where a trace breaks the rules of Perfetto's schema.

The numbers of fields are taken from the schema, not from esprof's writer."""

from collections import defaultdict
from dataclasses import dataclass, field

from esprof.run.protobuf import wire

ROOT = 0
BEGIN, END, COUNTER = 1, 2, 4
CLEARED, NEEDS_STATE = 1, 2


@dataclass
class Slice:
    process: str
    track: str
    name: str
    category: str
    start: int
    flows: list[int]
    args: dict[str, int | str]
    end: int = -1
    parents: tuple[str, ...] = ()


@dataclass
class Trace:
    processes: dict[str, int] = field(default_factory=dict)
    """Name of each process and its place in the order of processes."""
    tracks: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Process and name of each track."""
    slices: list[Slice] = field(default_factory=list)
    counters: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def on(self, process: str, track: str | None = None) -> list[Slice]:
        return [one for one in self.slices if one.process == process and track in (None, one.track)]

    def flow(self, number: int) -> list[Slice]:
        """The slices that a flow passes, in order."""
        return sorted((one for one in self.slices if number in one.flows), key=lambda one: one.start)


def _message(value):
    found = defaultdict(list)
    for number, content in wire.message(value):
        found[number].append(content)
    return found


class _Reader:
    def __init__(self):
        self.trace, self.interned, self.names = Trace(), {1: {}, 2: {}, 3: {}}, {}
        self.process_of, self.open, self.latest, self.is_clear = {}, defaultdict(list), {}, False

    def packet(self, value):
        packet = _message(value)
        assert packet[10] == [1], "one sequence"
        (flags,) = packet[13] or [0]
        self.is_clear = self.is_clear or bool(flags & CLEARED)
        assert self.is_clear or not flags & NEEDS_STATE
        for interned in packet[12]:
            for kind, entries in _message(interned).items():
                for entry in map(_message, entries):
                    (iid,), (text,) = entry[1], entry[2]
                    assert iid not in self.interned[kind], "a number may stand for one text only"
                    self.interned[kind][iid] = wire.text(text)
        for descriptor in packet[60]:
            self.descriptor(_message(descriptor))
        for event in packet[11]:
            assert flags & NEEDS_STATE
            (at,) = packet[8]
            self.event(at, _message(event))

    def descriptor(self, track):
        (uuid,) = track[1]
        if uuid == ROOT:
            assert track[19] == track[20] == [1], "processes and threads in the order of their ranks"
            return
        assert uuid not in self.names
        for process in map(_message, track[3]):
            self.names[uuid] = wire.text(process[6][0])
            assert process[1][0] > 0
            self.process_of[uuid] = self.names[uuid]
            self.trace.processes[self.names[uuid]] = track[12][0]
            return
        (parent,) = track[5]
        self.process_of[uuid] = self.process_of[parent]
        threads = list(map(_message, track[4]))
        self.names[uuid] = wire.text(threads[0][5][0] if threads else track[2][0])
        self.trace.tracks[uuid] = (self.process_of[uuid], self.names[uuid])

    def event(self, at, event):
        (kind,), (uuid,) = event[9], event[11]
        process, track = self.trace.tracks[uuid]
        assert at >= self.latest.get(uuid, 0), "events of a track come in order of time"
        self.latest[uuid] = at
        if kind == COUNTER:
            self.trace.counters[process, track].append((at, event[30][0]))
        elif kind == BEGIN:
            found = Slice(
                process, track, self.interned[2][event[10][0]], self.interned[1][event[3][0]], at, list(event[47]),
                dict(map(self.annotation, event[4])), parents=tuple(one.name for one in self.open[uuid]),
            )  # fmt: skip
            self.open[uuid].append(found)
            self.trace.slices.append(found)
        else:
            assert kind == END
            self.open[uuid].pop().end = at

    def annotation(self, value):
        annotation = _message(value)
        held = wire.signed(annotation[4][0]) if annotation[4] else wire.text(annotation[6][0])
        return self.interned[3][annotation[1][0]], held


def read(data: bytes) -> Trace:
    reader = _Reader()
    for number, packet in wire.fields(memoryview(data)):
        assert number == 1
        reader.packet(packet)
    assert not any(reader.open.values()), "every slice ends"
    return reader.trace
