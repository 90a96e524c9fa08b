"""Tracks the trainer call of each rank, so that no rank waits for one that will not make the call.

`save()` on rank 0 alone, a rank with fewer steps, or a failed rank: a collective then hangs until its group's timeout,
half an hour, and names no rank. Here a thread of every rank writes its present call to the job's store; a waiting rank
reads it. Each call has a number, the same on all ranks that make the same calls.
"""

import atexit
import faulthandler
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, Literal, Protocol

import torch.distributed as dist
from torch.distributed import distributed_c10d

from esprof.core.errors import MismatchError
from esprof.core.frames import stack_of
from esprof.core.text import printable
from esprof.core.types import Rank
from esprof.elastic.verify.board import Board
from esprof.recorder.shared.torch_features import own_client

_REPORT_INTERVAL_S = 0.5
"""Interval at which a rank reports its call and, if it waits, checks the others, s."""

_MIN_WAIT_BEFORE_CHECK_S = 2.0
"""Time in a call before a rank checks the others, s."""

_MAX_FOREIGN_CALL_S = 6.0
"""How long another rank is in the same call of torch.distributed, outside of the trainer, before it counts as lost."""

_MAX_WAIT_BEFORE_EXIT_S = 3.0
"""How long a rank has to come out of what waits for others once it is known that nobody will come; then the process
ends."""

_MAX_RANKS_CHECKED = 16
"""Number of following ranks that each rank checks: together all ranks are checked, whatever the world size."""

_MAX_CPU_WHILE_WAITING_S = 0.001
"""A thread that runs no longer than this between two beats waits."""

_MAX_ERROR_CHARACTERS = 300
"""Maximum length of an error reported to other ranks."""

_NEWS, _VERDICT = "news", "verdict/"
"""Keys of the board: how often a rank has reported something other than a step, and why nobody will come to a call."""

_REMEDY = (
    "Make the same trainer calls on every rank. What one rank decides, such as when to stop, others learn by agree()."
)

_numbers = count()

_latest: "weakref.ref[StoreRollCall] | None" = None
"""That of the trainer that was made last: of others the script has seen what became of them."""

State = Literal["in", "out", "failed", "ended"]


@dataclass(frozen=True)
class _CallPosition:
    """The trainer call that a rank is in, or was in last."""

    number: int
    """Number of its last call of the trainer."""
    call: str
    state: State
    detail: str = ""
    """Of a failed or ended rank by which error; of another the call of torch.distributed in which it is outside."""
    beats: int = field(default=0, compare=False)
    """How often it has found itself in that call of torch.distributed. A rank that has left it, and lets no other
    thread of its run, finds nothing."""

    @property
    def is_usual(self) -> bool:
        """Whether the rank is in a step or after one: no other rank in a step needs to know of that."""
        return not self.detail and self.state in ("in", "out") and self.call.startswith("step ")


class RollCall(Protocol):
    """Tells which call this rank is in, and whether the others come to it."""

    number: int
    """Number of the trainer among those that this process has made: the same on all ranks."""

    def call(self, name: str) -> Any:
        """A context: this rank is in a call of the trainer that all ranks make."""

    def check(self) -> None:
        """Raise MismatchError where another rank will not come to the call that this one waits in."""

    def explain(self, error: Exception) -> None:
        """Raise MismatchError from `error`, which a collective has raised, if another rank is at fault."""

    def close(self) -> None:
        """No more calls are made."""


class AloneRollCall:
    """That of a job of one process, or of ranks that no store connects."""

    number = 0

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        yield

    def check(self) -> None: ...

    def explain(self, error: Exception) -> None: ...

    def close(self) -> None: ...


