"""`data[ready]=0`: batches without loading time, as each DataLoader returns its first batch repeatedly."""

import functools
from collections.abc import Iterator
from typing import Any

from .knob import Knob, KnobState, Reader, combined

_MADE, _READY = "made", "0"
_FIRST_BATCH_ATTRIBUTE = "_esprof_first_batch"


def _spelled(text: str) -> str:
    if text not in ("0", "0.0"):
        raise ValueError("its value can only be 0")
    return _READY


def _install(value: str | None) -> Reader:
    from torch.utils.data import DataLoader, get_worker_info

    original, seen = DataLoader.__iter__, set[str]()

    @functools.wraps(original)
    def __iter__(loader: Any) -> Any:
        if get_worker_info() is not None:
            return original(loader)
        length = _length(loader) if value is not None else None
        if length is None:
            seen.add(_MADE)
            return original(loader)
        return _repeat_first(loader, original, length, seen)

    DataLoader.__iter__ = __iter__  # type: ignore[method-assign]

    def read() -> KnobState:
        reading = combined(seen, "no torch.utils.data.DataLoader has made a batch")
        if value is not None and _MADE in seen:
            reading = reading._replace(reason="a DataLoader does not know how many batches it has")
        return reading

    return read


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # An iterable dataset need not have a length.
        return None


def _repeat_first(loader: Any, original: Any, length: int, seen: set[str]) -> Iterator[Any]:
    """Yield the first batch of `loader` `length` times."""
    if length and _FIRST_BATCH_ATTRIBUTE not in vars(loader):
        batches = original(loader)
        setattr(loader, _FIRST_BATCH_ATTRIBUTE, next(batches))
        # The workers would prefetch further batches, which takes CPU time.
        getattr(batches, "_shutdown_workers", lambda: None)()
        loader._iterator = None
    for number in range(length):
        if number:
            seen.add(_READY)
        yield getattr(loader, _FIRST_BATCH_ATTRIBUTE)


KNOB = Knob(
    name="data[ready]",
    is_term=True,
    example="0",
    sets="each DataLoader returns its first batch repeatedly, as often as it has batches",
    reads="whether DataLoaders have loaded more batches than the first",
    spelled=_spelled,
    install=_install,
)
