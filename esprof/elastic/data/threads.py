"""CPU threads of this process: torch's, and those of the BLAS by which NumPy and SciPy multiply. More threads may add in
another order."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

_MAPS = Path("/proc/self/maps")

_LIBRARIES = ("openblas", "mkl_rt", "blis")
"""Parts of the file names of libraries with threads of their own."""

_FUNCTIONS = (
    ("scipy_openblas_set_num_threads64_", "scipy_openblas_get_num_threads64_"),
    ("scipy_openblas_set_num_threads", "scipy_openblas_get_num_threads"),
    ("openblas_set_num_threads64_", "openblas_get_num_threads64_"),
    ("openblas_set_num_threads", "openblas_get_num_threads"),
    ("MKL_Set_Num_Threads", "MKL_Get_Max_Threads"),
    ("bli_thread_set_num_threads", "bli_thread_get_num_threads"),
)
"""Names of the functions that set and get the number of threads, as threadpoolctl has them."""

_VARIABLE = "OPENBLAS_NUM_THREADS"


@dataclass(frozen=True)
class _Blas:
    """A loaded BLAS library."""

    set: Callable[[int], object]
    get: Callable[[], int]


def use_threads(count: int) -> None:
    """Use so many threads in torch and in each BLAS, also in one that is loaded later."""
    torch.set_num_threads(count)
    os.environ[_VARIABLE] = str(count)
    _loaded.cache_clear()
    for blas in _loaded():
        blas.set(count)


def blas_threads() -> int | None:
    """Number of threads of the BLAS with most of them; None if none is known."""
    return max((blas.get() for blas in _loaded()), default=None)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, as in a DataLoader's workers, and each BLAS."""
    threads, of_blas = torch.get_num_threads(), [(blas, blas.get()) for blas in _loaded()]
    torch.set_num_threads(1)
    for blas, _ in of_blas:
        blas.set(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        for blas, count in of_blas:
            blas.set(count)


@cache
def _loaded() -> tuple[_Blas, ...]:
    """The BLAS libraries of this process."""
    try:
        lines = [line.split(maxsplit=5) for line in _MAPS.read_text().splitlines()]
    except OSError:  # There is no such file outside of Linux.
        return ()
    paths = {Path(fields[5]) for fields in lines if len(fields) == 6}
    found: list[_Blas] = []
    for path in sorted(path for path in paths if any(part in path.name for part in _LIBRARIES)):
        with suppress(OSError):  # It may have been replaced on disk since.
            found += _of_library(ctypes.CDLL(str(path)))
    return tuple(found)


def _of_library(library: ctypes.CDLL) -> list[_Blas]:
    for setter, getter in _FUNCTIONS:
        if hasattr(library, setter) and hasattr(library, getter):
            return [_Blas(getattr(library, setter), getattr(library, getter))]
    return []
