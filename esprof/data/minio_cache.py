"""A cache of samples that never replaces one (MinIO; CoorDL, VLDB 2021, §6.1), shared by the loader workers of a host."""

import os
from collections.abc import Sequence
from typing import Any

from esprof.data.shared_database import About
from esprof.data.shared_store import SharedStore
from esprof.data.wrapped_dataset import CachedDataset, Indexed


class MinIOCache(CachedDataset):
    """A map-style data set whose samples are cached until `bytes` are used up.

    An epoch reads each sample once, in random order. A cache that replaces samples then drops many just before they are
    read again. This one retains the samples that it took first, so that a cache of a share x of the data has x hits. Wrap
    the data set below its random transforms: what is cached stays the same in all epochs.

    All loader workers of a rank share the cache, however they start. Ranks and jobs of one host share it if they name the
    same `folder`, for example in `/dev/shm`; without one, the cache is in memory and is removed with this object. With no
    room left, samples come from the data set as before. With `items`, the cache takes at most so many samples.
    """

    def __init__(
        self,
        dataset: Indexed,
        bytes: int,
        folder: str | os.PathLike[str] | None = None,
        items: int | None = None,
    ) -> None:
        """Raises UsageError if `dataset` has no length or items by number, and what `SharedStore` raises."""
        super().__init__(dataset)
        self.hits, self.misses = 0, 0
        self._store = SharedStore(bytes, About(items=len(dataset)), folder, items)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Samples of a batch; those that are not cached are asked of the data set together, if it offers that."""
        found = [self._cached(index) for index in indices]
        missing = [index for index, one in zip(indices, found, strict=True) if one is None]
        self.hits, self.misses = self.hits + len(indices) - len(missing), self.misses + len(missing)
        made = iter(self._read(missing))
        return [next(made) if one is None else one[0] for one in found]
