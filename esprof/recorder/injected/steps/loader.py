"""Record DataLoaders: each call of `next` in the rank, and the loading of each batch in the workers."""

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import pin_memory
from torch.utils.data._utils.fetch import _BaseDatasetFetcher, _IterableDatasetFetcher, _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ....run.raw import names
from ....run.raw.stages import COLLATE, PINNING
from ...shared import identity
from ...shared.environment import LOADER_OF, changed, with_hook
from ..hang import loader_waits
from ..hang.worker_stack import listen
from ..log.circuit_breaker import CircuitBreaker
from ..log.notes import Log, encode
from ..log.rolling import RollingFile
from .batch import Padding, padding, size
from .batch_making import BatchMaking, Made
from .sample_keys import length_of, noted_keys

_MIN_PIN_NS = 100_000
"""Shortest recorded pinning of a batch, ns: no wait is due to a shorter one."""


class LoaderProbe:
    """Wraps the DataLoader's iterators and fetchers.

    An iterator is numbered within its process, and counts its epochs (it is reused where workers persist). A worker
    knows neither number: it notes its process id and counts its fetchers, of which each epoch has one.
    """

    def __init__(
        self, raw: str, hook: str, log: Log, breaker: CircuitBreaker, limit: int, *, sample_keys: bool = False
    ) -> None:
        """`limit` bounds the bytes on disk of all of the rank's workers together. `sample_keys` notes the key of each
        sample."""
        self._raw = raw
        self._hook = hook
        self._log = log
        self._breaker = breaker
        self._limit = limit
        self._sample_keys = sample_keys
        self._asked: _Keys = ()
        self._iterators = 0
        self._owner = ""
        self._owner_pid = 0
        self._worker: _WorkerLog | None = None
        self.making = BatchMaking()
        self._before_batch: Callable[[Any], None] = lambda iterator: None

    def install(self, before_batch: Callable[[Any], None]) -> None:
        """Wrap the loaders of a rank; `before_batch` is called with an iterator whenever that is asked for a batch."""
        self._before_batch = before_batch
        _wrap(_BaseDataLoaderIter, "__init__", self._on_iterator)
        _wrap(_BaseDataLoaderIter, "_reset", self._on_reset)
        _wrap(_BaseDataLoaderIter, "__next__", self._on_next)
        self._watch_workers()
        pin_memory.pin_memory = self._pinning(pin_memory.pin_memory)
        self._install_in_workers()

    def _watch_workers(self) -> None:
        """Wrap what starts workers: also in iterators that packages define later, such as torchdata's stateful ones."""
        iterators: Any = _BaseDataLoaderIter
        for kind in _subclasses(iterators):
            _wrap_own(kind, "__init__", self._on_workers)

        def defined(kind: Any, /, **options: Any) -> None:
            super(iterators, kind).__init_subclass__(**options)
            _wrap_own(kind, "__init__", self._on_workers)

        iterators.__init_subclass__ = classmethod(defined)

    def install_in_worker(self, owner: str) -> None:
        """Wrap the fetchers in a worker process that was spawned, not forked, by the process named `owner`."""
        self._owner = owner
        self._install_in_workers()

    def note_stage(self, row: tuple[object, ...]) -> None:
        """Note a stage that the job marked, or a save, in a rank or in a worker: the fields of `MarkedStage`."""
        self._breaker.run(self._note_stage, row)

    def stop(self) -> None:
        """Note nothing more."""
        self._breaker.on = False

    def _install_in_workers(self) -> None:
        loop = torch.utils.data._utils.worker._worker_loop

        @functools.wraps(loop)
        def worker_loop(*arguments: Any, **options: Any) -> None:
            self._breaker.run(listen)
            loop(*arguments, **options)

        # The loader looks it up there, and spawned workers find it by this name.
        torch.utils.data._utils.worker._worker_loop = worker_loop
        _wrap(_BaseDatasetFetcher, "__init__", self._on_fetcher)  # of a worker, or of an iterator without workers
        _wrap(_MapDatasetFetcher, "fetch", self._on_fetch)
        _wrap(_IterableDatasetFetcher, "fetch", self._on_fetch)

    def _on_iterator(self, original: Callable[..., None], iterator: Any, loader: Any, *arguments: Any) -> None:
        iterator._esprof_number, iterator._esprof_epoch = self._iterators, 0
        iterator._esprof_batches = self._breaker.run(_batches, loader)
        self._iterators += 1
        original(iterator, loader, *arguments)

    def _on_reset(self, original: Callable[..., None], iterator: Any, loader: Any, first_iter: bool = False) -> None:
        original(iterator, loader, first_iter)
        if not first_iter:
            self._breaker.run(_next_epoch, iterator)

    def _on_workers(self, original: Callable[..., None], iterator: Any, *arguments: Any, **options: Any) -> None:
        loader = arguments[0] if arguments else options.get("loader")
        start_ns = time.time_ns()
        starts = getattr(loader, "num_workers", 0) > 0
        with (self._breaker.run(self._worker_environment, loader) if starts else None) or nullcontext():
            original(iterator, *arguments, **options)
        # A class that others extend may start none by itself.
        if getattr(iterator, "_workers", ()):
            self._breaker.run(self._note_workers, iterator, start_ns)

    def _worker_environment(self, loader: Any) -> AbstractContextManager[None]:
        """Return a context that starts workers with the recorder: forked ones inherit it, others need the environment."""
        if self._owner_pid != os.getpid():
            self._owner, self._owner_pid = identity.process_name(), os.getpid()
        context = loader.multiprocessing_context or torch.multiprocessing
        if context.get_start_method() == "fork":
            return nullcontext()
        return changed(with_hook(os.environ, self._raw, self._hook) | {LOADER_OF: self._owner})

    def _note_workers(self, iterator: Any, start_ns: int) -> None:
        pids = [worker.pid for worker in iterator._workers]
        self._log.note("workers", process=self._owner, iterator=iterator._esprof_number, start_ns=start_ns, pids=pids)
        _make_room(self._raw, f"{names.workers_prefix(self._owner)}.", self._limit)

    def _on_next(self, original: Callable[..., Any], iterator: Any) -> Any:
        self._breaker.run(self._before_batch, iterator)
        tasks = self._breaker.run(_tasks, iterator)
        start_ns, ran_ns = time.time_ns(), time.thread_time_ns()
        if iterator._num_workers == 0:
            self._breaker.run(self.making.begin)
        enclosing = loader_waits.begin(iterator)
        try:
            batch = original(iterator)
        finally:
            loader_waits.end(enclosing)
            made = self._breaker.run(self.making.end) if iterator._num_workers == 0 else None
        span = start_ns, time.time_ns(), time.thread_time_ns() - ran_ns
        self._breaker.run(self._note_next, iterator, batch, tasks, made, *span)
        return batch

    def _note_next(
        self, iterator: Any, batch: Any, tasks: "_Tasks", made: Made | None, start_ns: int, end_ns: int, cpu_ns: int
    ) -> None:
        number = _batch_number(iterator, tasks)
        samples, tokens = size(batch)
        task = tasks.get(number) if number is not None else None
        row = (
            iterator._esprof_number,
            iterator._esprof_epoch,
            number,
            task[0] if task else None,
            iterator._num_workers,
            getattr(iterator, "_prefetch_factor", None),
            start_ns,
            end_ns,
            samples,
            tokens,
            torch.is_grad_enabled(),
            cpu_ns,
            padding(batch) or (made.padded if made else None),
            getattr(iterator, "_in_order", None),
            iterator._esprof_batches,
            *_noted(made, self._asked),
        )
        self._asked = ()
        self._log.roll("nexts", row)

    def _on_fetcher(self, original: Callable[..., None], fetcher: Any, *arguments: Any) -> None:
        original(fetcher, *arguments)
        fetcher.collate_fn = self.making.timed(COLLATE, fetcher.collate_fn)
        if self._sample_keys:
            fetcher._esprof_length = length_of(fetcher.dataset)
        if get_worker_info() is not None:
            fetcher._esprof_epoch = self._breaker.run(lambda: self._worker_log().next_epoch())

    def _on_fetch(self, original: Callable[..., Any], fetcher: Any, index: Any) -> Any:
        asked = (self._breaker.run(_keys_of, fetcher, index) or ()) if self._sample_keys else ()
        if get_worker_info() is None:
            self._asked = asked
            return original(fetcher, index)
        # A worker makes one batch at a time, with whatever threads: all that its process runs is for that batch.
        self._breaker.run(self.making.begin)
        start_ns, ran_ns = time.time_ns(), time.process_time_ns()
        try:
            batch = original(fetcher, index)
            span = start_ns, time.time_ns(), time.process_time_ns() - ran_ns
        finally:
            made = self._breaker.run(self.making.end)
        samples = self._breaker.run(lambda: _asked_for(fetcher, index) or size(batch)[0])
        # The batch's number is known to the caller of `fetch` alone: the worker's loop, two frames up from here.
        number = sys._getframe(2).f_locals.get("idx")
        padded = made.padded if made else None
        self._breaker.run(self._note_fetch, fetcher, samples, number, padded, _noted(made, asked), *span)
        return batch

    def _note_fetch(
        self,
        fetcher: Any,
        samples: int | None,
        number: int | None,
        padded: Padding | None,
        noted: tuple[object, ...],
        start_ns: int,
        end_ns: int,
        cpu_ns: int,
    ) -> None:
        info = get_worker_info()
        assert info is not None
        row = (os.getpid(), info.id, fetcher._esprof_epoch, number, start_ns, end_ns, samples, cpu_ns, padded, *noted)
        self._worker_log().write("fetches", row)

    def _pinning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`original`, which pins a batch and calls itself for what that consists of, measured: by the pinning thread of a
        loader or, without workers, while the batch is made."""
        inside = threading.local()

        @functools.wraps(original)
        def measured(*arguments: Any, **options: Any) -> Any:
            if getattr(inside, "pins", False):
                return original(*arguments, **options)
            inside.pins, start_ns = True, time.time_ns()
            try:
                with self.making.part(PINNING) as is_part:
                    return original(*arguments, **options)
            finally:
                inside.pins, end_ns = False, time.time_ns()
                if not is_part and end_ns - start_ns >= _MIN_PIN_NS:
                    self.note_stage((PINNING, start_ns, end_ns))

        return measured

    def _note_stage(self, row: tuple[object, ...]) -> None:
        if get_worker_info() is None:
            self._log.roll("stages", row)
        else:
            self._worker_log().write("stages", row)

    def _worker_log(self) -> "_WorkerLog":
        if self._worker is None or self._worker.pid != os.getpid():
            info = get_worker_info()
            assert info is not None
            prefix = os.path.join(self._raw, names.workers_prefix(self._owner))
            self._worker = _WorkerLog(prefix, self._limit // info.num_workers)
        return self._worker


class _WorkerLog:
    """The files of one loader worker, of at most `limit` bytes. Each row is written at once: a worker has no background
    writer."""

    def __init__(self, prefix: str, limit: int) -> None:
        self.pid = os.getpid()
        self._epochs = 0
        try:
            self._file = RollingFile(f"{prefix}.{self.pid}", limit)
        except FileExistsError:  # An earlier worker had this process id.
            self._file = RollingFile(f"{prefix}.{time.time_ns()}.{self.pid}", limit)

    def next_epoch(self) -> int:
        self._epochs += 1
        return self._epochs - 1

    def write(self, kind: str, row: tuple[object, ...]) -> None:
        self._file.write(encode({"kind": kind, "rows": [row]}))


_Keys = tuple[()] | tuple[str, int | None]
"""Keys of the samples of a batch, and number of samples of the dataset; empty if they are not noted."""


def _noted(made: Made | None, asked: _Keys) -> tuple[object, ...]:
    """Further columns of a batch's row."""
    return () if made is None else (*made.counters, made.parts, *asked)


