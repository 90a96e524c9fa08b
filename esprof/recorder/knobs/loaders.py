"""`loader.workers=`, `loader.prefetch=` and `loader.in_order=`: number of a DataLoader's worker processes, batches that each
prefetches, and whether batches are delivered in order."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .knob import Knob, KnobState, Reader, combined, count
from .models import Arguments, call

_NO_LOADER = "no torch.utils.data.DataLoader has been asked for a batch"
_AS_THEY_COME = "0"
_Options = dict[str, Any]


def installer(change: Callable[[_Options, str], str], read_one: Callable[[Any], str | None]) -> Callable[..., Reader]:
    """Return an `install`. `change` edits a DataLoader's arguments or returns why not; `read_one` reads an iterator."""

    def install(value: str | None) -> Reader:
        from torch.utils.data import DataLoader

        made, get = DataLoader.__init__, DataLoader._get_iterator
        signature = inspect.signature(made)
        seen: dict[int, str | None] = {}
        refusals: list[str] = []

        def changed(*arguments: Any, **options: Any) -> Arguments:
            bound = signature.bind(*arguments, **options)
            if value is not None and (reason := change(bound.arguments, value)):
                refusals.append(reason)
            return bound.args[1:], bound.kwargs

        @functools.wraps(made)
        def __init__(loader: Any, *arguments: Any, **options: Any) -> None:
            call(made, loader, changed, arguments, options)

        @functools.wraps(get)
        def _get_iterator(loader: Any) -> Any:
            iterator = get(loader)
            seen[id(loader)] = read_one(iterator)
            return iterator

        DataLoader.__init__ = __init__  # type: ignore[method-assign, assignment]
        DataLoader._get_iterator = _get_iterator  # type: ignore[method-assign, assignment]

        def read() -> KnobState:
            known = [one for one in seen.values() if one is not None]
            lacking = "its DataLoaders have no workers" if seen else _NO_LOADER
            reading = combined(known, lacking)
            return reading._replace(reason=refusals[0]) if refusals else reading

        return read

    return install


def _set_workers(options: _Options, value: str) -> str:
    from torch.utils.data import IterableDataset

    if isinstance(options.get("dataset"), IterableDataset):
        return "an iterable dataset distributes its samples among its workers itself"
    options["num_workers"] = int(value)
    if not int(value):
        for of_workers in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
            options.pop(of_workers, None)
    return ""


def _set_prefetch(options: _Options, value: str) -> str:
    if not options.get("num_workers"):
        return "a DataLoader without workers does not prefetch"
    options["prefetch_factor"] = int(value)
    return ""


def _set_order(options: _Options, value: str) -> str:
    options["in_order"] = value != _AS_THEY_COME
    return ""


def _as_they_come(text: str) -> str:
    if text not in (_AS_THEY_COME, "0.0"):
        raise ValueError("its value can only be 0")
    return _AS_THEY_COME


def _order(iterator: Any) -> str | None:
    in_order = getattr(iterator, "_in_order", None)
    return None if in_order is None else str(int(in_order))


def _prefetch(iterator: Any) -> str | None:
    factor = getattr(iterator, "_prefetch_factor", None)
    return None if factor is None else str(factor)


WORKERS = Knob(
    name="loader.workers",
    is_term=True,
    example="2",
    sets="`num_workers` of each DataLoader that the job creates, except for iterable datasets",
    reads="the number of worker processes of each iterator",
    spelled=count(0),
    install=installer(_set_workers, lambda iterator: str(len(getattr(iterator, "_workers", ())))),
)

PREFETCH = Knob(
    name="loader.prefetch",
    is_term=True,
    example="4",
    sets="`prefetch_factor` of each DataLoader with workers that the job creates",
    reads="the number of batches that a worker of each iterator prefetches",
    spelled=count(1),
    install=installer(_set_prefetch, _prefetch),
)

IN_ORDER = Knob(
    name="loader.in_order",
    is_term=True,
    example="0",
    sets="`in_order=False` of each DataLoader that the job creates",
    reads="whether each iterator of a loader with workers delivers its batches in order",
    spelled=_as_they_come,
    install=installer(_set_order, _order),
)
