"""Monitor the start of a job from its launcher: report hangs before the end of the first step."""

from collections.abc import Callable, Iterable
from pathlib import Path

from esprof.core import readable
from esprof.core.types import Rank
from esprof.recorder.launcher.order_window import leave_order
from esprof.run.flight.log import Snapshot, may_be_alive, read_snapshot
from esprof.run.flight.stall import Stall, find_stall
from esprof.run.raw import names

_MAX_WAIT_FOR_SNAPSHOTS_S = 2.5
"""Time limit for the snapshots of all processes, each of which polls for orders once a second, s."""
_MAX_RANKS_NAMED = 4
_NO_RESPONSE = "does not respond: it has not started, native code holds the GIL, or it runs on another host"


class StartWatch:
    """Reports each hang once, and its end. For a healthy job this inspects the names of the files only."""

    def __init__(self, raw: Path, say: Callable[[str], None]) -> None:
        self._raw = raw
        self._say = say
        self._asked_s: float | None = None
        """When snapshots of all ranks were requested, on the monotonic clock; None without a hang."""
        self._said: Stall | None = None
        self._is_over = False

    def look(self, files: Iterable[str], now_s: float) -> None:
        """Inspect the files of processes that have ended no step; `files` are the names of all files. Reports nothing after
        the first step of any rank."""
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
        """Return the snapshot of each rank's latest process."""
        found: dict[Rank, Snapshot] = {}
        for name in files:
            snapshot = read_snapshot(self._raw / name) if name.endswith(".json") and self._lives(name) else None
            if snapshot is not None:
                before = found.get(snapshot.rank)
                found[snapshot.rank] = max(before, snapshot, key=lambda one: one.since_ns) if before else snapshot
        return found

    def _report(self, found: Stall, looks: dict[Rank, Snapshot]) -> None:
        self._said = found
        what = "is slow to start" if found.kind == "slow" else "hangs before the end of its first step"
        self._say(f"the job {what} ({readable.duration(found.waited_ns)} without progress): {found}")
        for rank in found.at_fault[:_MAX_RANKS_NAMED]:
            location = looks[rank].whereabouts if rank in looks else None
            self._say(f"  rank {rank} {f'is at {location}' if location else _NO_RESPONSE}")

    def _end_report(self, files: Iterable[str]) -> None:
        """Report that the job continues, unless it has ended."""
        if self._said is not None and (self._is_over or any(self._lives(name) for name in files)):
            self._say("the job continues")
        self._said = None

    def _lives(self, name: str) -> bool:
        """Whether the file `name` belongs to a live process that has ended no step yet."""
        prefix = names.starting(name)
        return prefix is not None and may_be_alive(self._raw / names.notes(prefix[0]))


def ask_for_snapshots(raw: Path) -> None:
    """Request a snapshot from every live rank."""
    leave_order(raw, {"snapshot": True})
