"""Watches over the start of a job from its launcher: says where it stands still before any rank has ended a step."""

from collections.abc import Callable, Iterable
from pathlib import Path

from esprof.core import readable
from esprof.core.types import Rank
from esprof.recorder.launcher.order_window import leave_order
from esprof.run.flight.log import Snapshot, may_be_alive, read_snapshot
from esprof.run.flight.stall import Stall, find_stall
from esprof.run.raw import names

_MAX_WAIT_FOR_SNAPSHOTS_S = 2.5
"""Seconds that all processes may take to show where they are, each of which looks for orders once a second."""
_MAX_RANKS_NAMED = 4
_NO_SIGN = "gives no sign: it has not begun, native code holds Python's lock, or it is not on this machine"


class StartWatch:
    """Reports each hang once, and its end. While nothing is wrong, a look goes through the names of the files."""

    def __init__(self, raw: Path, say: Callable[[str], None]) -> None:
        self._raw = raw
        self._say = say
        self._asked_s: float | None = None
        """When all were asked where they are, by the monotonic clock; None while nothing is wrong."""
        self._said: Stall | None = None
        self._is_over = False

    def look(self, files: Iterable[str], now_s: float) -> None:
        """See what processes left that have ended no step; `files` are the names of all files. Once a rank has ended a step,
        nothing more is said."""
        if self._is_over:
            return
        self._is_over = any(names.rank_of_notes(name) is not None for name in files)
        looks = {} if self._is_over else self._latest(files)
        found = find_stall(looks)
        if found is None:
            self._asked_s = None
            self._end_report(files)
        elif self._asked_s is None:
            self._asked_s = now_s
            ask_for_snapshots(self._raw)
        elif now_s - self._asked_s >= _MAX_WAIT_FOR_SNAPSHOTS_S and str(found) != str(self._said):
            self._report(found, looks)

    def _latest(self, files: Iterable[str]) -> dict[Rank, Snapshot]:
        """Of each process the only snapshot that it has, and of each rank its latest life."""
        found: dict[Rank, Snapshot] = {}
        for name in files:
            snapshot = read_snapshot(self._raw / name) if name.endswith(".json") and self._lives(name) else None
            if snapshot is not None:
                before = found.get(snapshot.rank)
                found[snapshot.rank] = max(before, snapshot, key=lambda one: one.since_ns) if before else snapshot
        return found

    def _report(self, found: Stall, looks: dict[Rank, Snapshot]) -> None:
        self._said = found
        how = "the job is slow to start" if found.kind == "slow" else "the job stands still before its first step"
        self._say(f"{how}, for {readable.duration(found.waited_ns)} now: {found}")
        for rank in found.at_fault[:_MAX_RANKS_NAMED]:
            location = looks[rank].whereabouts if rank in looks else None
            self._say(f"  rank {rank} {f'is at {location}' if location else _NO_SIGN}")

    def _end_report(self, files: Iterable[str]) -> None:
        """Say that the job goes on, unless it has ended instead."""
        if self._said is not None and (self._is_over or any(self._lives(name) for name in files)):
            self._say("the job goes on")
        self._said = None

    def _lives(self, name: str) -> bool:
        """Whether the file `name` is of a process that has ended no step yet, and lives."""
        prefix = names.starting(name)
        return prefix is not None and may_be_alive(self._raw / names.notes(prefix[0]))


def ask_for_snapshots(raw: Path) -> None:
    """Have every rank that lives take a snapshot."""
    leave_order(raw, {"snapshot": True})
