"""The hosts of a job: which one this is, and how they exchange a few bytes when they start."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from esprof.core.errors import InputError, UsageError

LOOPBACK = "127.0.0.1"

_MEET_S = 300.0
_ELSEWHERE = "192.0.2.1"
"""An address for documentation, which no host has: the way there begins at the interface to other networks."""
_ANY_PORT = 9


class KeyStore(Protocol):
    """What is used of torch's stores, such as `TCPStore`."""

    def set(self, key: str, value: str, /) -> Any: ...

    def get(self, key: str, /) -> bytes: ...

    def add(self, key: str, amount: int, /) -> int: ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> Any: ...


@dataclass(frozen=True)
class JobHosts:
    """The place of a rank among the hosts of its job."""

    host: int
    """Number of this host, from 0."""
    hosts: int
    """Number of hosts."""
    local_rank: int
    """Number of this rank on its host, from 0."""
    store: KeyStore
    """The store of the job."""

    def exchange(self, purpose: str, card: str) -> list[str]:
        """The cards of all hosts, in order, each from the host's first rank; `card` of other ranks is ignored. All ranks
        of the job make the same calls. Raises InputError if a host does not answer within minutes."""
        call = self.store.add(f"{purpose}/{self.host}.{self.local_rank}", 1)
        keys = [f"{purpose}/{call}/{host}" for host in range(self.hosts)]
        if self.local_rank == 0:
            self.store.set(keys[self.host], card)
        for host, key in enumerate(keys):
            try:
                self.store.wait([key], timedelta(seconds=_MEET_S))
            except RuntimeError as error:
                raise InputError(
                    f"host {host} of the job did not start its {purpose}: {error}",
                    remedy="Create it on all ranks of the job, in the same order.",
                ) from error
        return [self.store.get(key).decode() for key in keys]


def hosts_of_job() -> JobHosts | None:
    """The hosts of this job by torch's process group and the variables of its launcher; None for a single process. Raises
    UsageError if a job of several ranks has no process group yet, or lacks the variables."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        if world > 1:
            raise UsageError(
                "the ranks of the job are not connected", remedy="Call torch.distributed.init_process_group before."
            )
        return None
    world, rank = distributed.get_world_size(), distributed.get_rank()
    if world == 1:
        return None
    try:
        local_rank, local_world = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    except KeyError as missing:
        raise UsageError(
            f"{missing.args[0]} is not set, so the hosts of the job are unknown",
            remedy="Start the job by torchrun, or pass `hosts`.",
        ) from missing
    host = int(os.environ.get("GROUP_RANK", rank // local_world))
    hosts = int(os.environ.get("GROUP_WORLD_SIZE", world // local_world))
    return JobHosts(host, hosts, local_rank, distributed.distributed_c10d._get_default_store())


def own_address() -> str:
    """The address at which the other hosts of the job can reach this one: that on the way to the job's master, or else to
    other networks. The loopback address if the master's address is one: then the job is on one machine."""
    master = os.environ.get("MASTER_ADDR", "")
    if master == "localhost" or master.startswith(("127.", "::1")):
        return LOOPBACK
    # On the master itself its name may lead to an address such as 127.0.1.1, which other hosts cannot use.
    found = [address for to in (master, _ELSEWHERE) if to for address in _on_the_way(to)]
    return next((address for address in found if not address.startswith(("127.", "::1"))), LOOPBACK)


def _on_the_way(to: str) -> Iterator[str]:
    """This host's addresses on the way to `to`. Sends nothing."""
    with suppress(OSError):  # The name is unknown.
        for family, kind, protocol, _, address in socket.getaddrinfo(to, _ANY_PORT, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:  # No way there.
                probe.connect(address)
                yield str(probe.getsockname()[0])
