"""A cache of samples that never replaces one (MinIO; CoorDL, VLDB 2021, §6.1), shared by the loader workers of a host."""

import os
from collections.abc import Sequence
from typing import Any, Protocol

from esprof.core.errors import UsageError
from esprof.data.sample_codec import decode, encode
from esprof.data.shared_store import About, SharedStore


class _Indexed(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


class MinIOCache:
    """A map-style data set whose samples are cached until `bytes` are used up.

    An epoch reads each sample once, in random order. A cache that replaces samples then drops many just before they are
    read again. This one retains the samples that it took first, so that a cache of a share x of the data has x hits. Wrap
    the data set below its random transforms: what is cached stays the same in all epochs.

    All loader workers of a rank share the cache, however they start. Ranks and jobs of one host share it if they name the
    same `folder`, for example in `/dev/shm`; without one, the cache is in memory and is removed with this object. With no
    room left, samples come from the data set as before.
    """

    def __init__(self, dataset: _Indexed, bytes: int, folder: str | os.PathLike[str] | None = None) -> None:
        """Raises UsageError if `dataset` has no length or items by number, and what `SharedStore` raises."""
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise UsageError(
                "the data set has no length or no items by number", remedy="Only map-style data sets can be cached."
            )
        self.dataset = dataset
        self.hits, self.misses = 0, 0
        self._store = SharedStore(bytes, About(items=len(dataset)), folder)

    @property
    def folder(self) -> str:
        """Where the cache is."""
        return str(self._store.folder)

    @property
    def held(self) -> int:
        """Number of samples in the cache."""
        return len(self._store)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        (sample,) = self.__getitems__([index])
        return sample

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Samples of a batch; those that are not cached are asked of the data set together, if it offers that."""
        found = [self._cached(index) for index in indices]
        missing = [index for index, one in zip(indices, found, strict=True) if one is None]
        self.hits, self.misses = self.hits + len(indices) - len(missing), self.misses + len(missing)
        made = iter(self._made(missing))
        return [next(made) if one is None else one[0] for one in found]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("dataset", "_store"):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def _cached(self, index: Any) -> tuple[Any] | None:
        """The sample, in a tuple, or None. Only items by number are cached."""
        if not isinstance(index, int) or index < 0:
            return None
        return self._store.get(index, lambda data: (decode(data),))

    def _made(self, indices: list[Any]) -> list[Any]:
        together = getattr(self.dataset, "__getitems__", None)
        samples = together(indices) if together and indices else [self.dataset[index] for index in indices]
        for index, sample in zip(indices, samples, strict=True):
            if isinstance(index, int) and index >= 0 and not self._store.is_full:
                self._store.put(index, encode(sample))
        return list(samples)
