"""CPU threads of this process: torch's, and those of the BLAS by which NumPy and SciPy multiply. More threads may add in
another order."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from threadpoolctl import ThreadpoolController

_VARIABLE = "OPENBLAS_NUM_THREADS"


def use_threads(count: int) -> None:
    """Use so many threads in torch and in each BLAS, also in one that is loaded later."""
    torch.set_num_threads(count)
    os.environ[_VARIABLE] = str(count)
    _loaded.cache_clear()
    for blas in _loaded().lib_controllers:
        blas.set_num_threads(count)


def blas_threads() -> int | None:
    """Number of threads of the BLAS with most of them; None if none is known."""
    return max((blas.num_threads for blas in _loaded().lib_controllers), default=None)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, as in a DataLoader's workers, and each BLAS."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _loaded().limit(limits=1):
            yield
    finally:
        torch.set_num_threads(threads)


@cache
def _loaded() -> ThreadpoolController:
    """The BLAS libraries of this process. To find them takes some milliseconds."""
    return ThreadpoolController().select(user_api="blas")
