"""A cache of samples that is shared, bounded, and never replaces one."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lmdb")

from torch.utils.data import DataLoader, Dataset  # noqa: E402  needs torch

from esprof.core.errors import InputError, UsageError  # noqa: E402
from esprof.data import MinIOCache, shared_database  # noqa: E402

ITEMS, ITEM_BYTES = 400, 8000
MB = 1 << 20


class Numbered(Dataset):
    """Items of 8 kB that hold their number; counts the reads of this process."""

    classes = ("a", "b")

    def __init__(self, items: int = ITEMS) -> None:
        self.items, self.reads = items, 0

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        self.reads += 1
        if os.environ.get("DIE_AT") == str(index) and torch.utils.data.get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return index, torch.full((ITEM_BYTES // 8,), index)


def size_of(folder: str) -> int:
    return sum(file.stat().st_blocks * 512 for file in Path(folder).iterdir())


def epoch(cache: MinIOCache, workers: int = 0, **options) -> list[int]:
    """Numbers of the samples of an epoch, in the order of their arrival; each must be whole."""
    seen = []
    for numbers, tensors in DataLoader(cache, batch_size=16, shuffle=True, num_workers=workers, **options):
        assert (tensors == numbers[:, None]).all()
        seen += numbers.tolist()
    return seen


@pytest.fixture(scope="module")
def dataset() -> Numbered:
    return Numbered()


def test_a_cache_for_all_samples_reads_each_once():
    dataset = Numbered()
    cache = MinIOCache(dataset, 8 * MB)
    for _ in range(3):
        assert sorted(epoch(cache)) == list(range(ITEMS))
    assert (dataset.reads, cache.held, cache.hits, cache.misses) == (ITEMS, ITEMS, 2 * ITEMS, ITEMS)


def test_a_full_cache_keeps_what_it_has_and_stays_within_its_bytes():
    """Its hits are the share of the samples that it holds, epoch after epoch."""
    dataset = Numbered()
    cache = MinIOCache(dataset, 2 * MB)
    epoch(cache)
    held = cache.held
    assert 0.3 * ITEMS < held < 2 * MB / ITEM_BYTES
    for _ in range(3):
        before = dataset.reads
        assert sorted(epoch(cache)) == list(range(ITEMS))
        assert dataset.reads - before == ITEMS - held
        assert size_of(cache.folder) <= 2 * MB
    assert cache.held == held


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_share_the_cache(dataset, method):
    cache = MinIOCache(dataset, 8 * MB)
    for _ in range(2):
        assert sorted(epoch(cache, 2, multiprocessing_context=method)) == list(range(ITEMS))
    before = dataset.reads
    assert sorted(epoch(cache)) == list(range(ITEMS))
    assert (dataset.reads, cache.held) == (before, ITEMS)


def die_in_a_worker(folder: Path) -> None:
    os.environ["DIE_AT"] = "200"
    epoch(MinIOCache(Numbered(), 8 * MB, folder), workers=2)


def test_a_killed_worker_leaves_a_cache_that_others_go_on_with(dataset, tmp_path):
    dying = multiprocessing.get_context("fork").Process(target=die_in_a_worker, args=(tmp_path,))
    dying.start()
    dying.join()
    assert dying.exitcode != 0, "its loader reports the death of a worker"
    cache = MinIOCache(dataset, 8 * MB, tmp_path)
    assert 0 < cache.held < ITEMS
    assert sorted(epoch(cache, 2)) == list(range(ITEMS))
    assert cache.held == ITEMS


class Small(Numbered):
    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        self.reads += 1
        return index, torch.tensor([index])


@pytest.mark.slow
def test_a_large_epoch_has_each_item_once():
    dataset = Small(100_000)
    cache = MinIOCache(dataset, 4 * MB)
    for _ in range(2):
        assert sorted(epoch(cache, 2)) == list(range(100_000))
    assert 10_000 < cache.held < 100_000
    assert size_of(cache.folder) <= 4 * MB


JOB = """
import random, sys
from esprof.data import MinIOCache, shared_database
from tests.cases.samples import MB, Numbered, numbers_of
dataset = Numbered()
cache = MinIOCache(dataset, 8 * MB, sys.argv[1])
for _ in range(2):
    order = random.sample(range(len(dataset)), len(dataset))
    assert numbers_of([cache[index] for index in order]) == order
