"""Measure reads of the job's data files, from the disk and from the page cache, and writes as of a checkpoint.

The data files are those that the job has opened for reading (`injected/steps/opened_files.py`). They are only read; their
pages are dropped from the page cache before each cold read.
"""

import ctypes
import glob
import itertools
import mmap
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ...run.raw import names
from .bench import Bench, Once

_READ_SIZES = [1 << power for power in range(14, 25, 2)]
_SAVE_SIZES = [1 << power for power in range(20, 28, 2)]
_THREAD_COUNTS = (1, 4)
_MIN_FILE_BYTES = 256
_MAX_FILES = 512

Piece = tuple[int, int, int]
"""(file descriptor, offset, bytes)."""


def loads(bench: Bench, raw: str) -> None:
    """Measure reads of the job's files by one rank per host; the other ranks wait."""
    files = _opened(raw) if _is_first_here() else []
    (total, count) = bench.agreement.maxima(sum(size for _, size in files), len(files))
    if not count:
        bench.left_out("storage of the data", "the job opened no data file through Python")
        return
    opened = [(os.open(path, os.O_RDONLY), size) for path, size in files]
    try:
        for number, (cold, threads) in enumerate(itertools.product((True, False), _THREAD_COUNTS)):
            bench.use_share(1 / (2 * len(_THREAD_COUNTS) - number))
            _load(bench, opened, [size for size in _READ_SIZES if size <= total], threads, cold=cold)
    finally:
        for descriptor, _ in opened:
            os.close(descriptor)


def _load(bench: Bench, files: Sequence[tuple[int, int]], sizes: list[int], threads: int, *, cold: bool) -> None:
    name = "cold" if cold else "warm"
    with ThreadPoolExecutor(threads) as pool:
        reads = _Reads(files, pool, threads, cold=cold)
        what = bench.mine("load", name, "bytes", concurrency=threads)
        bench.sweep(
            what, sizes, reads.of if files else _nothing, before=reads.prepare_next, noted=lambda: not reads.were_cached
        )
    (cached,) = bench.agreement.maxima(int(reads.were_cached))
    if cached:
        bench.left_out(f"some of {what.title}", "the kernel kept pages in its cache that it was asked to drop")


def saves(bench: Bench, raw: str) -> None:
    """Measure writing and syncing a file next to the recording, as of a checkpoint, by one rank per host."""
    path = os.path.join(raw, names.saved(bench.rank))

    def prepare(size: int) -> Once | None:
        if not _is_first_here():
            return None
        block = random.Random(0).randbytes(1 << 20)

        def once() -> None:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            try:
                for _ in range(size // len(block)):
                    os.write(descriptor, block)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

        return once

    try:
        bench.sweep(bench.mine("save", "fsync", "bytes"), _SAVE_SIZES, prepare)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


class _Reads:
    """Reads of random pieces of the files, shared among `threads` threads. Each repeat reads other pieces."""

    def __init__(self, files: Sequence[tuple[int, int]], pool: ThreadPoolExecutor, threads: int, *, cold: bool) -> None:
        self._files = files
        self._pool = pool
        self._threads = threads
        self._cold = cold
        self._order = random.Random(0)
        self._size = 0
        self._next: list[Piece] = []
        self.were_cached = cold and any(_drop((number, 0, min(size, 1 << 20))) for number, size in files[:1])
        """Whether a cold read was served from the page cache, because the kernel did not drop the pages."""

    def of(self, size: int) -> Once:
        """One read of `size` bytes in total."""
        self._size = size
        return lambda: list(self._pool.map(_read, self._next))

    def prepare_next(self) -> None:
        """Choose the pieces of the next read, and load them into the page cache or drop them from it."""
        self._next = self._pieces(self._size) if self._files else []
        for piece in self._next:
            if not self._cold:
                _read(piece)
            elif _drop(piece):
                self.were_cached = True

    def _pieces(self, size: int) -> list[Piece]:
        """Random pieces of `size` bytes in total, an equal share for each thread."""
        pieces, thread_bytes = list[Piece](), max(1, size // self._threads)
        for _ in range(self._threads):
            wanted = thread_bytes
            while wanted > 0:
                descriptor, length = self._order.choice(self._files)
                taken = min(wanted, length)
                offset = self._order.randrange(0, length - taken + 1) // mmap.PAGESIZE * mmap.PAGESIZE
                pieces.append((descriptor, offset, taken))
                wanted -= taken
        return pieces


def _nothing(size: int) -> None:
    """Prepare nothing: this rank only waits."""


def _read(piece: Piece) -> None:
    descriptor, offset, size = piece
    os.pread(descriptor, size, offset)


def _drop(piece: Piece) -> bool:
    """Drop the piece from the page cache, and return whether some of it is still there."""
    descriptor, offset, size = piece
    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)
    return _cached_share(piece) > 0


def _cached_share(piece: Piece) -> float:
    """Share of the piece's pages in the page cache (mincore); 1 if the kernel does not report it."""
    descriptor, offset, size = piece
    with mmap.mmap(
        descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=offset
    ) as mapped:
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        pages = -(-size // mmap.PAGESIZE)
        flags = (ctypes.c_ubyte * pages)()
        refused = ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), flags)
        if refused:
            return 1.0
        return sum(flag & 1 for flag in flags) / pages


def _opened(raw: str) -> list[tuple[str, int]]:
    """(path, bytes) of the files that the processes of this host's ranks opened for reading, largest first."""
    found = dict[str, int]()
    for list_path in glob.glob(os.path.join(glob.escape(raw), names.OPENED)):
        with open(list_path, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                with suppress(OSError, ValueError):
                    path = line.rstrip("\n")
                    if (
                        os.path.isfile(path)
                        and (size := os.path.getsize(path)) >= _MIN_FILE_BYTES
                        and os.access(path, os.R_OK)
                    ):
                        found[path] = size
    return sorted(found.items(), key=lambda file: -file[1])[:_MAX_FILES]


def _is_first_here() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"