_Tasks = dict[int, tuple[Any, ...]]
"""Batch number -> its worker and, once loaded, its data."""


def _wrap(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a method by `wrapper(original, self, …)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return wrapper(original, self, *arguments, **options)

    setattr(owner, name, method)


def _wrap_own(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    """The same for a method that the class defines itself."""
    if name in vars(owner):
        _wrap(owner, name, wrapper)


def _subclasses(owner: Any) -> Iterator[Any]:
    for kind in owner.__subclasses__():
        yield kind
        yield from _subclasses(kind)


def _next_epoch(iterator: Any) -> None:
    iterator._esprof_epoch += 1


def _tasks(iterator: Any) -> _Tasks:
    """The batches that workers are loading or have loaded. Empty without workers."""
    return dict(getattr(iterator, "_task_info", ()))


def _batch_number(iterator: Any, tasks: _Tasks) -> int | None:
    """Number in its epoch of the batch that `next` has just returned; None where batches come in any order and nothing
    tells it."""
    if not tasks:
        return int(iterator._num_yielded) - 1
    if iterator._in_order:
        return int(iterator._rcvd_idx) - 1
    returned = tasks.keys() - iterator._task_info.keys()
    return returned.pop() if len(returned) == 1 else None


def _batches(loader: Any) -> int | None:
    """Number of batches in a pass of `loader`; None where no sampler knows it."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    with suppress(Exception):  # A sampler of the job need not have a length.
        return len(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    return None


def _asked_for(fetcher: Any, index: Any) -> int | None:
    """Samples in a batch by the indices asked for: exact, however they are collated. None for an iterable dataset."""
    return len(index) if isinstance(fetcher, _MapDatasetFetcher) and fetcher.auto_collation else None


def _keys_of(fetcher: Any, index: Any) -> _Keys:
    """What the batch `index` asks a map-style dataset for. Without automatic batching, a list is a batch of keys."""
    if not isinstance(fetcher, _MapDatasetFetcher):
        return ()
    keys = noted_keys(index if fetcher.auto_collation or isinstance(index, list) else [index])
    return () if keys is None else (keys, getattr(fetcher, "_esprof_length", None))


def _make_room(raw: str, prefix: str, limit: int) -> None:
    """Remove the oldest files of ended workers until the rest take up at most `limit` bytes.

    Workers that do not persist are started, and leave files, at every epoch.
    """
    with os.scandir(raw) as entries:
        files = [(entry.stat(), entry) for entry in entries if entry.name.startswith(prefix)]
    files.sort(key=lambda file: file[0].st_mtime_ns)
    # Counted in blocks: a small file takes more room than it has bytes.
    taken = sum(found.st_blocks * 512 for found, _ in files)
    for found, entry in files:
        if taken <= limit:
            break
        pid = names.pid_of_worker(entry.name)
        if pid is not None and not _is_alive(pid):
            os.unlink(entry.path)
            taken -= found.st_blocks * 512


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # A process of another user has this id now: it counts as alive.
        return True
    return True