print(dataset.reads, cache.held)
"""


def test_two_jobs_share_a_folder(tmp_path):
    """Together they read little more than each sample once: at the same time both may miss one."""
    jobs = [
        subprocess.Popen([sys.executable, "-c", JOB, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = [(job.communicate()[0], job.returncode) for job in jobs]
    assert [code for _, code in ended] == [0, 0]
    reads = [int(said.split()[0]) for said, _ in ended]
    assert ITEMS <= sum(reads) <= 2 * ITEMS
    third = Numbered()
    assert sorted(epoch(MinIOCache(third, 8 * MB, tmp_path))) == list(range(ITEMS))
    assert third.reads == 0


@pytest.mark.slow
def test_a_full_disk_only_ends_the_filling(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    small = f"mount -t tmpfs -o size=1m tmpfs {tmp_path} && exec {sys.executable} -c '{JOB}' {tmp_path}"
    ended = subprocess.run(["unshare", "-m", "sh", "-c", small], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    reads, held = map(int, ended.stdout.split())
    assert 0 < held < ITEMS
    assert reads == 2 * ITEMS - held


def test_a_temporary_cache_is_removed_with_its_object(dataset):
    cache = MinIOCache(dataset, 2 * MB)
    folder = Path(cache.folder)
    assert cache[3][0] == 3
    copy = pickle.loads(pickle.dumps(cache))
    assert copy[3][0] == 3
    del copy
    assert folder.exists()
    del cache
    assert not folder.exists()


OWNER = """
import sys, time
from esprof.data import MinIOCache, shared_database
from tests.cases.samples import MB, Numbered
shared_database._SHARED_MEMORY = sys.argv[1]
cache = MinIOCache(Numbered(), MB)
print(cache.folder, flush=True)
time.sleep(600)
"""


def test_the_temporary_cache_of_a_killed_process_is_removed_by_the_next(dataset, tmp_path, monkeypatch):
    # Else the next cache of any other test removes it.
    monkeypatch.setattr(shared_database, "_SHARED_MEMORY", str(tmp_path))

    def created() -> MinIOCache:
        """A cache, while those that exist seem to be an hour old."""
        for folder in (own.folder, others):
            os.utime(folder, (0, time.time() - 3600))
        return MinIOCache(dataset, MB)

    own = MinIOCache(dataset, MB)
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        others = process.stdout.readline().strip()
        created()
        assert Path(own.folder).is_dir()
        assert Path(others).is_dir()
    finally:
        process.kill()
        process.wait()
    created()
    assert Path(own.folder).is_dir()
    assert not Path(others).exists()


def test_it_looks_like_the_data_set(dataset):
    cache = MinIOCache(dataset, 2 * MB)
    assert (len(cache), cache.classes) == (ITEMS, ("a", "b"))
    with pytest.raises(AttributeError, match="colours"):
        cache.colours  # noqa: B018
    assert np.array_equal(cache[-1][1], dataset[-1][1])


def test_bad_requests_are_refused(dataset, tmp_path):
    with pytest.raises(UsageError, match="too small"):
        MinIOCache(dataset, 1000)
    with pytest.raises(UsageError, match="no length"):
        MinIOCache(iter([1]), MB)
    MinIOCache(dataset, 2 * MB, tmp_path)
    with pytest.raises(InputError, match="another data set"):
        MinIOCache(Numbered(ITEMS + 1), 2 * MB, tmp_path)
