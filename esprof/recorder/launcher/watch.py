"""Monitor a recorded job from its launcher: report hangs and dead ranks immediately."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from esprof.core.text import printable
from esprof.core.types import NS_PER_S, Rank
from esprof.recorder.launcher.start_watch import StartWatch, ask_for_snapshots
from esprof.recorder.shared.talk import say
from esprof.run.flight.hang import Hang, find_hang
from esprof.run.flight.log import Snapshot, may_be_alive, read_flight, read_snapshot
from esprof.run.flight.stall import Stall, find_stall
from esprof.run.raw import names
from esprof.run.raw.reasons import SnapshotReason
from esprof.run.raw.settings import Settings

_MAX_WAIT_FOR_SNAPSHOTS_S = 2.0
"""Time limit for the snapshots of all ranks, and for the record of a rank's end, s."""
_MAX_RANKS_NAMED = 4
_KINDS_ALONE = ("loader", "alone")
"""Kinds of stalls that may keep other ranks waiting, so that the snapshots of all ranks are awaited first."""
_LAST_WORDS = ("end", "stopped")
"""Kinds of the rows that a rank writes only when it ends normally or its recorder fails."""


class _Note(msgspec.Struct):
    """The kind of a row; its other fields are ignored."""

    kind: str


_NOTE = msgspec.json.Decoder(_Note)


def say_on_stderr(line: str) -> None:
    say(printable(line, 1_000))


class JobWatch:
    """Inspects the files of a job's ranks in `raw`, about once a second.

    For a healthy job this lists the folder and checks the lock of each rank.
    """

    def __init__(self, raw: Path, say: Callable[[str], None] = say_on_stderr) -> None:
        self._raw = raw
        self._start = StartWatch(raw, say)
        self._hangs = _HangReports(raw, say)
        self._deaths = _Deaths(raw, say)

    def look(self) -> None:
        """Report new hangs and deaths. Raises OSError if `raw` cannot be read or written."""
        files, now_s = os.listdir(self._raw), time.monotonic()
        if self._deaths.look(files, now_s):
            ask_for_snapshots(self._raw)
        self._start.look(files, now_s)
        self._hangs.look(files, now_s, self._deaths)


class _HangReports:
    """Reports each hang once, when its cause is known or after a time limit, and its end."""

    def __init__(self, raw: Path, say: Callable[[str], None]) -> None:
        self._raw = raw
        self._say = say
        self._worth_ns = Settings.read(str(raw)).hang_s / 2 * NS_PER_S
        """Shortest wait that is reported, ns: a long step may enter and leave collectives all the time."""
        self._read: set[str] = set()
        self._latest: dict[Rank, Snapshot] = {}
        self._open_since_s: float | None = None
        """When the open hang was first seen, on the monotonic clock; None without a hang."""
        self._asked = False
        self._reported: Hang | Stall | None = None
        self._notes: dict[Rank, list[int]] = {}
        """Sizes of the notes of each rank that was reported to wait, bytes."""

    def look(self, files: Iterable[str], now_s: float, deaths: "_Deaths") -> None:
        if self._reported is not None and any(_bytes_of_steps(self._raw, r) != old for r, old in self._notes.items()):
            self._say("the hang has ended: the ranks that waited continue")
            self._reported = None
        news = sorted(set(files) - self._read)
        if not any(names.rank_of_notes(name) is not None for name in files):
            news = [name for name in news if names.starting(name) is None]  # `StartWatch` handles those.
        reasons = [self._take_in(name) for name in news]
        if SnapshotReason.HANG in reasons and self._open_since_s is None:
            self._open_since_s, self._asked = now_s, False
        if self._open_since_s is not None:
            found = find_hang(self._latest, deaths.ended)
            self._examine(found or self._stall(), now_s, deaths)

    def _stall(self) -> Stall | None:
        """Return the ranks that make no progress although they wait in no collective."""
        found = find_stall(self._latest)
        return found if found is not None and found.kind in _KINDS_ALONE else None

    def _take_in(self, name: str) -> SnapshotReason | None:
        """Read the file `name` if it is a snapshot, and return its reason."""
        self._read.add(name)
        is_snapshot = names.is_snapshot(name) or names.starting(name) is not None
        snapshot = read_snapshot(self._raw / name) if is_snapshot else None
        if snapshot is None or snapshot.reason not in (SnapshotReason.HANG, SnapshotReason.ASKED):
            return None
        latest = self._latest.get(snapshot.rank)
        if latest is None or latest.at_ns < snapshot.at_ns:
            self._latest[snapshot.rank] = snapshot
        return snapshot.reason

    def _examine(self, found: Hang | Stall | None, now_s: float, deaths: "_Deaths") -> None:
        assert self._open_since_s is not None
        is_time = now_s - self._open_since_s >= _MAX_WAIT_FOR_SNAPSHOTS_S
        is_clear = (
            found is not None and found.kind not in ("unseen", *_KINDS_ALONE) and found.waited_ns >= self._worth_ns
        )
        if found is not None and found.waited_ns >= self._worth_ns and (is_clear or is_time):
            self._open_since_s = None
            if str(found) != str(self._reported):
                self._report(found, deaths)
        elif found is not None and is_time:  # The ranks started to wait only now: examine them again later.
            self._open_since_s, self._asked = now_s, False
        elif is_time:
            self._open_since_s = None
        elif not self._asked:
            self._asked = True
            ask_for_snapshots(self._raw)

    def _report(self, found: Hang | Stall, deaths: "_Deaths") -> None:
        self._reported = found
        self._notes = {rank: _bytes_of_steps(self._raw, rank) for rank in found.waiting_ranks}
        step = max(snapshot.step for snapshot in self._latest.values())
        self._say(f"step {step} has been hanging for {found.waited_ns / NS_PER_S:.0f} s: {found}")
        for rank in found.at_fault[:_MAX_RANKS_NAMED]:
            self._say(f"  rank {rank} {self._where(rank, found, deaths)}")

    def _where(self, rank: Rank, found: Hang | Stall, deaths: "_Deaths") -> str:
        if rank in deaths.dead:
            return "has died"
        if rank in deaths.ended:
            return "has ended"
        if found.kind == "unseen":
            return "does not respond: it was stopped, native code holds the GIL, or it runs on another host"
        location = self._latest[rank].whereabouts
        return f"is at {location}" if location else "runs no Python code"


class _Deaths:
    """Distinguishes dead ranks from those that ended normally, and reports unexpected deaths."""

    def __init__(self, raw: Path, say: Callable[[str], None]) -> None:
        self._raw = raw
        self._say = say
        self.ended: set[Rank] = set()
        self.dead: dict[Rank, float] = {}
        """When the death of each rank was first seen, on the monotonic clock."""
        self._settled: set[Rank] = set()

    def look(self, files: Iterable[str], now_s: float) -> bool:
        """Report ranks that have died, and return whether there was one."""
        ranks = {rank for name in files if (rank := names.rank_of_notes(name)) is not None}
        alive = {rank for rank in ranks - self.ended - self.dead.keys() if self._is_alive(rank, now_s)}
        unsettled = sorted(self.dead.keys() - self._settled)
        return bool([rank for rank in unsettled if self._settle(rank, now_s, others_live=bool(alive))])

    def _is_alive(self, rank: Rank, now_s: float) -> bool:
        notes = self._raw / names.notes_of(rank)
        if may_be_alive(notes):
            return True
        if _has_last_words(notes):
            self.ended.add(rank)
        else:
            self.dead[rank] = now_s
        return False

    def _settle(self, rank: Rank, now_s: float, *, others_live: bool) -> bool:
        """Report the death of `rank` if it was unexpected, and return whether it was reported. SIGTERM comes from the
        launcher or a person, so it is expected."""
        cause = read_flight(self._raw, names.files_of(rank), ended=False)
        if not (cause.fault or cause.was_terminated) and now_s - self.dead[rank] < _MAX_WAIT_FOR_SNAPSHOTS_S:
            return False
        self._settled.add(rank)
        if cause.was_terminated or not (cause.fault or others_live):
            return False
        how = cause.fault or "it was killed, perhaps because memory ran out, or called os._exit()"
        self._say(f"rank {rank} has died: {how}{f', at {cause.location}' if cause.location else ''}")
        return True


def _bytes_of_steps(raw: Path, rank: Rank) -> list[int]:
    """Return the sizes of the rolling files of `rank`: they change when it ends a step."""
    files = [raw / name for name in names.rolling(names.rank_prefix(rank))]
    return [file.stat().st_size for file in files if file.exists()]


def _has_last_words(notes: Path) -> bool:
    """Whether a rank recorded its end. A failed recorder may write further notes for hours after that row."""
    with notes.open("rb") as rows:
        return any(_kind(row) in _LAST_WORDS for row in rows)


def _kind(row: bytes) -> str | None:
    """The kind of a row; None if the row is incomplete."""
    try:
        return _NOTE.decode(row).kind
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
