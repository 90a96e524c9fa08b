"""Watch a process that will train until the end of its first step, and take a snapshot if it hangs before.

A process becomes a rank at the end of its first step. Until then it may also be a helper that never trains, so its files
have separate names, and are removed when it becomes a rank or ends normally.
"""

import atexit
import fcntl
import functools
import inspect
import multiprocessing.util
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.optim import Optimizer

from ....core.frames import stack_of
from ....run.raw import names
from ....run.raw.new_files import NewFile
from ....run.raw.reasons import SnapshotReason
from ....run.raw.settings import Settings
from ...shared import identity
from ..log.circuit_breaker import CircuitBreaker
from ..log.notes import Log, encode
from ..orders import OrderBox
from ..rank_identity import rank_identity
from ..steps.saves import rebind
from .fatal_signals import note_fatal_signals
from .snapshot import awaited_workers, calls, error_fields, groups, thread_of_error, threads, write_snapshot
from .stillness import Stillness

_TICK_S = 1.0
_TICKS_PER_PATIENCE = 8
_JOIN_FUNCTION = "init_process_group"


class _Life(NamedTuple):
    """This process under the rank that it is expected to become."""

    pid: int
    rank: int
    world_size: int
    prefix: str
    """Common prefix of the paths of its files."""
    since_ns: int
    notes: NewFile
    ending: threading.Event


