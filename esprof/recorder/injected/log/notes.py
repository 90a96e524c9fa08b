"""What a process notes down, as JSON lines: few rows for good, and the many of every step for a while."""

import fcntl
import json
import os
import threading
from collections import deque
from contextlib import suppress

from ....run.raw import names
from ....run.raw.new_files import NewFile
from .rolling import RollingFile

_MAX_WAITING_ROWS = 10_000
_MAX_TAIL_ROWS = 200


class Log:
    """The notes of one rank: permanent rows, written at once, and rolling ones, which wait in memory for `flush`.

    Until `open` all rows wait, the newest _MAX_WAITING_ROWS. A log belongs to the process that opened it: what a forked
    child notes is dropped.
    """

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING_ROWS)
        self._rows: dict[str, deque[tuple[object, ...]]] = {}
        self._tails: dict[str, deque[tuple[object, ...]]] = {}
        self._file: NewFile | None = None
        self._rolling: RollingFile | None = None
        self._pid = 0
        self._keep_steps = 0
        self._steps = 0
        self._flushing = threading.Lock()

    def open(self, prefix: str, limit: int, keep_steps: int = 0) -> None:
        """Claim `<prefix>.jsonl` for this process and write what waits. Raises FileExistsError where another has it.

        Of the rolling rows the newest `limit` bytes are kept, or, if that is less, those of the last `keep_steps` steps.
        """
        self._file = NewFile(names.notes(prefix))
        self._pid = os.getpid()
        self._keep_steps = keep_steps
        with suppress(OSError):  # Some network file systems know no locks: then a reader cannot tell whether we live.
            fcntl.flock(self._file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._rolling = RollingFile(prefix, limit)
        while self._waiting:
            self._file.append(self._waiting.popleft())

    @property
    def mine(self) -> bool:
        """Whether this very process has opened the log."""
        return self._file is not None and self._pid == os.getpid()

    def note(self, kind: str, **row: object) -> None:
        """Note a permanent row. It is on disk when this returns; OSError where that fails."""
        line = encode({"kind": kind} | row)
        if self._file is None:
            self._waiting.append(line)
        elif self._pid == os.getpid():
            self._file.append(line)

    def roll(self, kind: str, row: tuple[object, ...]) -> None:
        """Note a row that need not be kept for good; `flush` writes it."""
        rows = self._rows.get(kind)
        if rows is None:
            rows = self._rows[kind] = deque(maxlen=_MAX_WAITING_ROWS)
            self._tails[kind] = deque(maxlen=_MAX_TAIL_ROWS)
        rows.append(row)

    def flush(self) -> None:
        """Write the rolling rows that wait. Any thread may call this, while others note and roll."""
        if self.mine:
            with self._flushing:
                self._flush()

    def _flush(self) -> None:
        if self._rolling is None:
            return
        for kind, waiting in list(self._rows.items()):
            rows = [waiting.popleft() for _ in range(len(waiting))]
            if not rows:
                continue
            self._tails[kind].extend(rows)
            self._rolling.write(encode({"kind": kind, "rows": rows}))
            if kind == "steps" and self._keep_steps:
                self._keep_some(len(rows))

    def tail(self, kind: str) -> list[tuple[object, ...]]:
        """The last rows of a kind, oldest first."""
        return [*self._tails.get(kind, ()), *self._rows.get(kind, ())][-_MAX_TAIL_ROWS:]

    def close(self) -> None:
        """Let go of the files and their lock; what is noted from now on is dropped."""
        if self._file is not None and self._rolling is not None:
            self._file.close()
            self._rolling.close()
            self._rolling, self._pid = None, -1

    def let_go_in_child(self) -> None:
        """In a forked child: close the files, or the child would hold their lock when the rank is gone."""
        if not self.mine:
            self.close()

    def _keep_some(self, steps: int) -> None:
        assert self._rolling is not None
        self._steps += steps
        if self._steps >= self._keep_steps:
            self._rolling.turn()
            self._steps = 0


def encode(row: dict[str, object]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
