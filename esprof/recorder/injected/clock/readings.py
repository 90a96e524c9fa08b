"""Choose the clock readings of a rank to log: the first, one from time to time, and at the start and end of windows."""

from collections import deque

from ..log.notes import Log
from .channel import ChannelReading

_READINGS_PER_NOTE = 8
"""Readings from which the one with the shortest round trip is logged."""
_MIN_BETWEEN_NOTES_NS = 60_000_000_000
_NOTES_PER_AGE = 64
"""A clock is logged again after 1/64 of the job's age, so that a month takes some hundreds of rows."""


class ClockNotes:
    """The readings of one rank."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._latest: deque[ChannelReading] = deque(maxlen=_READINGS_PER_NOTE)
        self._is_rank_0s = False
        self.is_new = True
        """Whether the first readings, which are taken without pauses, are incomplete."""
        self._first_ns = 0
        self._next_ns = 0

    def is_rank_0s(self, now_ns: int) -> None:
        """Log once that this rank and rank 0 share a clock."""
        self._is_rank_0s, self.is_new = True, False
        note_clock(self._log, ChannelReading(now_ns, 0, 0))

    def add(self, readings: list[ChannelReading]) -> None:
        if not self._is_rank_0s:
            self._latest += readings

    def note_where_due(self, now_ns: int, *, at_boundary: bool) -> None:
        """Log the clock if it is due, or if a window has just started or ended."""
        if self.is_new and len(self._latest) == _READINGS_PER_NOTE:
            self.is_new, self._first_ns = False, now_ns
        elif self.is_new or not (at_boundary or now_ns >= self._next_ns):
            return
        self.note()
        self._next_ns = now_ns + max(_MIN_BETWEEN_NOTES_NS, (now_ns - self._first_ns) // _NOTES_PER_AGE)

    def note(self) -> None:
        """Log the best of the readings since the last note, if there are any."""
        if self._latest:
            note_clock(self._log, min(self._latest, key=lambda reading: reading.rtt_ns))
            self._latest.clear()


def note_clock(log: Log, reading: ChannelReading) -> None:
    log.note("clock", at_ns=reading.at_ns, offset_ns=reading.offset_ns, rtt_ns=reading.rtt_ns)