class StartupWatch:
    """Starts when a process is about to train: because the launcher says so (LOCAL_RANK), it joins a process group, or it
    creates an optimizer. A thread observes the calling thread about once a second."""

    def __init__(self, raw: str, settings: Settings, log: Log) -> None:
        self._raw = raw
        self._patience_ns = round(settings.start_s * 1e9)
        self._breaker = CircuitBreaker("watch of the start", log, self._drop)
        self._life: _Life | None = None
        self._is_over = not settings.start_s
        self._thread = 0
        self._stillness = Stillness(self._patience_ns)
        self._taken = 0
        self._reported: SnapshotReason | None = None
        self._latest: str | None = None

    def install(self) -> None:
        if not self._is_over:
            self._breaker.run(self._install)

    def _install(self) -> None:
        if dist.is_available():
            self._watch_joining()
        self._watch_optimizers()
        os.register_at_fork(after_in_child=lambda: self._breaker.run(self._let_go_in_child))
        if "LOCAL_RANK" in os.environ or (dist.is_available() and dist.is_initialized()):
            self._begin(*identity.rank_and_world())

    def end(self) -> None:
        """End the watch and remove its files: it is known whether the process is a rank. A second call does nothing."""
        self._is_over = True
        self._breaker.run(self._drop)

    def _watch_joining(self) -> None:
        original = dist.init_process_group
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init_process_group(*arguments: Any, **options: Any) -> None:
            self._breaker.run(self._on_joining, signature, arguments, options)
            original(*arguments, **options)

        rebind(original, init_process_group)

    def _on_joining(self, signature: inspect.Signature, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        with suppress(TypeError):  # torch reports a wrong call itself.
            asked = signature.bind(*arguments, **options).arguments
            rank, world_size = identity.rank_and_world()
            self._begin(
                asked.get("rank", -1) if asked.get("rank", -1) >= 0 else rank,
                asked.get("world_size", -1) if asked.get("world_size", -1) > 0 else world_size,
            )

    def _watch_optimizers(self) -> None:
        original = Optimizer.__init__

        @functools.wraps(original)
        def __init__(optimizer: Optimizer, *arguments: Any, **options: Any) -> None:
            if not self._is_over:
                self._breaker.run(lambda: self._begin(*identity.rank_and_world()))
            original(optimizer, *arguments, **options)

        Optimizer.__init__ = __init__  # type: ignore[method-assign, assignment]

    def _begin(self, rank: int, world_size: int) -> None:
        """Watch the calling thread as the future `rank`. Does nothing if the process is watched already as that rank."""
        if self._is_over or _is_interactive():
            return
        life = self._life
        if life is not None and (life.pid, life.rank, life.world_size) == (os.getpid(), rank, world_size):
            self._thread = threading.get_ident()
            return
        since_ns = time.time_ns()
        prefix = os.path.join(self._raw, names.starting_prefix(rank, since_ns))
        note_fatal_signals(names.starting_files(prefix).fatal)  # Also moves the file of an earlier assumed rank.
        self._drop()
        notes = NewFile(names.notes(prefix))
        with suppress(OSError):  # As in `Log.open`.
            fcntl.flock(notes.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        notes.append(encode({"kind": "rank"} | rank_identity(rank, world_size, identity.process_name())))
        self._thread = threading.get_ident()
        self._taken, self._reported, self._latest = 0, None, None
        self._life = _Life(os.getpid(), rank, world_size, prefix, since_ns, notes, threading.Event())
        multiprocessing.util.Finalize(None, self._finish, exitpriority=100)
        atexit.register(self._finish)
        threading.Thread(target=self._run, args=(self._life,), name="esprof-start", daemon=True).start()

    def _run(self, life: _Life) -> None:
        self._stillness = Stillness(self._patience_ns)
        orders = OrderBox(self._raw)
        orders.new()
        tick_s = min(_TICK_S, self._patience_ns / 1e9 / _TICKS_PER_PATIENCE)
        while self._breaker.on and not life.ending.wait(tick_s):
            self._breaker.run(self._tick, life, orders)

    def _tick(self, life: _Life, orders: OrderBox) -> None:
        self._stillness.observe(self._thread)
        reason = self._reason()
        if reason is None and self._reported is not None:
            self._forget()
        elif reason is not None and reason != self._reported:
            self._take(life, reason)
            self._reported = reason
        if any(order.content.get("snapshot") is True for order in orders.new()):
            self._take(life, SnapshotReason.ASKED)

    def _reason(self) -> SnapshotReason | None:
        """Reason for a snapshot now; None without one."""
        if self._stillness.same_place_ns <= self._patience_ns:
            return None
        return SnapshotReason.HANG if self._stands_still() else SnapshotReason.STARTING

    def _stands_still(self) -> bool:
        """Whether the thread makes no progress and waits. A process that waits for a collective may be busy with
        polling."""
        if self._stillness.same_place_ns <= self._patience_ns:
            return False
        return self._stillness.idle_ns > self._patience_ns or self._is_joining() or self._is_in_collective()

    def _is_joining(self) -> bool:
        return any(code.co_name == _JOIN_FUNCTION for code, _, _ in stack_of(self._thread))

    def _is_in_collective(self) -> bool:
        """Whether a collective that started long ago is incomplete."""
        before_ns = time.time_ns() - self._patience_ns
        entries = (entry for recorder in calls(None) for entry in recorder["entries"])
        return any(
            not (entry["retired"] or entry["state"] == "completed") and entry["time_created_ns"] < before_ns
            for entry in entries
        )

    def _take(self, life: _Life, reason: SnapshotReason) -> None:
        about = {
            "stands_still": self._stands_still(),
            "lingers": self._reason() is not None,
            "joins": self._is_joining(),
            "threads": threads(self._thread),
            "workers": awaited_workers(self._thread),
        }
        self._write(life, reason, about)

    def _write(self, life: _Life, reason: SnapshotReason, about: dict[str, object]) -> None:
        """Write a snapshot that replaces the previous one."""
        now_ns = time.time_ns()
        snapshot = {
            "reason": reason,
            "rank": life.rank,
            "world_size": life.world_size,
            "at_ns": now_ns,
            "step": 0,
            "since_ns": life.since_ns,
            "same_place_ns": self._stillness.same_place_ns,
            "groups": groups(),
            "calls": calls(None),
        } | about
        before, self._latest = self._latest, names.starting_snapshot(life.prefix, self._taken)
        self._taken += 1
        write_snapshot(self._latest, snapshot)
        if before is not None:
            _remove(before)

    def _forget(self) -> None:
        """Remove the snapshot, as the thread makes progress again."""
        self._reported = None
        if self._latest is not None:
            _remove(self._latest)
            self._latest = None

    def _drop(self) -> None:
        """End the watch of this process, and remove its files."""
        life, self._life = self._life, None
        if life is None or life.pid != os.getpid():
            return
        life.ending.set()
        self._forget()
        _remove(names.starting_files(life.prefix).fatal)  # A rank has moved this file already.
        _remove(names.notes(life.prefix))
        life.notes.close()

    def _finish(self) -> None:
        """Write a snapshot of the exception that ends the process, or remove all files without one."""
        life = self._life
        if self._is_over or life is None or life.pid != os.getpid():
            return
        # Python sets this for an uncaught exception before the exit handlers run, and never for SystemExit.
        error = getattr(sys, "last_value", None)
        if error is None:
            self.end()
            return
        self._is_over = True
        life.ending.set()
        self._breaker.run(
            self._write, life, SnapshotReason.ERROR, {"threads": [thread_of_error(error)]} | error_fields(error)
        )

    def _let_go_in_child(self) -> None:
        """Close the notes in a forked child, which would otherwise hold their lock."""
        if self._life is not None:
            self._life.notes.close()
            self._life = None


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _is_interactive() -> bool:
    """Whether Python runs interactively, so that the process may wait for the user."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules
