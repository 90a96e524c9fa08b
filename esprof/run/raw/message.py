"""The annotation by which the recorder names the other end of a message, which gloo's own events lack."""

import re
from typing import NamedTuple

PREFIX = "esprof.message#"

_NAME = re.compile(
    rf"{PREFIX}(send|recv) (\d{{1,9}}) tag (\d{{1,18}}): (\d{{1,18}}) bytes of (\w+) in group (.*)", re.ASCII
)


class NamedMessage(NamedTuple):
    """One end of a message."""

    word: str
    """`send` or `recv`."""
    peer: int
    """Global rank of the other end."""
    tag: int
    bytes: int
    dtype: str
    group: str
    """torch's name of the process group, the same on all of its ranks: they find each other by it."""

    @property
    def name(self) -> str:
        """The name of its annotation."""
        word, peer, tag, size, dtype, group = self
        return f"{PREFIX}{word} {peer} tag {tag}: {size} bytes of {dtype} in group {group}"

    @property
    def channel(self) -> str:
        """What both ends share: group and tag."""
        return f"{self.group}/{self.tag}"


def message_of(name: str) -> NamedMessage | None:
    """The message of an annotation; None if its name is not that of a message."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    word, peer, tag, size, dtype, group = match.groups()
    return NamedMessage(word, int(peer), int(tag), int(size), dtype, group)
