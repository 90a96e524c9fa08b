"""Sources of batches for the ESTs of a process: one dataset for all, or one loader for each."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from typing import Any, Protocol

from torch.utils.data import Dataset

from esprof.core.assignment import Est
from esprof.core.errors import MismatchError, UsageError
from esprof.core.plan import LoaderBody
from esprof.elastic.data.loaders import EstLoader, Loaders, batches_per_epoch
from esprof.elastic.data.order import Batches, SampleOrder
from esprof.elastic.data.sampled import SampledOrder
from esprof.elastic.options import Data
from esprof.elastic.runtime.agree import gather_values, together
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.verify.content import content, numbers

_OWN_STATE_REMEDY = (
    "Take random numbers from random, numpy.random or torch, which are seeded for each sample, or from a generator that is "
    "made of the index; or pass Loaders, for datasets that have a state."
)

_SAMPLES_COMPARED = 16
"""Samples, about, by which a dataset is recognized when a job goes on."""

_PREFETCH = 2
"""Torch's default of `prefetch_factor`."""


class Feed(Protocol):
    """Provides batches to ESTs, in the order in which they run."""

    order: SampleOrder
    can_repeat: bool
    """Whether any rank can make a batch again."""

    @property
    def loader(self) -> LoaderBody | None:
        """How batches are made; None if the script's own loaders make them."""

    def use_loader(self, loader: LoaderBody) -> None:
        """Make batches so from the next `move` on. Only where `loader` is not None."""

    def move(self, ests: Sequence[Est], step: int) -> None:
        """Provide batches for these ESTs, from `step` on."""

    def next(self, est: Est, loader: EstLoader) -> Any:
        """The next batch of an EST; `loader` is the EST's own."""

    def again(self, step: int, est: Est) -> list[Any]:
        """The batches of any EST in a step, made here and now."""

    def first_batches(self) -> str | None:
        """A hash of the numbers in the first batches of the job; None if they cannot be made again. Raises UsageError where
        they cannot be made."""

    def check_sample(self, step: int, transport: Transport) -> None:
        """Raise an error if a sample of this step depends on when or where it is made. All ranks call this."""


class DatasetFeed:
    """Distributes one dataset to all ESTs; their own loaders are not used."""

    can_repeat = True

    def __init__(self, dataset: Dataset[Any], order: SampleOrder, data: Data, *, outlive: bool) -> None:
        self.order = order
        self._outlive = outlive
        self._dataset = dataset
        self._data = data

    @property
    def loader(self) -> LoaderBody:
        workers = self._data.num_workers
        return LoaderBody(workers=workers, prefetch=(self._data.prefetch_factor or _PREFETCH) if workers else None)

    def use_loader(self, loader: LoaderBody) -> None:
        self._data = replace(self._data, num_workers=loader.workers, prefetch_factor=loader.prefetch)

    def move(self, ests: Sequence[Est], step: int) -> None:
        self._batches = Batches(
            self._dataset,
            self.order,
            ests,
            step,
            workers=self._data.num_workers,
            collate=self._data.collate_fn,
            pin_memory=self._data.pin_memory,
            prefetch_factor=self._data.prefetch_factor,
            outlive=self._outlive,
        )

    def next(self, est: Est, loader: EstLoader) -> Any:
        return next(self._batches)

    def again(self, step: int, est: Est) -> list[Any]:
        return self._batches.again(step, est)

    def first_batches(self) -> str | None:
        batches = Batches(self._dataset, self.order, (), 0, collate=self._data.collate_fn)
        ests = range(min(self.order.n_est, -(-_SAMPLES_COMPARED // self.order.batch_size)))
        try:
            return content([numbers(batch) for est in ests for batch in batches.again(0, est)])
        except Exception as error:
            raise UsageError(
                f"the first batch cannot be made in the training process: {type(error).__name__}: {error}",
                remedy=_OWN_STATE_REMEDY,
            ) from error

    def check_sample(self, step: int, transport: Transport) -> None:
        # Of the next step: what has been made before may be in a cache.
        indices = self.order.batch(step + 1, step % self.order.n_est, 0)
        for index in indices[:1]:
            check_sample(index, lambda index: self._batches.sample(self.order.epoch(step + 1), index), transport)


class LoaderFeed:
    """Asks the loader of each EST, which moves with it."""

    can_repeat = False
    loader = None

    def __init__(self, loaders: Loaders, order: SampleOrder) -> None:
        self.order = order
        self._make = loaders.make

    def use_loader(self, loader: LoaderBody) -> None:
        raise NotImplementedError("the script makes these loaders")

    def move(self, ests: Sequence[Est], step: int) -> None: ...

    def again(self, step: int, est: Est) -> list[Any]:
        raise NotImplementedError("a loader gives each batch once")

    def first_batches(self) -> str | None:
        return None

    def check_sample(self, step: int, transport: Transport) -> None: ...

    def next(self, est: Est, loader: EstLoader) -> Any:
        per_epoch = self.order.steps_per_epoch * self.order.accumulate
        return loader.next(self._make, est, self.order.n_est, self.order.seed, per_epoch)


def feed(data: Data, n_est: int, *, outlive: bool = False) -> Feed:
    """The feed for a job's data; with `outlive` the loader processes survive a SIGTERM to all processes of the job.
    Raises UsageError if the length of an epoch is unknown."""

    dataset, seed = data.dataset, data.seed
    sampled = SampledOrder(data.sampler, seed) if data.sampler is not None else None
    shuffle = sampled is None and data.shuffle is not False

    def order(samples: int) -> SampleOrder:
        return SampleOrder(samples, n_est, data.batch_size, data.accumulate, seed, data.drop_last, shuffle, sampled)

    if isinstance(dataset, Loaders):
        if sampled is not None:
            raise UsageError("Loaders cannot take a sampler", remedy="Give the loader of each EST its own sampler.")
        batches = batches_per_epoch(dataset.make, n_est, seed, data.accumulate)
        return LoaderFeed(dataset, order(batches * data.batch_size * n_est))
    if not isinstance(dataset, Sized):
        raise UsageError("the dataset has no length", remedy="Pass Loaders instead: a StatefulDataLoader for each EST.")
    return DatasetFeed(dataset, order(sampled.length if sampled is not None else len(dataset)), data, outlive=outlive)


def loads_ahead(batches: Feed) -> bool:
    """Whether other processes make the batches now, as far as that is known."""
    return batches.loader is not None and batches.loader.workers > 0


def check_sample(index: int, make: Callable[[int], tuple[object, bool]], transport: Transport) -> None:
    """Raise UsageError if a sample is another one the second time, or is augmented the first time alone; MismatchError if
    samples differ between ranks. `make(index)` returns (sample, whether it drew random numbers). All ranks call this."""
    with together(transport):
        try:
            (first, draws), (again, draws_again) = [
                (content(sample), drew) for sample, drew in (make(index), make(index))
            ]
        except Exception as error:
            raise UsageError(
                f"sample {index} cannot be made in the training process: {type(error).__name__}: {error}",
                remedy=_OWN_STATE_REMEDY,
            ) from error
        if first != again:
            raise UsageError(f"sample {index} differed when it was made a second time", remedy=_OWN_STATE_REMEDY)
        if draws and not draws_again:
            raise UsageError(
                f"sample {index} drew random numbers when it was made, and none when it was made a second time",
                remedy="Cache samples before they are augmented: a cached one has the noise of the epoch that saw it first.",
            )
    everyone = gather_values(transport, first)
    for rank, other in enumerate(everyone):
        if other != everyone[0]:
            raise MismatchError(
                f"sample {index} differs between rank {rank} and rank 0",
                remedy="Build the same dataset on every rank. The trainer selects the samples of each rank.",
            )
