"""The caches of the other hosts of a job, as a process of this host sees them."""

import os
import socket
import warnings
from collections.abc import Sequence
from pathlib import Path

import msgspec

from esprof.data.hosts.messages import PeerLine


class HostCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a host publishes about its cache."""

    host: int
    folder: str
    items: int
    size: int
    address: str
    port: int
    token: bytes
    """What members of the job have."""


class Peers:
    """The other hosts. One that fails, or takes longer than `timeout_s`, is lost: no process of this host asks it again."""

    def __init__(self, cards: Sequence[HostCard], folder: Path, timeout_s: float) -> None:
        """`folder` is this host's, where its processes note which hosts are lost."""
        self._cards = list(cards)
        self._folder = folder
        self._timeout_s = timeout_s

    def fetch(self, items: Sequence[int]) -> dict[int, bytes]:
        """Those of `items` that other hosts hold. All hosts are asked at the same time."""
        found: dict[int, bytes] = {}
        asked = [(card, self._asked(card, items)) for card in self._cards] if items else []
        for card, line in asked:
            if line is None:
                continue
            try:
                answers = list(line.answers(len(items), card.size))
            except OSError as error:
                line.close()
                self._lose(card, error)
                continue
            _idle[card.token] = line
            found |= {item: data for item, data in zip(items, answers, strict=True) if data is not None}
        return found

    def _asked(self, card: HostCard, items: Sequence[int]) -> PeerLine | None:
        """A connection to a host that was asked for `items`; None if the host is lost."""
        if self._mark(card).exists():
            return None
        line = None
        try:
            line = _idle.pop(card.token, None) or _connected(card, self._timeout_s)
            line.ask(items)
        except OSError as error:
            if line is not None:
                line.close()
            self._lose(card, error)
            return None
        return line

    def _lose(self, card: HostCard, error: OSError) -> None:
        """Do without a host; the process that notes this first warns."""
        try:
            os.close(os.open(self._mark(card), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return
        except OSError:  # The disk is full: each process has to find out.
            pass
        warnings.warn(
            f"the cache of host {card.host} ({card.address}) is lost, its samples are read from storage: {error}",
            stacklevel=5,
        )

    def _mark(self, card: HostCard) -> Path:
        return self._folder / f"lost-{card.token[:8].hex()}"


_idle: dict[bytes, PeerLine] = {}
"""Connections of this process, by the token of their host. One in use is not among them: an exchange that is interrupted
leaves answers behind, which must not be taken for those of the next."""


def _connected(card: HostCard, timeout_s: float) -> PeerLine:
    line = PeerLine(socket.create_connection((card.address, card.port), timeout_s), timeout_s)
    try:
        line.introduce(card.token, is_server=False)
    except OSError:
        line.close()
        raise
    return line


def _close_all() -> None:
    """In a forked process: its questions must not mix with its parent's."""
    while _idle:
        _idle.popitem()[1].close()


os.register_at_fork(after_in_child=_close_all)
