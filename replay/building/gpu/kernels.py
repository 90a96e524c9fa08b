"""The GPU part of a rank: its work in stream order, the launches behind it, and the orders in which it is looked up."""

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
    """All work on the GPU streams of one rank, by start. Other arrays hold an entry for each piece of work; -1 is none."""

    events: RankEvents
    lanes: tuple[Lane, ...]
    streams: np.ndarray
    """Number of the stream of each lane, shape (lanes,)."""
    nodes: np.ndarray
    """The nodes of all pieces (`node_records.NODE`), lane by lane."""
    row: np.ndarray
    """Row of each piece in the event table."""
    lane: np.ndarray
    """Lane of each piece, an index into `lanes`."""
    before: np.ndarray
    """The piece before each on its stream."""
    first: np.ndarray
    """Node of each piece; of a matched collective its arrival."""
    last: np.ndarray
    """Node of each piece; of a matched collective its transfer."""
    launch: np.ndarray
    """Row of the runtime call that launched each piece."""
    has_queue: bool
    """Whether launches wait for room in the queue of their stream."""

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def start(self) -> np.ndarray:
        return entries(self.events.start, self.row, 0)

    @cached_property
    def end(self) -> np.ndarray:
        return entries(self.events.end, self.row, 0)

    def end_of(self, work: np.ndarray) -> np.ndarray:
        """When pieces of work ended, ns; 0 for -1."""
        return entries(self.end, work, 0)

    @cached_property
    def launched(self) -> np.ndarray:
        """When each piece was launched, ns.

        A stream runs in order of launch. So a launch that was not recorded came before that of the next piece on the stream,
        and before the window where no launch to the stream had been recorded by then.
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
        """A moment before all work and all calls."""
        return int(self.start.min(initial=self.events.begin))

    @cached_property
    def to_stream(self) -> Sequences:
        """The work of each lane in order of launch, which is not always the order of recorded times."""
        return Sequences(self.lane, self.launched, self.origin)

    @cached_property
    def thread(self) -> np.ndarray:
        """Number of the thread that launched each piece."""
        return np.where(self.launch >= 0, self.events.thread[self.launch], -1)

    @cached_property
    def by_thread(self) -> Sequences:
        """The work that each thread launched, in order of launch."""
        return Sequences(self.thread, self.launched, self.origin)

    @cached_property
    def event_records(self) -> np.ndarray:
        """Rows of the calls by which the script recorded events.

        What a collective records is not the script's: its end is known to be an event, and its begin is waited for at once.
        """
        rows = self.events.runtime
        rows = rows[self.events.by_name(rows, call_traits, CALL_TRAITS)["records_event"]]
        found: np.ndarray = rows[self.events.inside_comms(rows) < 0]
        return found

    @cached_property
    def in_order(self) -> np.ndarray:
        """All work in order of launch."""
        return np.argsort(self.launched, kind="stable")

    @cached_property
    def in_graph(self) -> np.ndarray:
        """bool: one call launched the piece together with others (CUDA graphs)."""
        known = self.launch >= 0
        # How many pieces each row launched.
        mates = np.bincount(self.launch[known], minlength=1)
        of_launch: np.ndarray = mates[np.where(known, self.launch, 0)]
        return known & (of_launch > 1)

    @cached_property
    def is_first(self) -> np.ndarray:
        """bool: the piece is the first that its call launched, or its call is not known."""
        of_call = entries(self.launched_by, self.launch, -1)
        return np.where(self.launch >= 0, of_call == np.arange(len(self)), True)

    @cached_property
    def launched_by(self) -> np.ndarray:
        """The first piece that each row of the event table launched, int32; -1 for none."""
        found = np.full(len(self.events.start), -1, np.int32)
        # Of several values for one place numpy keeps the last: backwards, the first piece.
        latest_first = self.in_order[::-1][self.launch[self.in_order[::-1]] >= 0]
        found[self.launch[latest_first]] = latest_first
        return found

    def last_per_stream(self, moment: np.ndarray) -> np.ndarray:
        """The last work launched to each stream at or before these moments (ns), shape (moments, lanes)."""
        lanes = np.broadcast_to(np.arange(len(self.lanes)), (len(moment), len(self.lanes)))
        return self.to_stream.last(lanes, np.broadcast_to(moment[:, None], lanes.shape))

    def last_on_another(self, lane: np.ndarray, moment: np.ndarray) -> np.ndarray:
        """The last work launched at or before these moments (ns) to any other stream than that of `lane`; -1 for none."""
        # In order of launch, `since` is where the run of launches to one stream begins that each launch is part of. Where
        # the last launch is to `lane` itself, the one before its run is the last to another stream.
        order, lanes = self.in_order, self.lane[self.in_order]
        since = np.maximum.accumulate(np.where(np.diff(lanes, prepend=-1) != 0, np.arange(len(lanes)), 0))
        at = np.searchsorted(self.launched[order], moment, side="right") - 1
        own = entries(lanes, at, -1) == lane
        return entries(order, np.where(own, entries(since, at, 0) - 1, at), -1)

    @cached_property
    def makes_room(self) -> np.ndarray:
        """For each row of the event table, the work whose end lets its launch into its stream's finite queue; -1: none.

        Launch n to a stream returns only after kernel n - Q has started, where Q is the depth of the queue
        (docs/explanation/replay.md §1.6). A kernel starts when the one before it ends. What one call launches takes one
        place.
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
        """How many of the pieces `order` stand in a full queue of that depth before each of them, int64[pieces].

        All, but behind a lost step, of whose launches nothing was recorded: how many those are is told by the launches
        behind it that wait for room. Where those do not agree, so many are said to stand there that there are none.
        """
        ahead = np.full(len(order), depth)
        step = self.events.step_at(self.launched[order])
        known = np.unique(step[step >= 0])
        for lost in np.flatnonzero(np.diff(known) > 1):
            begin = int(np.argmax(step == known[lost + 1]))
            straddling = np.arange(begin, min(begin + depth, len(order)))
            call = self.launch[order[straddling]]
            waits = (call >= 0) & (self.events.end[call] - self.events.start[call] > rules.MIN_WAITING_CALL)
            # The last piece that had started when such a launch returned is what made room for it.
            started = np.searchsorted(self.start[order], self.events.end[call[waits]], side="right") - 1
            apart, count = np.unique(straddling[waits] - started, return_counts=True)
            # Launches take long for other reasons as well: those that wait for room have as many pieces before them.
            agree = len(apart) > 0 and 0 < apart[count.argmax()] <= depth and 2 * count.max() > count.sum()
            ahead[straddling] = apart[count.argmax()] if agree else len(order)
        return ahead

    def _queue_depth(self, order: np.ndarray) -> int:
        """How many launches to a stream may be outstanding, if its queue was ever full; `order` are its pieces.

        It is the most that were seen outstanding, or one or two less: a piece that has to start yet counts too, although it
        has left the queue. Of these, it is the depth by which most launches waited for room until they returned.
        """
        # How many kernels had started when each was launched: of those launched before it, the others were outstanding.
        started = np.searchsorted(np.sort(self.start[order]), self.launched[order], side="right")
        most = int((np.arange(len(order)) - started).max(initial=0))
        if most < rules.MIN_FULL_QUEUE:
            return most
        depths = [most - 2, most - 1, most]
        return max(depths, key=lambda depth: self._waited_for_room(order, depth))

    def _waited_for_room(self, order: np.ndarray, depth: int) -> int:
        """How many launches of the pieces `order` would have waited until they returned, were `depth` that of the queue."""
        call, ended = self.launch[order[depth:]], self.end_of(self.before[order[:-depth]])
        return int(((self.events.start[call] < ended) & (ended <= self.events.end[call]) & (call >= 0)).sum())


