"""How near a matrix multiplication is to the best that its device reaches, and what keeps it away."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from esprof.analyzers.views.device_peaks import Peak, Precision
from esprof.core.types import Rank
from esprof.run.probes import Probes

Limit = Literal["memory", "alignment", "tile", "wave", "unknown"]
"""What keeps a multiplication from the native rate: traffic of memory, sizes that tensor cores cannot load in whole vectors,
tiles or waves that are not full, or none of these: clocks, layouts, concurrent kernels."""

MIN_FULL = 0.8
"""Share of the native rate that memory can feed, of full tiles, and of full waves, from which on they do not explain a slow
kernel."""

_MULTIPLES: dict[Precision, int] = {"16 bits": 8, "TF32": 4, "float32": 1}
"""Inner size and columns are multiples of this in fast kernels: 16 bytes for tensor cores."""

_BYTES: dict[Precision, int] = {"16 bits": 2, "TF32": 4, "float32": 4}
_PROBED: dict[str, Precision] = {"float32": "float32", "bfloat16": "16 bits", "float16": "16 bits"}
"""Data type of a probe -> precision."""

_TILE = re.compile(r"(?:_|tilesize)(\d{2,3})x(\d{2,3})(?!\d)")
"""Matches the tile in names of kernels of cuBLAS and CUTLASS; later sizes are those of stages and clusters."""

_SPLITS_INNER = re.compile(r"split_?k|stream_?k", re.IGNORECASE)


@dataclass(frozen=True)
class Product:
    """A multiplication of matrices: batch × (rows × inner by inner × columns)."""

    batch: int
    rows: int
    columns: int
    inner: int

    @property
    def operations(self) -> float:
        """Floating-point operations; a multiply-add counts as two."""
        return 2.0 * self.batch * self.rows * self.columns * self.inner

    def bytes(self, precision: Precision) -> float:
        """Least traffic of memory: both matrices and the result, each once."""
        elements = self.rows * self.inner + self.inner * self.columns + self.rows * self.columns
        return float(_BYTES[precision] * self.batch * elements)


@dataclass(frozen=True)
class NativeRates:
    """The best rates of a device: those of a probe, else of the data sheet."""

    operations: dict[Precision, float]
    """Floating-point operations per second."""
    memory: float
    """Bytes per second."""
    processors: int | None
    """Streaming multiprocessors or compute units; None if unknown."""
    probed: frozenset[Precision] = frozenset()
    """Precisions whose rate was probed."""

    @classmethod
    def of(cls, peak: Peak, probes: Probes | None, rank: Rank) -> "NativeRates":
        """Of a rank's device. The probe's rate is that of its fastest square matrices."""
        sheet = {precision: peak.rate(precision) for precision in _BYTES}
        fastest = dict(_fastest(probes, rank)) if probes is not None else {}
        copied = max((rate for name, rate in _rates(probes, rank, "copy")), default=None)
        return cls(
            sheet | fastest,
            # A copy reads each byte and writes it.
            2 * copied if copied is not None else 1e9 * peak.memory,
            peak.processors,
            frozenset(fastest),
        )

    def attainable(self, product: Product, precision: Precision) -> float:
        """Operations per second that are possible: the native rate, or what memory can feed (roofline model, Williams et
        al., 2009)."""
        return min(self.operations[precision], product.operations / product.bytes(precision) * self.memory)

    def limit(self, product: Product, precision: Precision, kernel: str) -> Limit:
        """What keeps a slow kernel from the native rate."""
        if self.attainable(product, precision) < MIN_FULL * self.operations[precision]:
            return "memory"
        if product.inner % _MULTIPLES[precision] or product.columns % _MULTIPLES[precision]:
            return "alignment"
        full = self.full(product, kernel)
        least: Limit = min(full, key=lambda limit: full[limit], default="unknown")
        return least if full.get(least, 1.0) < MIN_FULL else "unknown"

    def full(self, product: Product, kernel: str) -> dict[Limit, float]:
        """Shares of tiles and of waves that are full, by the tile in the kernel's name; empty without one. A name does not
        tell which way round the tile lies: the better one counts."""
        tile = _TILE.search(kernel)
        if tile is None:
            return {}
        first, second = int(tile[1]), int(tile[2])
        processors = None if _SPLITS_INNER.search(kernel) else self.processors
        ways = [full_share(product, one, processors) for one in ((first, second), (second, first))]
        tiles, waves = max(ways, key=lambda way: way[0] * (way[1] or 1.0))
        return {"tile": tiles} if waves is None else {"tile": tiles, "wave": waves}


def full_share(product: Product, tile: tuple[int, int], processors: int | None) -> tuple[float, float | None]:
    """(share of all tiles that holds results, share of the processors' time that is used if each computes one tile after the
    other); the latter is None if their number is unknown."""
    across, down = math.ceil(product.rows / tile[0]), math.ceil(product.columns / tile[1])
    tiles = product.rows * product.columns / (across * tile[0] * down * tile[1])
    if processors is None:
        return tiles, None
    waves = product.batch * across * down / processors
    return tiles, waves / math.ceil(waves)


def _fastest(probes: Probes, rank: Rank) -> Iterator[tuple[Precision, float]]:
    rates: dict[Precision, float] = {}
    for name, rate in _rates(probes, rank, "matmul"):
        if (precision := _PROBED.get(name)) is not None:
            rates[precision] = max(rates.get(precision, 0.0), rate)
    yield from rates.items()


def _rates(probes: Probes | None, rank: Rank, kind: str) -> Iterator[tuple[str, float]]:
    """(name, size per second) of each point of the rank's sweeps of this kind on a GPU."""
    for sweep in probes.sweeps if probes is not None else ():
        if sweep.kind == kind and sweep.ranks == (rank,) and sweep.device != "cpu" and not sweep.beside:
            for point in sweep.points:
                yield sweep.name, 1e9 * point.size / float(np.median(point.samples_ns))
