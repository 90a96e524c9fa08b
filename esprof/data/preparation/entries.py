"""The entries of a `PreparedStore`: ranks, used samples, claims and samples. All functions work in a transaction."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

NEXT, HELD_BYTES, _RANKS = b"next", b"held", b"ranks"
"""Keys of single entries: the next number, the bytes of all samples, and the ranks by number."""
CLAIM, SAMPLE, _USED = b"C", b"S", b"U"
"""First byte of the keys of claims, samples and used samples."""
_BITS = 4096
"""Samples of an entry of used samples, which has a bit for each."""
_PAGE_BYTES = 4096
_ENTRY_BYTES = 64
"""Upper bound of what the key and the header of a sample take up."""


class EpochItem(NamedTuple):
    """A sample of an epoch."""

    epoch: int
    number: int


class JobRank(msgspec.Struct, frozen=True, array_like=True):
    """A rank, and the epoch that it is in."""

    job: str
    epoch: int = 0


_RANKS_TYPE = dict[int, JobRank]


def ranks_of(transaction: Any) -> dict[int, JobRank]:
    stored = transaction.get(_RANKS)
    return {} if stored is None else msgspec.msgpack.decode(stored, type=_RANKS_TYPE)


def put_ranks(transaction: Any, ranks: dict[int, JobRank]) -> None:
    transaction.put(_RANKS, msgspec.msgpack.encode(ranks))


def _epochs(transaction: Any) -> dict[str, int]:
    """Job -> the epoch of its last rank."""
    epochs: dict[str, int] = {}
    for rank in ranks_of(transaction).values():
        epochs[rank.job] = min(rank.epoch, epochs.get(rank.job, rank.epoch))
    return epochs


def is_needed(transaction: Any, item: EpochItem, besides: str | None = None) -> bool:
    """Whether a job needs the sample, other than the job `besides`."""
    return any(job != besides for job in _who_need(transaction, item, _epochs(transaction)))


def _who_need(transaction: Any, item: EpochItem, epochs: dict[str, int]) -> Iterator[str]:
    for job, epoch in epochs.items():
        if epoch <= item.epoch <= epoch + 1 and not _is_used(transaction, job, item):
            yield job


def _is_used(transaction: Any, job: str, item: EpochItem) -> bool:
    bits = transaction.get(_used_key(job, item))
    return bits is not None and bool(bits[item.number % _BITS // 8] >> item.number % 8 & 1)


def note_use(transaction: Any, job: str, item: EpochItem) -> None:
    if job not in _epochs(transaction):  # It was considered dead: a worker may survive its rank for seconds.
        return
    key = _used_key(job, item)
    bits = bytearray(transaction.get(key) or bytes(_BITS // 8))
    bits[item.number % _BITS // 8] |= 1 << item.number % 8
    transaction.put(key, bytes(bits))


def tidy(transaction: Any) -> None:
    """Remove what no job needs."""
    epochs = _epochs(transaction)
    for key in keys(transaction, SAMPLE):
        if not any(_who_need(transaction, _item(key), epochs)):
            remove(transaction, key)
    for key in keys(transaction, _USED):
        job, epoch = key[_USED_KEY_BYTES:].decode(), int.from_bytes(key[1:5], "big")
        if job not in epochs or epoch < epochs[job]:
            transaction.delete(key)
    for key in keys(transaction, CLAIM):
        if not epochs or _item(key).epoch < min(epochs.values()):
            transaction.delete(key)


def remove(transaction: Any, sample: bytes) -> None:
    freed = taken_up(transaction.get(sample))
    transaction.delete(sample)
    transaction.put(HELD_BYTES, packed(count(transaction, HELD_BYTES) - freed))


def taken_up(data: bytes | memoryview) -> int:
    """Bytes that a sample takes up: whole pages if it is large."""
    size = len(data) + _ENTRY_BYTES
    return size if size < _PAGE_BYTES // 2 else -(-size // _PAGE_BYTES) * _PAGE_BYTES


def keys(transaction: Any, first: bytes) -> list[bytes]:
    """All keys that begin with the byte `first`."""
    return list(_walked(transaction.cursor(), first))


def _walked(cursor: Any, first: bytes) -> Iterator[bytes]:
    found = cursor.set_range(first)
    while found and (key := bytes(cursor.key())).startswith(first):
        yield key
        found = cursor.next()


_USED_KEY_BYTES = 9
"""Bytes of the key of used samples before the name of the job."""


def _used_key(job: str, item: EpochItem) -> bytes:
    return _USED + item.epoch.to_bytes(4, "big") + (item.number // _BITS).to_bytes(4, "big") + job.encode()


def key_of(kind: bytes, item: EpochItem) -> bytes:
    return kind + item.epoch.to_bytes(4, "big") + item.number.to_bytes(8, "big")


def _item(key: bytes) -> EpochItem:
    return EpochItem(int.from_bytes(key[1:5], "big"), int.from_bytes(key[5:], "big"))


def count(transaction: Any, key: bytes) -> int:
    stored = transaction.get(key)
    return 0 if stored is None else number_in(stored)


def number_in(stored: bytes | memoryview) -> int:
    return int.from_bytes(stored, "big")


def packed(number: int) -> bytes:
    return number.to_bytes(8, "big")