def gpu_work(events: RankEvents, rendezvous: RankRendezvous, next_ids: NextIds, *, has_queue: bool = True) -> GpuWork:
    """The GPU work of a rank, its lanes and nodes numbered from `next_ids` on. For `has_queue` see GpuWork."""
    rows = events.gpu
    lane, streams = numbered(events.ints("stream", rows))
    by_lane = np.argsort(lane, kind="stable")
    work = work_nodes(events, rendezvous, rows[by_lane], lane[by_lane], next_ids)
    before, first, last = (np.full(len(rows), -1) for _ in range(3))
    # Where two neighbours in order of lanes are on one lane, the one is the piece before the other.
    same = np.flatnonzero(lane[by_lane[1:]] == lane[by_lane[:-1]])
    before[by_lane[same + 1]] = by_lane[same]
    first[by_lane], last[by_lane] = work.first, work.last
    lanes = tuple(Lane(events.rank, LaneKind.STREAM, f"stream {stream}") for stream in streams.tolist())
    return GpuWork(events, lanes, streams, work.nodes, rows, lane, before, first, last, events.launch, has_queue)


def stream_order(gpu: GpuWork) -> np.ndarray:
    """Edges from each piece to the next on its stream, and from the arrival of a matched collective to its transfer.

    The pause between two pieces is the median of this rank's busy streams, and never more than was recorded between them.
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
    """Edges from each launch to its kernels, all of them if it launched a CUDA graph.

    The latency counts from the start of the call, since a kernel may run before the call returns: the edge comes from the
    node before the call. A kernel that found its stream idle and had nothing else to wait for shows its latency; all others
    have that of the quickest of those. `held` (bool) are the pieces that an event of another stream may have held back.
    Unless the latency `is_short`, each kernel keeps what was recorded between its launch and its start.
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
    """The time from a launch to its kernel, of the latencies that were `shown`, ns.

    It is a low quantile: some of these kernels waited for what nothing tells, the device's memory or its other streams.
    """
    if len(shown) < rules.MIN_LATENCIES:
        return rules.DEFAULT_LAUNCH_LATENCY
    return int(np.quantile(shown, rules.LATENCY_QUANTILE))


def coverage(gpu: GpuWork) -> BuildCounts:
    """How much GPU work there is, how much of it no recorded call launched, and how many launches have no work.

    Work at the head of a stream was launched before the window opened, and does not count as lost.
    """
    first_launched = np.full(len(gpu.lanes), len(gpu))
    known = np.flatnonzero(gpu.launch >= 0)
    np.minimum.at(first_launched, gpu.lane[known], known)
    lost = (gpu.launch < 0) & (np.arange(len(gpu)) > first_launched[gpu.lane])
    launching = gpu.events.by_name(gpu.events.runtime, call_traits, CALL_TRAITS)["launches"]
    return BuildCounts(
        kernels=len(gpu),
        kernels_without_launch=int(lost.sum()),
        launches_without_kernel=max(0, int(launching.sum() - (gpu.launched_by >= 0).sum())),
    )


def _median(times: np.ndarray) -> Ns:
    """The median, 0 of nothing."""
    return int(np.median(times)) if len(times) else 0
