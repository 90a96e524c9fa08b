"""A map-style data set that stands for another: what the data sets of this package have in common."""

from collections.abc import Sequence
from typing import Any, Protocol

from esprof.core.errors import UsageError
from esprof.data.sample_codec import decode, encode
from esprof.data.shared_store import SharedStore


class Indexed(Protocol):
    """A map-style data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


class WrappedDataset:
    """Has the length and the attributes of `dataset`; its subclass says where the samples of a batch come from."""

    def __init__(self, dataset: Indexed) -> None:
        """Raises UsageError if `dataset` has no length or no items by number."""
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise UsageError(
                "the data set has no length or no items by number", remedy="Only map-style data sets can be cached."
            )
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        (sample,) = self.__getitems__([index])
        return sample

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Samples of a batch."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in self.__dict__:  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


class CachedDataset(WrappedDataset):
    """A data set some of whose samples are in a store of this host, which never replaces one."""

    _store: SharedStore

    @property
    def folder(self) -> str:
        """Where this host's cache is."""
        return str(self._store.folder)

    @property
    def held(self) -> int:
        """Number of samples that this host holds."""
        return len(self._store)

    def _cached(self, index: Any) -> tuple[Any] | None:
        """The sample, in a tuple, or None. Only items by number are cached."""
        return self._store.get(index, lambda data: (decode(data),)) if is_number(index) else None

    def _read(self, indices: Sequence[Any]) -> list[Any]:
        """Samples of the data set, which is asked for them together if it offers that. The store takes those that have a
        number, while it has room."""
        together = getattr(self.dataset, "__getitems__", None)
        samples = list(together(indices)) if together and indices else [self.dataset[index] for index in indices]
        for index, sample in zip(indices, samples, strict=True):
            if is_number(index) and not self._store.is_full:
                self._store.put(index, encode(sample))
        return samples


def is_number(index: Any) -> bool:
    """Whether an item can be cached: it has a number."""
    return isinstance(index, int) and index >= 0
