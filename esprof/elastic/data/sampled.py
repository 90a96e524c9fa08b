"""The order of samples by a sampler of the script, such as a weighted or grouping one."""

import hashlib
import operator
from collections.abc import Iterable, Sized
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from esprof.core.errors import UsageError
from esprof.elastic.runtime.rng import derived_seed, seeded
from esprof.elastic.verify.steplog import Value

_PURE_REMEDY = (
    "Leave its generator=None, and let it depend on nothing but set_epoch() and the global generators, "
    "which are seeded."
)


class SampledOrder:
    """The complete order of a sampler in each epoch: a function of seed and epoch, so that it is the same on all ranks
    at any time and needs no checkpoint.

    A sampler is iterated after `set_epoch`, if it has that, with the CPU generators seeded for the epoch. Raises
    UsageError for a sampler without a length, with items other than indices, or whose order is not reproducible.
    """

    def __init__(self, sampler: Iterable[int], seed: int) -> None:
        self._sampler = sampler
        self._seed = seed
        self._name = type(sampler).__name__
        if not isinstance(sampler, Sized):
            raise UsageError(
                f"sampler {self._name} has no length",
                remedy="Give it a __len__: the number of indices.",
            )
        self.length = len(sampler)
        """Number of samples in an epoch."""
        self.epoch = lru_cache(maxsize=2)(self._epoch)
        """epoch, from 0 -> the indices of its samples in order; 1-D."""
        first, second, again = self._epoch(0), self._epoch(1), self._epoch(0)
        if not np.array_equal(first, again):
            raise UsageError(
                f"sampler {self._name} returns another order when it is iterated again", remedy=_PURE_REMEDY
            )
        self._digest = hashlib.sha256(first.tobytes() + second.tobytes()).hexdigest()[:16]

    def fields(self) -> dict[str, Value]:
        """Fields for the job's fingerprint: the class, and a hash of the first two epochs' order."""
        return {"sampler": self._name, "sampler_order": self._digest}

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        with seeded(derived_seed(self._seed, "order", epoch)):
            set_epoch = getattr(self._sampler, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
            given = list(islice(self._sampler, self.length + 1))  # Detects an endless one, too.
        if len(given) != self.length:
            found = "more" if len(given) > self.length else len(given)
            raise UsageError(
                f"sampler {self._name} returns {found} samples in epoch {epoch}; its length is {self.length}"
            )
        try:
            return np.fromiter(map(operator.index, given), np.int64, len(given))
        except TypeError as error:
            raise UsageError(
                f"sampler {self._name} returns something other than an index: {error}",
                remedy="Pass a sampler of single samples. The trainer batches them by batch_size.",
            ) from error
