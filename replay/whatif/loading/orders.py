"""Orders in which a pass can read its samples."""

from dataclasses import dataclass

import numpy as np

from esprof.replay.whatif.scenario import Declined
from esprof.run.raw.sample_keys import FIRST_HASH


@dataclass(frozen=True)
class ReadOrder:
    """An order of the samples of a pass, in one block or in blocks of consecutive samples, which come in random order."""

    shuffled: bool
    """Whether the samples of a block are in random order, and not in that of the data set."""
    block: int | None = None
    """Number of samples in a block; None if all are in one."""

    def of(self, keys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """`keys`, int64[N], in this order: reads of one sample in a sorted block follow each other.

        Raises Declined for blocks of samples that have no index.
        """
        within = rng.permutation(len(keys)) if self.shuffled else keys
        if self.block is None:
            return keys[np.argsort(within, kind="stable")]
        if keys.max(initial=0) >= FIRST_HASH:
            raise Declined("samples are not read by index, so their blocks are unknown")
        blocks, block = np.unique(keys // self.block, return_inverse=True)
        return keys[np.lexsort((within, rng.permutation(len(blocks))[block]))]
