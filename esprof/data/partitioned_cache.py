"""A cache of samples that is divided among the hosts of a job (partitioned cache; CoorDL, VLDB 2021, §6.2)."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from esprof.core.errors import InputError
from esprof.data.hosts.job_hosts import LOOPBACK, JobHosts, hosts_of_job, own_address
from esprof.data.hosts.peers import HostCard, Peers
from esprof.data.hosts.server_process import Served, start_server
from esprof.data.sample_codec import decode
from esprof.data.shared_database import About
from esprof.data.shared_store import SharedStore
from esprof.data.tally import Tally
from esprof.data.wrapped_dataset import CachedDataset, Indexed, is_number


@dataclass(frozen=True, kw_only=True)
class PartitionCounts:
    """Where the samples of this host's ranks came from, since the cache was created."""

    local_hits: int
    peer_hits: int
    storage_reads: int
    peer_bytes: int
    """Bytes of the samples that came from other hosts."""


class PartitionedCache(CachedDataset):
    """A map-style data set whose samples are cached on the hosts of a job, each sample on one host.

    Each host holds the samples that it read first, `bytes` of them, and never replaces one. A sample that another host
    holds comes from there over TCP. With n hosts that hold a share c of the data each, and a random division of the samples
    in every epoch, a host takes c of its samples from itself, min(1, nc) − c from other hosts, and 1 − min(1, nc) from
    storage. Wrap the data set below its random transforms: what is cached stays the same in all epochs.

    All ranks of the job create the cache, after `init_process_group`. A host that fails or hangs is lost after `timeout_s`,
    with a warning; its samples are read from storage again.
    """

    def __init__(
        self,
        dataset: Indexed,
        bytes: int,
        folder: str | os.PathLike[str] | None = None,
        *,
        timeout_s: float = 10.0,
        hosts: JobHosts | None = None,
    ) -> None:
        """`folder` is where each host caches its samples, a path that hosts must not share; the default is in memory and
        ends with the job. `hosts` is by default what torch and the launcher say. Raises UsageError and InputError if the
        hosts do not find each other or have different data sets, and what `SharedStore` raises."""
        super().__init__(dataset)
        hosts = hosts or hosts_of_job()
        self.server_pid: int | None = None
        """Process that serves this host's samples to others; None on ranks other than the host's first."""
        others: list[HostCard] = []
        if hosts is None:
            self._store = SharedStore(bytes, About(items=len(dataset)), folder)
        else:
            self._store, others = self._divided(hosts, bytes, folder)
        self._tally = Tally(self._store.folder / "counts", ("local_hits", "peer_hits", "storage_reads", "peer_bytes"))
        self._peers = Peers(others, self._store.folder, timeout_s)

    @property
    def counts(self) -> PartitionCounts:
        """Where the samples of this host came from. Raises OSError if `folder` was removed."""
        return PartitionCounts(**self._tally.read())

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Samples of a batch; those that no host holds are asked of the data set together, if it offers that."""
        numbers = list(dict.fromkeys(filter(is_number, indices)))
        samples = {index: one[0] for index in numbers if (one := self._cached(index))}
        local_hits = len(samples)
        fetched = self._peers.fetch([index for index in numbers if index not in samples])
        samples |= {index: decode(data) for index, data in fetched.items()}
        missing = [index for index in indices if not (is_number(index) and index in samples)]
        read = self._read(missing)
        self._tally.add(
            local_hits=local_hits,
            peer_hits=len(fetched),
            storage_reads=len(missing),
            peer_bytes=sum(map(len, fetched.values())),
        )
        rest = iter(read)
        return [samples[index] if is_number(index) and index in samples else next(rest) for index in indices]

    def _divided(
        self, hosts: JobHosts, size: int, folder: str | os.PathLike[str] | None
    ) -> tuple[SharedStore, list[HostCard]]:
        """The store of this host, and the cards of the others. The first rank of a host creates its store."""
        about = About(items=len(self.dataset))
        store = SharedStore(size, about, folder) if hosts.local_rank == 0 else None
        card = "" if store is None else self._published(hosts, store, size, is_temporary=folder is None)
        cards = [msgspec.json.decode(one, type=HostCard) for one in hosts.exchange("partitioned cache", card)]
        own = cards[hosts.host]
        different = [one for one in cards if one.items != about.items]
        if different:
            raise InputError(
                f"the data set has {about.items} samples here, and {different[0].items} on host {different[0].host}",
                remedy="Create the cache for the whole data set on all hosts; samplers divide it among the ranks.",
            )
        store = SharedStore(own.size, about, own.folder) if store is None else store
        return store, [one for one in cards if one is not own]

    def _published(self, hosts: JobHosts, store: SharedStore, size: int, *, is_temporary: bool) -> str:
        """Serve the store, and return this host's card."""
        items, folder, token = len(self.dataset), str(store.folder), secrets.token_bytes(32)
        address = own_address() if hosts.hosts > 1 else LOOPBACK
        served = Served(folder=folder, size=size, items=items, token=token, address=address, is_temporary=is_temporary)
        self.server_pid, port = start_server(served, self)
        card = HostCard(host=hosts.host, folder=folder, items=items, size=size, address=address, port=port, token=token)
        return msgspec.json.encode(card).decode()
