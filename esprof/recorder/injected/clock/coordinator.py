"""Coordination of a job's ranks: first steps of windows, and offsets of their clocks.

Rank 0 is the leader. It receives requests for windows, chooses a future step for each, and sends it in its answers. The
other ranks ask about once a second, and estimate the offset of their clocks from question and answer.
"""

import os
import time

import torch.distributed as dist

from ....run.raw import names
from ....run.raw.settings import Settings
from ..log.background_writer import WriterTask
from ..log.notes import Log
from ..orders import OrderBox, step_ahead
from ..state import StepState
from ..windows.schedule import WindowSchedule
from .addresses import is_one_machine
from .channel import MAX_ORDERS, ChannelReading, ChannelServer, Client, WindowRequest
from .readings import ClockNotes, note_clock

_NS_PER_S = 1_000_000_000
_STORE_KEY = "esprof/rank-0"
_MAX_ASKS_PER_S = 200
"""Questions per second that rank 0 answers at most, on average: with more ranks, each asks less often."""
_MAX_WAIT_FOR_RANK_0_NS = 30 * _NS_PER_S


class Coordinator:
    """Task of the background writer that communicates with the other ranks, as the leader or as a follower."""

    def __init__(self, raw: str, state: StepState, log: Log, schedule: WindowSchedule, settings: Settings) -> None:
        self._raw = raw
        self._state = state
        self._log = log
        self._schedule = schedule
        self._settings = settings
        self._role: WriterTask | None = None

    def tick(self, now_ns: int) -> None:
        if self._role is None:
            self._role = self._choose_role(now_ns)
        self._role.tick(now_ns)

    def close(self) -> None:
        if self._role is not None:
            self._role.close()

    def _choose_role(self, now_ns: int) -> WriterTask:
        state, log = self._state, self._log
        together = dist.is_available() and dist.is_initialized() and state.world_size > 1
        if together and state.rank > 0:
            return Follower(self._raw, state, log, self._schedule, now_ns)
        if state.rank == 0:
            note_clock(log, ChannelReading(now_ns, 0, 0))
        server = _open_server(log) if together else None
        return Leader(self._raw, state, self._schedule, self._settings, now_ns, server)


class Leader:
    """Chooses the first steps of windows: on request, and by elapsed time."""

    def __init__(
        self,
        raw: str,
        state: StepState,
        schedule: WindowSchedule,
        settings: Settings,
        now_ns: int,
        server: ChannelServer | None,
    ) -> None:
        self._state = state
        self._schedule = schedule
        self._box = OrderBox(raw)
        self._server = server
        self._every_ns = round(settings.every_s * _NS_PER_S)
        by_time = settings.windows and not settings.by_steps
        self._next_ns = now_ns + round(settings.skip_s * _NS_PER_S) if by_time else None
        self._waiting: list[WindowRequest] = []
        self._known: set[int] = set()
        self._orders: list[int] = []

    def tick(self, now_ns: int) -> None:
        if self._server is not None:
            self._take(self._server.answer(self._orders))
        self._take(self._box.new_requests())
        if self._next_ns is not None and now_ns >= self._next_ns:
            self._waiting.append(WindowRequest(now_ns, 0))
            self._next_ns = now_ns + self._every_ns if self._every_ns else None
        self._order()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _take(self, requests: list[WindowRequest]) -> None:
        """Add new requests: the same one arrives repeatedly, and from several ranks."""
        for request in requests:
            if request.asked_ns not in self._known:
                self._known.add(request.asked_ns)
                self._waiting.append(request)

    def _order(self) -> None:
        """Order the requested windows. A planned window that overlaps one replaces it."""
        if not self._waiting:
            return
        soonest = step_ahead(self._state, 1 + 2 * interval_s(self._state.world_size))
        if soonest is None:
            return
        for request in self._waiting:
            at = max(soonest, request.at)
            if self._schedule.order(at):
                self._orders = [*self._orders[1 - MAX_ORDERS :], at]
        self._waiting.clear()


