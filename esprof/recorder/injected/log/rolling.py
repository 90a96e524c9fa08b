"""A bounded log in two files: when the newer one is full, the older one is emptied and reused."""

from ....run.raw import names
from ....run.raw.new_files import NewFile


class RollingFile:
    """Lines in `<prefix>.roll.0.jsonl` and `<prefix>.roll.1.jsonl`, at most `limit` bytes in total.

    At least the newest `limit` / 2 bytes are always available, and a killed process loses none of its written lines.
    """

    def __init__(self, prefix: str, limit: int) -> None:
        self._paths = names.rolling(prefix)
        self._half = limit // 2
        self._files = [NewFile(self._paths[0])]
        self._now = 0
        self._bytes = 0

    def write(self, line: bytes) -> None:
        if self._bytes and self._bytes + len(line) > self._half:
            self.switch()
        self._files[self._now].append(line)
        self._bytes += len(line)

    def switch(self) -> None:
        """Empty the other file, and continue there."""
        if len(self._files) == 1:
            self._files.append(NewFile(self._paths[1]))
        self._now = 1 - self._now
        self._files[self._now].empty()
        self._bytes = 0

    def close(self) -> None:
        for file in self._files:
            file.close()
