"""GPU work of a rank: kernels and copies in stream order, their launches, and lookups by stream, thread and time."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.core.types import Ns
from esprof.replay import rules
from esprof.replay.building.collectives.nodes import work_nodes
from esprof.replay.building.collectives.rendezvous import RankRendezvous
from esprof.replay.building.counts import BuildCounts
from esprof.replay.building.lookup import Sequences, entries, numbered
from esprof.replay.building.node_records import NextIds, edges_of, joined
from esprof.replay.building.rank_events import RankEvents
from esprof.replay.building.threads.cpu_threads import Chains
from esprof.replay.dfg import Edge, Lane, LaneKind
from esprof.replay.runtime_names import CALL_TRAITS, call_traits


@dataclass(frozen=True)
class GpuWork:
    """Kernels, copies and collectives on the GPU streams of one rank, sorted by start.

    Each is a piece of work; arrays without a shape have one entry per piece. -1 stands for none.
    """

    events: RankEvents
    lanes: tuple[Lane, ...]
    streams: np.ndarray
    """Number of the stream of each lane, shape (lanes,)."""
    nodes: np.ndarray
    """Nodes of all pieces (`node_records.NODE`), sorted by lane."""
    row: np.ndarray
    """Row of each piece in the event table."""
    lane: np.ndarray
    """Lane of each piece, an index into `lanes`."""
    before: np.ndarray
    """Previous piece on the same stream."""
    first: np.ndarray
    """First node of each piece: for a matched collective its arrival, otherwise the only node."""
    last: np.ndarray
    """Last node of each piece: for a matched collective its communication, otherwise the only node."""
    launch: np.ndarray
    """Row of the runtime call that launched each piece."""
    has_queue: bool
    """Whether a launch blocks while the queue of its stream is full."""

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def start(self) -> np.ndarray:
        return entries(self.events.start, self.row, 0)

    @cached_property
    def end(self) -> np.ndarray:
        return entries(self.events.end, self.row, 0)

    def end_of(self, work: np.ndarray) -> np.ndarray:
        """Recorded end of each of the pieces `work`, ns; 0 for -1."""
        return entries(self.end, work, 0)

    @cached_property
    def launched(self) -> np.ndarray:
        """Time at which each piece was launched, ns.

        A stream runs in launch order. An unrecorded launch therefore precedes the launch of the next piece on the stream.
        It precedes the recorded window if no earlier piece of the stream has a recorded launch.
        """
        known = self.launch >= 0
        launched = np.where(known, self.events.start[self.launch], np.iinfo(np.int64).max)
        for lane in range(len(self.lanes)):
            mine = np.flatnonzero(self.lane == lane)
            latest = np.minimum.accumulate(launched[mine][::-1])[::-1]
            before_window = ~np.logical_or.accumulate(known[mine])
            latest[before_window] = np.minimum(latest[before_window], self.events.begin)
            launched[mine] = latest
        found: np.ndarray = np.where(known, self.events.start[self.launch], np.minimum(launched, self.start))
        return found

    @cached_property
    def is_collective(self) -> np.ndarray:
        return np.isin(self.row, self.events.collectives.row)

    @property
    def origin(self) -> Ns:
        """A time, ns, at or before the start of all GPU work and of the window."""
        return int(self.start.min(initial=self.events.begin))

    @cached_property
    def to_stream(self) -> Sequences:
        """Work of each lane in launch order, which may differ from the order of recorded start times."""
        return Sequences(self.lane, self.launched, self.origin)

    @cached_property
    def thread(self) -> np.ndarray:
        """Number of the thread that launched each piece."""
        return np.where(self.launch >= 0, self.events.thread[self.launch], -1)

    @cached_property
    def by_thread(self) -> Sequences:
        """Work that each thread launched, in launch order."""
        return Sequences(self.thread, self.launched, self.origin)

    @cached_property
    def event_records(self) -> np.ndarray:
        """Rows of the calls by which the script recorded CUDA events.

        Events recorded inside a collective's call are excluded: the one at its end is known to exist, and the one at its
        begin is waited for at once.
        """
        rows = self.events.runtime
        rows = rows[self.events.by_name(rows, call_traits, CALL_TRAITS)["records_event"]]
        found: np.ndarray = rows[self.events.inside_comms(rows) < 0]
        return found

    @cached_property
    def in_order(self) -> np.ndarray:
        """All pieces in launch order."""
        return np.argsort(self.launched, kind="stable")

    @cached_property
    def in_graph(self) -> np.ndarray:
        """bool: the call that launched the piece launched others as well (CUDA graphs)."""
        known = self.launch >= 0
        mates = np.bincount(self.launch[known], minlength=1)
        of_launch: np.ndarray = mates[np.where(known, self.launch, 0)]
        return known & (of_launch > 1)

    @cached_property
    def is_first(self) -> np.ndarray:
        """bool: the piece is the first that its call launched, or its call is unknown."""
        of_call = entries(self.launched_by, self.launch, -1)
        return np.where(self.launch >= 0, of_call == np.arange(len(self)), True)

    @cached_property
    def launched_by(self) -> np.ndarray:
        """First piece that each row of the event table launched, int32; -1 for none."""
        found = np.full(len(self.events.start), -1, np.int32)
        # With repeated indices numpy stores the last value; in reverse launch order that is the first piece.
        latest_first = self.in_order[::-1][self.launch[self.in_order[::-1]] >= 0]
        found[self.launch[latest_first]] = latest_first
        return found

    def last_per_stream(self, moment: np.ndarray) -> np.ndarray:
        """Last piece launched to each stream at or before each `moment` (ns), shape (moments, lanes)."""
        lanes = np.broadcast_to(np.arange(len(self.lanes)), (len(moment), len(self.lanes)))
        return self.to_stream.last(lanes, np.broadcast_to(moment[:, None], lanes.shape))

    def last_on_another(self, lane: np.ndarray, moment: np.ndarray) -> np.ndarray:
        """Last piece launched at or before each `moment` (ns) to a stream other than that of `lane`; -1 for none."""
        # Consecutive launches to one stream form a run; `since` is the index at which the run of each launch begins. If
        # the last launch went to `lane` itself, the launch before its run is the last one to another stream.
        order, lanes = self.in_order, self.lane[self.in_order]
        since = np.maximum.accumulate(np.where(np.diff(lanes, prepend=-1) != 0, np.arange(len(lanes)), 0))
        at = np.searchsorted(self.launched[order], moment, side="right") - 1
        own = entries(lanes, at, -1) == lane
        return entries(order, np.where(own, entries(since, at, 0) - 1, at), -1)

    @cached_property
    def makes_room(self) -> np.ndarray:
        """For each launch, by row of the event table, the work whose end frees a slot in the stream's queue; -1 for none.

        Launch n to a stream returns only after kernel n - Q has started, where Q is the depth of the queue
        (docs/explanation/replay.md §1.6). A kernel starts when the previous one ends. All work of one call takes one slot.
        """
        room = np.full(len(self.events.start), -1, np.int32)
        first = self.in_order[self.is_first[self.in_order]]
        for lane in range(len(self.lanes)):
            order = first[self.lane[first] == lane]
            depth = self._queue_depth(order) if self.has_queue else 0
            if depth >= rules.MIN_FULL_QUEUE:
                ahead = np.arange(len(order)) - self._seen_ahead(order, depth)
                mine = np.flatnonzero((ahead >= 0) & (self.launch[order] >= 0))
                room[self.launch[order[mine]]] = self.before[order[ahead[mine]]]
        return room

    def _seen_ahead(self, order: np.ndarray, depth: int) -> np.ndarray:
        """How many recorded pieces a full queue of that depth holds ahead of each of the pieces `order`, int64[pieces].

        The result is `depth`, except after a step whose launches were lost. There the number follows from the launches
        after that step which wait for room. If these disagree, it is set so high that no piece counts as ahead.
        """
        ahead = np.full(len(order), depth)
        step = self.events.step_at(self.launched[order])
        known = np.unique(step[step >= 0])
        for lost in np.flatnonzero(np.diff(known) > 1):
            begin = int(np.argmax(step == known[lost + 1]))
            straddling = np.arange(begin, min(begin + depth, len(order)))
            call = self.launch[order[straddling]]
            waits = (call >= 0) & (self.events.end[call] - self.events.start[call] > rules.MIN_WAITING_CALL)
            # The last piece that had started when a waiting launch returned made room for it.
            started = np.searchsorted(self.start[order], self.events.end[call[waits]], side="right") - 1
            apart, count = np.unique(straddling[waits] - started, return_counts=True)
            # A launch may be long for other reasons; those that wait for room all have the same number of pieces ahead.
            agree = len(apart) > 0 and 0 < apart[count.argmax()] <= depth and 2 * count.max() > count.sum()
            ahead[straddling] = apart[count.argmax()] if agree else len(order)
        return ahead

    def _queue_depth(self, order: np.ndarray) -> int:
        """Depth of a stream's launch queue, in launches, provided that it was ever full; `order` are the stream's pieces.

        Candidates are the largest number of outstanding launches, and one or two less, because a piece that has left the
        queue may not have started yet. The candidate that explains most waiting launches is chosen.
        """
        # Launches that had been made but not started when each piece was launched.
        started = np.searchsorted(np.sort(self.start[order]), self.launched[order], side="right")
        most = int((np.arange(len(order)) - started).max(initial=0))
        if most < rules.MIN_FULL_QUEUE:
            return most
        depths = [most - 2, most - 1, most]
        return max(depths, key=lambda depth: self._waited_for_room(order, depth))

    def _waited_for_room(self, order: np.ndarray, depth: int) -> int:
        """How many launches of the pieces `order` returned as a slot became free, assuming a queue of that `depth`."""
        call, ended = self.launch[order[depth:]], self.end_of(self.before[order[:-depth]])
        return int(((self.events.start[call] < ended) & (ended <= self.events.end[call]) & (call >= 0)).sum())


def gpu_work(events: RankEvents, rendezvous: RankRendezvous, next_ids: NextIds, *, has_queue: bool = True) -> GpuWork:
    """GPU work of a rank; lanes and nodes are numbered from `next_ids`. For `has_queue` see `GpuWork`."""
    rows = events.gpu
    lane, streams = numbered(events.ints("stream", rows))
    by_lane = np.argsort(lane, kind="stable")
    work = work_nodes(events, rendezvous, rows[by_lane], lane[by_lane], next_ids)
    before, first, last = (np.full(len(rows), -1) for _ in range(3))
    same = np.flatnonzero(lane[by_lane[1:]] == lane[by_lane[:-1]])
    before[by_lane[same + 1]] = by_lane[same]
    first[by_lane], last[by_lane] = work.first, work.last
    lanes = tuple(Lane(events.rank, LaneKind.STREAM, f"stream {stream}") for stream in streams.tolist())
    return GpuWork(events, lanes, streams, work.nodes, rows, lane, before, first, last, events.launch, has_queue)


def stream_order(gpu: GpuWork) -> np.ndarray:
    """Edges from each piece to the next on its stream, and from a matched collective's arrival to its communication.

    The lag between two pieces is the median pause of this rank's busy streams, capped at the recorded pause.
    """
    after = np.flatnonzero(gpu.before >= 0)
    own = gpu.start[after] - gpu.end[gpu.before[after]]
    busy = (
        (gpu.launched[after] <= gpu.end[gpu.before[after]]) & (gpu.launch[after] >= 0) & (own <= rules.MAX_STREAM_GAP)
    )
    lag = np.maximum(np.minimum(own, _median(own[busy])), 0)
    to_next = edges_of(gpu.last[gpu.before[after]], gpu.first[after], Edge.LANE, lag)
    return joined([to_next, edges_of(gpu.first, gpu.last, Edge.LANE)])


def launches(gpu: GpuWork, chains: Chains, held: np.ndarray, *, is_short: bool = True) -> np.ndarray:
    """Edges from each launch to its kernels; a CUDA graph has many.

    The launch latency counts from the start of the call, since a kernel may run before the call returns; the source is the
    node before the call. A kernel that found its stream idle and waited for nothing else shows its latency; all others get
    a low quantile of those latencies. `held` (bool) marks pieces that an event of another stream may have held back.
    Without `is_short`, the lag of each kernel is its recorded time from launch to start.
    """
    mine = np.flatnonzero(gpu.launch >= 0)
    own = gpu.start[mine] - gpu.launched[mine]
    before = gpu.before[mine]
    idle = ((before < 0) | (gpu.end[before] < gpu.launched[mine])) & gpu.is_first[mine]
    shows = idle & ~held[mine] & ~gpu.is_collective[mine]
    least = _latency(own[shows])
    lag = np.where(shows & (own <= least + rules.MIN_KERNEL_LATENESS), own, np.minimum(own, least)) if is_short else own
    source = chains.ending_by(gpu.events.thread[gpu.launch[mine]], gpu.launched[mine])
    return edges_of(source, gpu.first[mine], Edge.LAUNCH, lag)


def _latency(shown: np.ndarray) -> Ns:
    """Launch latency of a kernel on an idle stream, ns, from the observed latencies `shown`, ns.

    A low quantile, because some of these kernels waited for causes that were not recorded, for example other streams.
    """
    if len(shown) < rules.MIN_LATENCIES:
        return rules.DEFAULT_LAUNCH_LATENCY
    return int(np.quantile(shown, rules.LATENCY_QUANTILE))


def coverage(gpu: GpuWork) -> BuildCounts:
    """Count pieces of GPU work, pieces without a recorded launch, and launches without recorded work.

    Work at the head of a stream was launched before the window began and does not count as missing a launch.
    """
    first_launched = np.full(len(gpu.lanes), len(gpu))
    known = np.flatnonzero(gpu.launch >= 0)
    np.minimum.at(first_launched, gpu.lane[known], known)
    lost = (gpu.launch < 0) & (np.arange(len(gpu)) > first_launched[gpu.lane])
    launching = gpu.events.by_name(gpu.events.runtime, call_traits, CALL_TRAITS)["launches"]
    return BuildCounts(
        kernels=int((gpu.row < gpu.events.recorded).sum()),
        kernels_without_launch=int(lost.sum()),
        launches_without_kernel=max(0, int(launching.sum() - (gpu.launched_by >= 0).sum())),
    )


def _median(times: np.ndarray) -> Ns:
    """The median, ns; 0 for an empty array."""
    return int(np.median(times)) if len(times) else 0