class Follower:
    """Asks rank 0 for its time and for the first steps of windows."""

    def __init__(self, raw: str, state: StepState, log: Log, schedule: WindowSchedule, now_ns: int) -> None:
        self._raw = raw
        self._state = state
        self._log = log
        self._schedule = schedule
        self._client: Client | None = None
        self._clock = ClockNotes(log)
        self._box: OrderBox | None = None
        self._request: WindowRequest | None = None
        self._heard: set[int] = set()
        self._in_window = False
        self._given_up = False
        self._since_ns = now_ns
        self._interval_ns = round(interval_s(state.world_size) * _NS_PER_S)
        # Spread the questions of all ranks evenly over the interval.
        self._next_ns = now_ns + self._interval_ns * state.rank // state.world_size

    def tick(self, now_ns: int) -> None:
        if self._client is not None:
            self._hear(self._client, now_ns)
        if self._given_up or now_ns < self._next_ns:
            return
        if self._client is None:
            self._search(now_ns)
        else:
            self._ask(self._client, now_ns)

    def close(self) -> None:
        if self._client is not None:
            self._hear(self._client, time.time_ns())
            self._clock.note()
            self._client.close()

    def _search(self, now_ns: int) -> None:
        """Connect to rank 0 if its address is in the job's store."""
        try:
            address = _address_in_store()
        except (RuntimeError, ValueError):
            # The store ends with rank 0's process, the process group with the training.
            self._given_up = True
            return
        if address is not None:
            self._client = Client(address)
            self._since_ns = now_ns
            if self._client.is_same_machine:
                self._clock.is_rank_0s(now_ns)
            # Rank 0 of another launcher writes to another folder and does not see the orders in this one.
            if not os.path.exists(os.path.join(self._raw, names.notes_of(0))):
                self._box = OrderBox(self._raw)
        else:
            self._next_ns = now_ns + _NS_PER_S
            self._lose_patience(now_ns, "left no address in the job's store")

    def _ask(self, client: Client, now_ns: int) -> None:
        if self._box is not None:
            self._request = next(reversed(self._box.new_requests()), self._request)
        client.ask(self._request)
        self._next_ns = now_ns if self._clock.is_new else now_ns + self._interval_ns
        if not client.was_answered:
            self._lose_patience(now_ns, "does not answer: UDP may be blocked between the hosts")

    def _hear(self, client: Client, now_ns: int) -> None:
        readings, orders = client.hear()
        self._clock.add(readings)
        for at in orders:
            if at not in self._heard:
                self._heard.add(at)
                self._heed(at)
        was, self._in_window = self._in_window, self._schedule.phase(self._state.step) != "plain"
        self._clock.note_where_due(now_ns, at_boundary=was != self._in_window)

    def _heed(self, at: int) -> None:
        step = self._state.step
        # The next step may start before the order takes effect.
        if at > step + 1:
            self._schedule.order(at)
        else:
            self._log.note("missed", at=at, step=step)

    def _lose_patience(self, now_ns: int, why: str) -> None:
        if now_ns - self._since_ns > _MAX_WAIT_FOR_RANK_0_NS:
            self._given_up = True
            self._log.note("fault", message=f"no clock to compare with, and no windows on demand: rank 0 {why}")


def interval_s(world_size: int) -> float:
    """Time between two questions of a rank, s."""
    return max(1.0, world_size / _MAX_ASKS_PER_S)


def _open_server(log: Log) -> ChannelServer | None:
    """Open a server and put its address into the job's store. None without a store or a network."""
    try:
        store = dist.distributed_c10d._get_default_store()
        if store is None:
            return None
        server = ChannelServer(one_machine=is_one_machine())
        store.set(_STORE_KEY, server.address)
        return server
    except (OSError, RuntimeError, ValueError) as fault:
        # Not if the training thread has just destroyed the process group: then there are no ranks to lead.
        if dist.is_initialized():
            log.note("fault", message=f"windows on demand, and clocks, on rank 0 only: {fault}")
        return None


def _address_in_store() -> str | None:
    """Rank 0's address; None if it is not in the job's store yet. Does not wait, and holds no reference to the store, which
    must be freed when the job drops it."""
    store = dist.distributed_c10d._get_default_store()
    return str(store.get(_STORE_KEY), "ascii") if store is not None and store.check([_STORE_KEY]) else None
