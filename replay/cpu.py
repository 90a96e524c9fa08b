"""The CPU part of a rank's graph: each thread as a gapless chain of operations, calls and gaps, waits cut out of it."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace

from esprof.replay import rules
from esprof.replay.builder import GraphBuilder
from esprof.replay.dfg import Cls, Edge
from esprof.replay.gloo import GlooWork
from esprof.replay.gpu import GpuWork, Kernel
from esprof.replay.loader import LoaderWork
from esprof.replay.rank_events import RankEvents
from esprof.replay.rules import call_name
from esprof.types import Ns

_END = "end"
"""Stands for what follows the last recorded operation."""


@dataclass(frozen=True)
class Item:
    """A stretch of a thread that stands by itself: an operation of the top level, or a call inside one."""

    start: Ns
    end: Ns
    row: int
    """Row of the event; -1 for the border of a step."""


@dataclass
class CpuThread:
    """Builds the chain of one thread. `partner` are the times at which the thread that hands over to it was busy."""

    builder: GraphBuilder
    events: RankEvents
    gpu: GpuWork
    gloo: GlooWork
    loader: LoaderWork
    lane: int
    tid: int
    is_main: bool
    computes: bool
    """Whether the CPU is the job's device: its operations are then compute."""
    partner: "Busy | None"
    handovers: list[tuple[Ns, int]] = field(default_factory=list)
    """(end of the partner's work, node that waited for it), tied when both chains stand."""
    borders: dict[Ns, int] = field(default_factory=dict)
    """Time of a step border -> its node."""
    _now: Ns = 0
    _previous: str = "start"
    """Name of the last recorded operation or call."""

    def build(self, rows: list[int]) -> None:
        """Lay the thread's `rows` out as one chain from the first step's start to the last step's end."""
        items = self._items(rows)
        # A thread that nothing is known to wake starts where its first item does; before that it was not there.
        woken = self.is_main or self.partner is not None
        self._now = self.events.begin if woken or not items else items[0].start
        nested = _nested(items)
        following = self._following_names([item for item, _ in nested])
        for (item, inner), after in zip(nested, following, strict=True):
            self._gap_until(item.start, after)
            if item.row < 0 or self._is_call(item.row):
                self._call(item)
            else:
                self._operation(item, inner)
        if self.is_main:
            self._gap_until(self.events.finish, _END)

    def _items(self, rows: list[int]) -> list[Item]:
        """Top-level operations, the calls inside them, and (on the main thread) step borders, by start."""
        events = self.events
        items = [
            Item(events.start[row], min(events.end[row], events.finish), row)
            for row in rows
            if events.kind[row] != "op" or row in self.gloo.issues
        ]
        operations = [row for row in rows if events.kind[row] == "op" and row not in self.gloo.issues]
        reached = 0
        for row in operations:
            # Rounded times may make neighbours overlap: what sticks out behind the one before still counts.
            begin = max(events.start[row], reached)
            if begin == events.start[row] or begin < events.end[row]:
                items.append(Item(begin, min(events.end[row], events.finish), row))
                reached = max(reached, events.end[row])
        if self.is_main:
            moments = {moment for span in events.steps.values() for moment in span}
            items += [Item(moment, moment, -1) for moment in moments]
        # A border comes before what begins with it; a parent before its children.
        return sorted(items, key=lambda item: (item.start, item.row >= 0, -item.end, item.row))

    def _following_names(self, items: list[Item]) -> list[str]:
        """Per item, the name of the first recorded one from it on: a gap across a step's border keeps one name."""
        names, name = [], _END
        for item in reversed(items):
            name = self.events.name[item.row] if item.row >= 0 else name
            names.append(name)
        return names[::-1]

    def _is_call(self, row: int) -> bool:
        return self.events.kind[row] in ("runtime", "loader") or row in self.gloo.issues

    def _operation(self, item: Item, inner: list[Item]) -> None:
        """One top-level operation, split at the calls inside it."""
        for call in inner:
            self._stretch(item.row, call.start)
            self._call(call)
        self._stretch(item.row, item.end)

    def _stretch(self, row: int, until: Ns) -> None:
        if until > self._now:
            self._add(self.events.name[row], Cls.COMPUTE if self.computes else Cls.CPU, until, row)

    def _add(self, name: str, cls: Cls, until: Ns, row: int = -1, own: Ns | None = None) -> int:
        """Append a node that ends at `until`; of its time only the last `own` is its work, the rest it waited."""
        begin = self._now if own is None else until - own
        node = self.builder.add(self.lane, name, cls, begin, until - begin, step=self.events.step_at(begin), event=row)
        self._now = until
        if row >= 0:
            self._previous = self.events.name[row]
        return node

    def _call(self, item: Item) -> None:
        if item.row < 0:
            self.borders[item.start] = self._add("step", Cls.CPU, item.start)
            return
        events, row = self.events, item.row
        if events.kind[row] == "loader":
            self._load(item)
            return
        name = events.name[row]
        if row in self.gloo.issues:
            self._issue(item)
            return
        call = call_name(name)
        if rules.HIDES_WAIT.match(call):
            self._reveal_hidden_wait(item.start)
        launched = self.gpu.by_launch.get(row)
        causes = self._causes(item, call, launched)
        if causes:
            self._wait(name, item, causes)
        elif rules.ALLOCATOR.match(call):
            self._add(name, Cls.ALLOCATOR, item.end, row)
        elif rules.SYNCHRONIZE.search(call) and item.end - item.start > rules.LONG_CALL:
            # It waited, and nothing tells for what: the time stays where it was recorded, as residual.
            self.builder.counts["waits"] += 1
            self._add(name, Cls.CPU, item.end, row, own=rules.BLOCKING_OWN)
        else:
            label = f"{name} {events.name[launched.row]}" if launched is not None else name
            node = self._add(label, Cls.LAUNCH if launched is not None else Cls.CPU, item.end, row)
            self._queue_behind(row, node)

    def _issue(self, item: Item) -> None:
        """A call that issues a collective. One that returns right when its transfer is done has waited for it: it blocks,
        or its thread shares a core with the transfer's."""
        name, issued = self.events.name[item.row], self.gloo.issues[item.row]
        cls = Cls.COMPUTE if self.computes else Cls.CPU
        if item.end - item.start <= rules.LONG_CALL or not 0 <= item.end - issued.end <= rules.SYNC_LATE:
            self._add(name, cls, item.end, item.row)
            return
        own = rules.BLOCKING_OWN
        node = self._add(name, cls, item.end, item.row, own=own)
        self.builder.link(issued.last, node, Edge.INFERRED, item.end - own - issued.end)
        self.builder.counts["waits"] += 1
        self.builder.counts["waits_inferred"] += 1

    def _queue_behind(self, row: int, node: int) -> None:
        """A launch that found room in the queue needs it all the same when the GPU gets slower."""
        room = self.gpu.makes_room.get(row)
        if room is not None:
            self.builder.link(room.last, node, Edge.WAIT, min(0, self.builder.start[node] - room.end))

    def _causes(self, item: Item, call: str, launched: Kernel | None) -> list[tuple[Kernel, Edge]]:
        """GPU work that a call waited for, with the kind of evidence. Empty for a call that did not block."""
        events, gpu, row = self.events, self.gpu, item.row
        record = gpu.syncs.get(events.correlation[row])
        if record is not None and rules.SYNCHRONIZE.search(call):
            return [(kernel, Edge.SYNC) for kernel in self._recorded_causes(row, record)]
        if item.end - item.start <= rules.LONG_CALL:
            return []
        room = gpu.makes_room.get(row)
        if room is not None and _just_before(room.end, item.end):
            return [(room, Edge.WAIT)]
        if launched is not None and call.startswith("memcpy"):
            return [(launched, Edge.SYNC)] if _just_before(launched.end, item.end) else []
        cause = self._likely_cause(item, call) if rules.SYNCHRONIZE.search(call) or call == "free" else None
        return [(cause, Edge.INFERRED)] if cause is not None else []

    def _likely_cause(self, item: Item, call: str) -> Kernel | None:
        """What a call without record waited for: of the work launched before that ended inside it, the one that ended
        as the call returned. Else the last, if the call waits for all streams or only one is left to wait for; of
        `cudaFree`, which takes long by itself, nothing is known then."""
        ended = [k for k in self.gpu.last_per_stream(item.start) if item.start < k.end <= item.end + rules.SYNC_EARLY]
        near = [kernel for kernel in ended if _just_before(kernel.end, item.end)]
        if near:
            return min(near, key=lambda kernel: abs(item.end - kernel.end))
        by_definition = call != "free" and ("device" in call or len(ended) == 1)
        return max(ended, key=lambda kernel: kernel.end) if ended and by_definition else None

    def _recorded_causes(self, row: int, record: int) -> list[Kernel]:
        """What a recorded synchronisation waits for: an event's kernel, a stream's last, or the last of every stream."""
        events, gpu = self.events, self.gpu
        source = events.runtime_of.get(events.sync_correlation[record])
        if source is not None:
            kernel = gpu.last_on(events.sync_stream[record], events.start[source])
            return [kernel] if kernel is not None else []
        stream = events.stream[record]
        if stream >= 0:
            kernel = gpu.last_on(stream, events.start[row])
            return [kernel] if kernel is not None else []
        return gpu.last_per_stream(events.start[row])

    def _wait(self, name: str, item: Item, causes: list[tuple[Kernel, Edge]]) -> None:
        own = min(item.end - item.start, rules.BLOCKING_OWN)
        node = self._add(name, Cls.CPU, item.end, item.row, own=own)
        long = item.end - item.start > rules.LONG_CALL
        inferred = any(kind is Edge.INFERRED for _, kind in causes)
        self.builder.counts["waits"] += long
        self.builder.counts["waits_inferred" if inferred else "waits_recorded"] += long
        for kernel, kind in causes:
            lag = item.end - own - kernel.end
            self.builder.link(kernel.last, node, kind, max(-rules.SYNC_EARLY, min(lag, rules.SYNC_LATE)))

    def _reveal_hidden_wait(self, until: Ns) -> None:
        """Silence before `cudaEventElapsedTime` or `cudaFree` that ends with a kernel was a wait (docs/replay.md §1.5).

        Make it one, by shortening the stretch that hides it.
        """
        last = self.builder.members[self.lane][-1] if self.builder.members[self.lane] else None
        if last is None or self.builder.cls[last] not in (Cls.CPU, Cls.HOST_GAP, Cls.COMPUTE):
            return
        if self.builder.dur[last] <= rules.HIDDEN_WAIT:
            return
        begin = self.builder.start[last]
        near = [k for k in self.gpu.last_per_stream(until) if _just_before(k.end, until) and k.end > begin]
        closest = min(near, key=lambda kernel: abs(until - kernel.end), default=None)
        if closest is None:
            return
        self.builder.dur[last] = rules.BLOCKING_OWN
        self.builder.counts["waits"] += 1
        self.builder.counts["waits_inferred"] += 1
        node = self._add("wait before the next call", Cls.WAIT, until, own=0)
        self.builder.link(closest.last, node, Edge.INFERRED, until - closest.end)

    def _load(self, item: Item) -> None:
        """The loader's `next`: work of this thread, or a wait for a worker's batch."""
        name = self.events.name[item.row]
        source = self.loader.batch(self.builder, self.lane, item.start, item.end, name, self.events.step_at(item.start))
        if source is None:
            self._add(name, Cls.DATA, item.end, item.row)
            return
        node = self._add(name, Cls.DATA, item.end, item.row, own=min(item.end - item.start, source.own))
        self.builder.link(source.node, node, Edge.SYNC)
        self.loader.received(source, node)

    def _gap_until(self, until: Ns, after: str) -> None:
        """The time up to the next item, without any recorded operation: a wait, where a cause ends in it, then a gap."""
        begin = self._now
        if until <= begin:
            return
        waited = self.gloo.awaited(self.tid, begin, until, after_backward=_is_backward(self._previous))
        if waited is not None:
            node = self._add("wait for collectives", Cls.WAIT, waited.until, own=0)
            for collective in waited.collectives:
                self.builder.link(collective.last, node, Edge.INFERRED, min(0, waited.until - collective.end))
            long = waited.until - begin > rules.LONG_CALL
            self.builder.counts["waits"] += long
            self.builder.counts["waits_inferred"] += long
        elif self.partner is not None and until - begin > rules.HANDOVER:
            moment = self.partner.last_end(begin, until)
            if moment is not None:
                node = self._add("hand-over", Cls.WAIT, moment, own=0)
                self.handovers.append((moment, node))
        if until > self._now:
            self._add(f"{self._previous} → {after}", Cls.HOST_GAP, until)


