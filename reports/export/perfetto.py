"""Perfetto's trace format: the messages of protos/perfetto/trace in https://github.com/google/perfetto, as it shows how to
write them by hand (https://perfetto.dev/docs/reference/synthetic-track-event).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import count
from typing import BinaryIO

from esprof.analyzers.tracks.track import ArrowEnd, ArrowKind, CounterTrack, Slices, Track, TrackProcess
from esprof.run.protobuf import encode, wire


class TraceField(IntEnum):
    """`Trace` (trace.proto)."""

    PACKET = 1


class TracePacket(IntEnum):
    """trace_packet.proto."""

    TIMESTAMP = 8
    TRUSTED_PACKET_SEQUENCE_ID = 10
    TRACK_EVENT = 11
    INTERNED_DATA = 12
    SEQUENCE_FLAGS = 13
    TRACK_DESCRIPTOR = 60


class SequenceFlags(IntEnum):
    """`TracePacket.SequenceFlags`."""

    SEQ_INCREMENTAL_STATE_CLEARED = 1
    SEQ_NEEDS_INCREMENTAL_STATE = 2


class InternedData(IntEnum):
    """interned_data.proto. Each entry has an `InternedEntry`."""

    EVENT_CATEGORIES = 1
    EVENT_NAMES = 2
    DEBUG_ANNOTATION_NAMES = 3


class InternedEntry(IntEnum):
    """`EventCategory`, `EventName` (track_event.proto) and `DebugAnnotationName` (debug_annotation.proto)."""

    IID = 1
    NAME = 2


class TrackDescriptor(IntEnum):
    """track_descriptor.proto."""

    UUID = 1
    NAME = 2
    PROCESS = 3
    THREAD = 4
    PARENT_UUID = 5
    COUNTER = 8
    SIBLING_ORDER_RANK = 12
    PROCESS_ORDERING = 19
    THREAD_ORDERING = 20


class ProcessDescriptor(IntEnum):
    """process_descriptor.proto."""

    PID = 1
    PROCESS_NAME = 6


class ThreadDescriptor(IntEnum):
    """thread_descriptor.proto."""

    PID = 1
    TID = 2
    THREAD_NAME = 5


class CounterDescriptor(IntEnum):
    """counter_descriptor.proto."""

    UNIT = 3


class TrackEvent(IntEnum):
    """track_event.proto."""

    CATEGORY_IIDS = 3
    DEBUG_ANNOTATIONS = 4
    TYPE = 9
    NAME_IID = 10
    TRACK_UUID = 11
    COUNTER_VALUE = 30
    FLOW_IDS = 47


class TrackEventType(IntEnum):
    """`TrackEvent.Type`."""

    SLICE_BEGIN = 1
    SLICE_END = 2
    COUNTER = 4


class DebugAnnotation(IntEnum):
    """debug_annotation.proto."""

    NAME_IID = 1
    INT_VALUE = 4
    STRING_VALUE = 6


_UNIT_SIZE_BYTES = 3
_ORDERING_EXPLICIT = 1
"""Of `TrackDescriptor.ProcessOrdering` and `ThreadOrdering`: viewers sort by `sibling_order_rank`."""
_SEQUENCE = 1
"""All packets are of one sequence, whose interned names hold to its end."""
_FIRST_PID = 1_000
"""Perfetto takes process and thread 0 for the idle one."""
_FIRST_TID = 1_000_000
_ROOT_UUID = 0
_SEQUENCE_ID = encode.number(TracePacket.TRUSTED_PACKET_SEQUENCE_ID, _SEQUENCE)
_TIMESTAMP = encode.tag(TracePacket.TIMESTAMP, wire.VARINT)
_TRACK_EVENT = encode.tag(TracePacket.TRACK_EVENT, wire.BYTES)
_PACKET = encode.tag(TraceField.PACKET, wire.BYTES)
_INTERNED_STATE = encode.number(TracePacket.SEQUENCE_FLAGS, SequenceFlags.SEQ_NEEDS_INCREMENTAL_STATE)


def write_perfetto(processes: Iterable[TrackProcess], file: BinaryIO) -> None:
    """Write a trace, one process after the other."""
    writer = _PerfettoWriter(file)
    for process in processes:
        writer.write(process)


@dataclass
class _Iids:
    """Numbers of the texts of one kind that were written, from 1."""

    kind: InternedData
    of: dict[str, int] = field(default_factory=dict)

    def new(self, texts: Iterable[str]) -> bytes:
        """The entries of the texts that have no number yet."""
        entries = []
        for one in texts:
            if one not in self.of:
                self.of[one] = len(self.of) + 1
                entry = encode.number(InternedEntry.IID, self.of[one]) + encode.text(InternedEntry.NAME, one)
                entries.append(encode.data(self.kind, entry))
        return b"".join(entries)


class _PerfettoWriter:
    """Writes packets and remembers which names, processes and tracks have numbers."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._uuids, self._pids, self._tids = count(1), count(_FIRST_PID), count(_FIRST_TID)
        self._names = _Iids(InternedData.EVENT_NAMES)
        self._categories = _Iids(InternedData.EVENT_CATEGORIES)
        self._keys = _Iids(InternedData.DEBUG_ANNOTATION_NAMES)
        cleared = encode.number(TracePacket.SEQUENCE_FLAGS, SequenceFlags.SEQ_INCREMENTAL_STATE_CLEARED)
        root = encode.number(TrackDescriptor.UUID, _ROOT_UUID)
        root += encode.number(TrackDescriptor.PROCESS_ORDERING, _ORDERING_EXPLICIT)
        root += encode.number(TrackDescriptor.THREAD_ORDERING, _ORDERING_EXPLICIT)
        self._packet(_SEQUENCE_ID + cleared + encode.data(TracePacket.TRACK_DESCRIPTOR, root))

    def write(self, process: TrackProcess) -> None:
        uuid, pid = next(self._uuids), next(self._pids)
        name = f"{process.name} ({process.about})" if process.about else process.name
        described = encode.number(ProcessDescriptor.PID, pid) + encode.text(ProcessDescriptor.PROCESS_NAME, name)
        self._describe(uuid, encode.data(TrackDescriptor.PROCESS, described) + _order(pid - _FIRST_PID))
        for track in process.tracks:
            self._track(track, uuid, pid)
        for counter in process.counters:
            self._counter(counter, uuid)

    def _track(self, track: Track, process: int, pid: int) -> None:
        """A thread, and below it a track for slices that cross those of the thread."""
        slices = track.slices
        self._intern(slices)
        depths = slices.depths()
        thread, tid = next(self._uuids), next(self._tids)
        described = encode.number(ThreadDescriptor.PID, pid) + encode.number(ThreadDescriptor.TID, tid)
        described += encode.text(ThreadDescriptor.THREAD_NAME, track.name)
        described = encode.data(TrackDescriptor.THREAD, described) + _order(tid - _FIRST_TID)
        self._describe(thread, _parent(process) + described)
        uuids = [thread, *(next(self._uuids) for _ in range(max(depths, default=0)))]
        for number, uuid in enumerate(uuids[1:], 2):
            self._describe(uuid, _parent(thread) + encode.text(TrackDescriptor.NAME, f"{track.name}, row {number}"))
        arrows = track.arrows.by_slice()
        rows: list[list[int]] = [[] for _ in uuids]
        for at, depth in enumerate(depths):
            rows[depth].append(at)
        for uuid, row in zip(uuids, rows, strict=True):
            self._slices(slices, row, uuid, arrows)

    def _intern(self, slices: Slices) -> None:
        names = (slices.names[code] for code in dict.fromkeys(slices.name.tolist()))
        categories = (slices.categories[code] for code in dict.fromkeys(slices.category.tolist()))
        new = self._names.new(names) + self._categories.new(categories) + self._keys.new(slices.args)
        if new:
            self._packet(_SEQUENCE_ID + _INTERNED_STATE + encode.data(TracePacket.INTERNED_DATA, new))

    def _slices(
        self, slices: Slices, row: Sequence[int], uuid: int, arrows: Mapping[int, list[tuple[int, ArrowEnd, ArrowKind]]]
    ) -> None:
        """The slices `row`, which nest: of each a begin and an end, in order of time."""
        closing = encode.number(TrackEvent.TYPE, TrackEventType.SLICE_END) + encode.number(TrackEvent.TRACK_UUID, uuid)
        opening = self._openings(slices, row, uuid)
        start_ns, end_ns = slices.start_ns[row], slices.end_ns[row]
        starts, ends = start_ns.tolist(), end_ns.tolist()
        started, ended = encode.varints(start_ns), encode.varints(end_ns)
        packets: list[bytes] = []
        open_slices: list[int] = []
        for place, at in enumerate(row):
            while open_slices and ends[open_slices[-1]] <= starts[place]:
                packets.append(_event(ended[open_slices.pop()], closing))
            event = opening[place] + self._annotations(slices, at)
            if at in arrows:
                # Perfetto draws a flow through its slices in order of their begins, whatever their order here.
                event += b"".join(encode.fixed64(TrackEvent.FLOW_IDS, flow) for flow, _, _ in arrows[at])
            packets.append(_event(started[place], event))
            open_slices.append(place)
        packets += (_event(ended[place], closing) for place in reversed(open_slices))
        self._file.write(b"".join(packets))

    def _openings(self, slices: Slices, row: Sequence[int], uuid: int) -> list[bytes]:
        """The begin of each slice of `row`, without arrows and arguments."""
        begin = encode.number(TrackEvent.TYPE, TrackEventType.SLICE_BEGIN) + encode.number(TrackEvent.TRACK_UUID, uuid)
        pairs = list(zip(slices.name[row].tolist(), slices.category[row].tolist(), strict=True))
        known = {
            (name, category): begin
            + encode.number(TrackEvent.NAME_IID, self._names.of[slices.names[name]])
            + encode.number(TrackEvent.CATEGORY_IIDS, self._categories.of[slices.categories[category]])
            for name, category in set(pairs)
        }
        return [known[pair] for pair in pairs]

    def _annotations(self, slices: Slices, at: int) -> bytes:
        return b"".join(
            _annotation(self._keys.of[key], values[at]) for key, values in slices.args.items() if values[at] is not None
        )

    def _counter(self, counter: CounterTrack, process: int) -> None:
        uuid = next(self._uuids)
        unit = encode.data(TrackDescriptor.COUNTER, encode.number(CounterDescriptor.UNIT, _UNIT_SIZE_BYTES))
        self._describe(uuid, _parent(process) + encode.text(TrackDescriptor.NAME, counter.name) + unit)
        event = encode.number(TrackEvent.TYPE, TrackEventType.COUNTER) + encode.number(TrackEvent.TRACK_UUID, uuid)
        for at, value in zip(encode.varints(counter.at_ns), counter.values.tolist(), strict=True):
            self._file.write(_event(at, event + encode.number(TrackEvent.COUNTER_VALUE, value)))

    def _describe(self, uuid: int, described: bytes) -> None:
        track = encode.number(TrackDescriptor.UUID, uuid) + described
        self._packet(_SEQUENCE_ID + encode.data(TracePacket.TRACK_DESCRIPTOR, track))

    def _packet(self, packet: bytes) -> None:
        self._file.write(encode.data(TraceField.PACKET, packet))


def _event(at_ns: bytes, event: bytes) -> bytes:
    """The packet of an event at a time (a varint)."""
    content = b"".join(
        (_TIMESTAMP, at_ns, _SEQUENCE_ID, _INTERNED_STATE, _TRACK_EVENT, encode.varint(len(event)), event)
    )
    return b"".join((_PACKET, encode.varint(len(content)), content))


@lru_cache(maxsize=1 << 16)
def _annotation(key: int, value: int | str) -> bytes:
    """An argument of a slice; `key` is the number of its name."""
    if isinstance(value, int):
        held = encode.number(DebugAnnotation.INT_VALUE, value)
    else:
        held = encode.text(DebugAnnotation.STRING_VALUE, value)
    return encode.data(TrackEvent.DEBUG_ANNOTATIONS, encode.number(DebugAnnotation.NAME_IID, key) + held)


def _parent(uuid: int) -> bytes:
    return encode.number(TrackDescriptor.PARENT_UUID, uuid)


def _order(rank: int) -> bytes:
    return encode.number(TrackDescriptor.SIBLING_ORDER_RANK, rank)
