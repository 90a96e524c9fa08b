"""Log of a process as JSON lines: few permanent rows, and many rolling rows of each step."""

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
    """The log of one rank: permanent rows, written at once, and rolling rows, which wait in memory for `flush`.

    Until `open`, all rows wait in memory, at most the newest _MAX_WAITING_ROWS. The log belongs to the process that opened
    it: rows of a forked child are dropped.
    """

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING_ROWS)
        self._rows: dict[str, deque[tuple[object, ...]]] = {}
        self._tails: dict[str, deque[tuple[object, ...]]] = {}
        self._file: NewFile | None = None
        self._rolling: RollingFile | None = None
        self._pid = 0
        self._stored_steps = 0
        self._steps = 0
        self._flushing = threading.Lock()

    def open(self, prefix: str, limit: int, stored_steps: int = 0) -> None:
        """Create `<prefix>.jsonl` for this process and write the waiting rows. Raises FileExistsError if another has it.

        Rolling rows are stored up to the newest `limit` bytes or, if that is less, of the last `stored_steps` steps.
        """
        self._file = NewFile(names.notes(prefix))
        self._pid = os.getpid()
        self._stored_steps = stored_steps
        with suppress(
            OSError
        ):  # Some network file systems have no locks: readers then do not know whether this process is alive.
            fcntl.flock(self._file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._rolling = RollingFile(prefix, limit)
        while self._waiting:
            self._file.append(self._waiting.popleft())

    @property
    def mine(self) -> bool:
        """Whether this process, not its parent, opened the log."""
        return self._file is not None and self._pid == os.getpid()

    def note(self, kind: str, **row: object) -> None:
        """Write a permanent row at once. Raises OSError if that fails."""
        line = encode({"kind": kind} | row)
        if self._file is None:
            self._waiting.append(line)
        elif self._pid == os.getpid():
            self._file.append(line)

    def roll(self, kind: str, row: tuple[object, ...]) -> None:
        """Add a rolling row, which `flush` writes."""
        rows = self._rows.get(kind)
        if rows is None:
            rows = self._rows[kind] = deque(maxlen=_MAX_WAITING_ROWS)
            self._tails[kind] = deque(maxlen=_MAX_TAIL_ROWS)
        rows.append(row)

    def flush(self) -> None:
        """Write the waiting rolling rows. Any thread may call this while others add rows."""
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
            if kind == "steps" and self._stored_steps:
                self._roll_after_steps(len(rows))

    def tail(self, kind: str) -> list[tuple[object, ...]]:
        """The latest rows of a kind, oldest first."""
        return [*self._tails.get(kind, ()), *self._rows.get(kind, ())][-_MAX_TAIL_ROWS:]

    def close(self) -> None:
        """Close the files and release their lock; later rows are dropped."""
        if self._file is not None and self._rolling is not None:
            self._file.close()
            self._rolling.close()
            self._rolling, self._pid = None, -1

    def let_go_in_child(self) -> None:
        """Close the files in a forked child, which would otherwise hold their lock after the end of the rank."""
        if not self.mine:
            self.close()

    def _roll_after_steps(self, steps: int) -> None:
        assert self._rolling is not None
        self._steps += steps
        if self._steps >= self._stored_steps:
            self._rolling.switch()
            self._steps = 0


def encode(row: dict[str, object]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