class StoreRollCall:
    """By torch.distributed's store, with a thread and a connection of its own."""

    def __init__(self, store: Any, rank: Rank, world: int) -> None:
        self._rank, self._world = rank, world
        self._others = [(rank + by) % world for by in range(1, min(world, _MAX_RANKS_CHECKED + 1))]
        self.number = next(_numbers)
        self._store = Board(_client(store), f"esprof/elastic/calls/{self.number}")
        self._position = _CallPosition(0, "nothing", "out")
        self._since = time.monotonic()
        self._main, self._pid = threading.get_ident(), os.getpid()
        self._verdict: str | None = None
        """Why another rank will not come, once that is known."""
        self._ran_s, self._still_since = 0.0, 0.0
        """How long the training thread has run, and since when it has done no more than that."""
        self._seen: dict[Rank, tuple[_CallPosition, float]] = {}
        """Where another rank was when last looked at, and since when."""
        self._looked: tuple[int | None, int] | None = None
        """The count of news and the call when the other ranks were last looked at."""
        self._reported: _CallPosition | None = None
        self._retained: list[Any] = []
        """Groups kept alive: deleting a gloo group waits for its collectives, without a Python frame that shows it."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._nowhere = open(os.devnull, "wb")  # noqa: SIM115 It has to stay open as long as the process.
        global _latest
        _latest = weakref.ref(self)
        _start(self)
        atexit.register(_end, weakref.ref(self))

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        self._main = threading.get_ident()
        self._move(_CallPosition(self._position.number + 1, name, "in"))
        try:
            yield
        except BaseException as error:
            self._move(_CallPosition(self._position.number, name, "failed", _told(error)))
            self._report()
            raise
        if self._verdict is not None:  # It was wrong: the others have come after all.
            self._verdict = None
            self._retained.clear()
            faulthandler.cancel_dump_traceback_later()
        self._move(_CallPosition(self._position.number, name, "out"))

    def check(self) -> None:
        if self._verdict is not None:
            raise MismatchError(self._verdict, remedy=_REMEDY)

    def explain(self, error: Exception) -> None:
        until = time.monotonic() + _MIN_WAIT_BEFORE_CHECK_S
        while self._verdict is None and time.monotonic() < until and not self._over.is_set():
            time.sleep(_REPORT_INTERVAL_S / 5)
            self._check_others(collective_failed=True)
        if self._verdict is not None:
            raise MismatchError(self._verdict, remedy=_REMEDY) from error

    def close(self, why: str = "") -> None:
        if self._over.is_set():
            return
        if self._position.state != "failed":
            self._move(_CallPosition(self._position.number, self._position.call, "ended", why))
        self._report()
        self._over.set()
        if self._verdict is not None:
            faulthandler.cancel_dump_traceback_later()
        # Else the store's server would outlive its group, and its port be taken.
        self._store.let_go()
        _client.cache_clear()

    def end(self) -> None:
        """The process ends. Where nobody has come, gloo's threads still wait, and the interpreter would wait for
        them."""
        if os.getpid() != self._pid:  # A child that the job has forked, with the parent's connection.
            return
        if self._verdict is not None and _latest is not None and _latest() is self:
            _leave()
        error = getattr(sys, "last_value", None)  # The one that ends the process, which nobody has caught.
        self.close(_told(error) if error is not None else "")

    def beat(self) -> None:
        """Report the call of this rank, and check the others if it waits. The thread calls this.

        Once it is known that nobody will come, the training thread may clean up for as long as it likes. Where it
        waits for other ranks itself, nothing but the end of the process ends that.
        """
        self._report()
        position, now = self._position, time.monotonic()
        waits = position.state == "in" or (self._reported is not None and self._reported.detail)
        if self._verdict is None and waits and now - self._since > _MIN_WAIT_BEFORE_CHECK_S:
            self._check_others()
        if self._verdict is None:
            return
        if not stack_of(self._main) or not (position.state == "in" or _collective_of(self._main)):
            self._still_since = now
            faulthandler.cancel_dump_traceback_later()
            return
        ran_s = time.clock_gettime(time.pthread_getcpuclockid(self._main))
        if ran_s - self._ran_s > _MAX_CPU_WHILE_WAITING_S:
            self._ran_s, self._still_since = ran_s, now
        elif now - self._still_since > _MAX_WAIT_BEFORE_EXIT_S:
            _leave()
        self._set_alarm()

    def _set_alarm(self) -> None:
        """End the process after a while unless this is called again, even where no thread of Python can run."""
        faulthandler.dump_traceback_later(
            _MAX_WAIT_BEFORE_EXIT_S + _MIN_WAIT_BEFORE_CHECK_S, exit=True, file=self._nowhere
        )

    def _move(self, position: _CallPosition) -> None:
        self._position, self._since = position, time.monotonic()

    def _report(self) -> None:
        position = self._position
        if position.state == "out" and (collective := _collective_of(self._main)):
            goes_on = self._reported is not None and self._reported.detail == collective
            beats = self._reported.beats + 1 if goes_on and self._reported is not None else 0
            position = _CallPosition(position.number, position.call, "out", collective, beats)
        if position != self._reported or position.beats:
            self._reported = position
            self._store.set(
                f"{self._rank}",
                json.dumps([position.number, position.call, position.state, position.detail, position.beats]),
            )
            if not position.is_usual:
                self._store.count(_NEWS)

    def _check_others(self, *, collective_failed: bool = False) -> None:
        """Find a rank that will not make the call, or read the verdict of another rank.

        While all ranks are in steps this asks the store for one number: others are looked at where there is news.
        """
        with self._lock:
            if self._verdict is not None:
                return
            looked = (self._store.count(_NEWS, 0), self._position.number)
            if not collective_failed and (not looked[0] or looked == self._looked):
                return
            self._looked = looked
            # A verdict applies to one call only: ranks may agree again in a later one.
            verdict = self._store.get(f"{_VERDICT}{self._position.number}") or self._found()
            if verdict is None and collective_failed and self._store.is_gone:  # Else its process may have ended well.
                verdict = f"{_holder()} is gone; rank {self._rank} is in {self._position.call}"
            if verdict is None:
                return
            self._store.set(f"{_VERDICT}{self._position.number}", verdict)
            self._store.count(_NEWS)
            # An exception may never be shown: its way up may lead through destroy_process_group(), which waits as well.
            sys.stderr.write(f"esprof: error: {verdict}\n")
            sys.stderr.flush()
            self._set_alarm()
            self._retained += dist.distributed_c10d._world.pg_map
            self._verdict = verdict

    def _found(self) -> str | None:
        mine = self._position
        if mine.state != "in":
            return None
        for rank, other in self._positions_of(self._others).items():
            if other is not None and (found := self._fault(mine, rank, other)):
                return found
        return None

    def _positions_of(self, ranks: list[Rank]) -> dict[Rank, _CallPosition | None]:
        """The last reported position of each rank; None if it has reported none."""
        texts = self._store.get_all([f"{rank}" for rank in ranks])
        return {
            rank: None if text is None else _CallPosition(*json.loads(text))
            for rank, text in zip(ranks, texts, strict=True)
        }

    def _fault(self, mine: _CallPosition, rank: Rank, other: _CallPosition) -> str | None:
        """Why `rank`, which is at `other`, will not come to this rank's call; None where it may."""
        waiting = f"rank {self._rank} is in {mine.call}"
        if other.number == mine.number and other.state == "failed":
            return f"rank {rank} failed in {other.call}: {other.detail}"
        # Two steps of one number: a rank has made a call by itself, so that numbers are out of step, and not the ranks.
        if other.number == mine.number and other.call != mine.call and not _are_steps(other.call, mine.call):
            return f"rank {rank} called {other.call} where rank {self._rank} called {mine.call}"
        # One that has ended after the very call that this rank is in has been in it to its end.
        if other.number < mine.number and other.state == "ended":
            by = f" by {other.detail}" if other.detail else ""
            return f"rank {rank} has ended after {other.call}{by}, and {waiting}"
        if other.number < mine.number and self._stays(rank, other) and self._nobody_comes_to(rank):
            return f"rank {rank} is in {other.detail} of torch.distributed after {other.call}, and {waiting}"
        return None

    def _stays(self, rank: Rank, position: _CallPosition) -> bool:
        """Whether `rank` has long been in one call of torch.distributed, and has found itself there again and again."""
        before, since = self._seen.get(rank, (None, 0.0))
        if before is None or before != position:
            before, since = self._seen[rank] = position, time.monotonic()
        found_for_s = (position.beats - before.beats) * _REPORT_INTERVAL_S
        return (
            bool(position.detail)
            and time.monotonic() - since > _MAX_FOREIGN_CALL_S
            and found_for_s > _MAX_FOREIGN_CALL_S / 2
        )

    def _nobody_comes_to(self, lost: Rank) -> bool:
        """Whether no rank is left that could come to the call of torch.distributed in which `lost` waits: all others
        are in a call of their trainer, in such a call themselves, or gone. Who belongs to that call is not known."""
        others = [rank for rank in range(self._world) if rank not in (lost, self._rank)]
        held = [
            position is not None and (position.state != "out" or self._stays(rank, position))
            for rank, position in self._positions_of(others).items()
        ]
        return all(held)


