"""Labels of the samples that this rank trains on, as the job passes them to `esprof.labels`, counted by class."""

import time
from collections import Counter
from typing import Any

import numpy as np
import torch

from .log.circuit_breaker import CircuitBreaker
from .log.notes import Log

_PERIOD_S = 30.0
"""Time between two rows of the log: a rank that is killed loses the counts since the last one."""

_MAX_CLASSES = 1 << 16
"""Most classes that are counted: rows of more would crowd out others in the log."""


class LabelCounts:
    """Counts labels, and writes the counts to the log now and then."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._breaker = CircuitBreaker("counting of labels", log, self._drop)
        self._counts: Counter[int] = Counter()
        self._written_s = time.monotonic()

    def count(self, labels: Any) -> None:
        """Count the labels of a batch: whole numbers, of which negative ones are ignored."""
        self._breaker.run(self._count, labels)

    def write(self) -> None:
        """Write the counts since the last row."""
        if self._counts:
            self._log.roll("labels", (time.time_ns(), dict(self._counts)))
        self._drop()

    def _count(self, labels: Any) -> None:
        numbers = _numbers(labels)
        classes, counts = np.unique(numbers[numbers >= 0], return_counts=True)
        self._counts.update(dict(zip(classes.tolist(), counts.tolist(), strict=True)))
        if len(self._counts) > _MAX_CLASSES:
            raise ValueError(f"there are more than {_MAX_CLASSES:,} classes")
        if time.monotonic() - self._written_s >= _PERIOD_S:
            self.write()

    def _drop(self) -> None:
        self._counts.clear()
        self._written_s = time.monotonic()


def _numbers(labels: Any) -> np.ndarray:
    """The labels as an array of whole numbers. Raises TypeError for others, and for those on a device."""
    if isinstance(labels, torch.Tensor):
        if labels.device.type != "cpu":
            raise TypeError(f"labels on {labels.device} cannot be read without a wait: pass them before they go there")
        labels = np.from_dlpack(labels)  # Its method `numpy` would leave operations in the job's trace.
    found = np.asarray(labels)
    if found.dtype.kind not in ("b", "i", "u"):
        raise TypeError(f"labels have the type {found.dtype}, and are not whole numbers")
    return found