class Busy:
    """When a thread ran recorded operations or calls, at the top level."""

    def __init__(self, events: RankEvents, rows: list[int]) -> None:
        self._ends: list[Ns] = []
        for row in rows:
            if not self._ends or events.end[row] > self._ends[-1]:
                self._ends.append(events.end[row])

    def last_end(self, begin: Ns, until: Ns) -> Ns | None:
        """The last moment in (begin, until] at which the thread stopped working."""
        at = bisect_right(self._ends, until)
        return self._ends[at - 1] if at > bisect_left(self._ends, begin + 1) else None


def _nested(items: list[Item]) -> list[tuple[Item, list[Item]]]:
    """Each top-level item with the items inside it. An item that crosses the border of another begins behind it."""
    found: list[tuple[Item, list[Item]]] = []
    reached: Ns = 0
    for item in items:
        if found and item.start < found[-1][0].end < item.end:
            item = replace(item, start=found[-1][0].end)
        if not found or item.start >= found[-1][0].end:
            found.append((item, []))
            reached = item.start
        elif item.start >= reached:
            found[-1][1].append(item)
            reached = item.end
    return found


def _just_before(moment: Ns, call_end: Ns) -> bool:
    """Whether something that ended at `moment` can be what a call that returned at `call_end` waited for."""
    return -rules.SYNC_EARLY <= call_end - moment <= rules.SYNC_LATE


def _is_backward(name: str) -> bool:
    return name.startswith("autograd::engine") or "Backward" in name or "AccumulateGrad" in name or "c10d::" in name