def roll_call() -> RollCall:
    """That of torch.distributed's default group, if there is one."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return AloneRollCall()
    return StoreRollCall(dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size())


@lru_cache(maxsize=1)
def _client(store: Any) -> Any:
    """A connection for this process, however many trainers it makes in turn."""
    return own_client(store)


def _start(roll: StoreRollCall) -> None:
    threading.Thread(target=_run, args=(weakref.ref(roll), roll._over), name="esprof-roll-call", daemon=True).start()


def _run(roll: "weakref.ref[StoreRollCall]", over: threading.Event) -> None:
    while not over.wait(_REPORT_INTERVAL_S):
        there = roll()
        if there is None:
            return
        there.beat()
        del there


def _end(roll: "weakref.ref[StoreRollCall]") -> None:
    there = roll()
    if there is not None:
        there.end()


def _leave() -> None:
    """End the process, and wait for no thread of it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _told(error: BaseException) -> str:
    return printable(f"{type(error).__name__}: {error}".partition("\n")[0], _MAX_ERROR_CHARACTERS)


def _holder() -> str:
    """Which process holds the job's store."""
    by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return "the process that holds the job's store" if by_launcher else "rank 0, which holds the job's store,"


def _are_steps(*calls: str) -> bool:
    return all(call.startswith("step ") for call in calls)


def _collective_of(thread: int) -> str:
    """The function of torch.distributed that this thread is in; empty where it is in none."""
    found = ""
    for code, _, _ in stack_of(thread):
        if code.co_filename == distributed_c10d.__file__:
            found = code.co_name
    return found
