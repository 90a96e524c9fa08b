"""Samples that the jobs of a host prepare once an epoch: each job gets each once, whatever happens to the others."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lmdb")

from esprof.core.errors import InputError, UsageError
from esprof.data import MinIOCache, SharedPreparation
from esprof.data.preparation.entries import EpochItem
from esprof.data.preparation.store import PreparedStore, Turn
from tests.cases.samples import MB, Noisy, Numbered, Signalling, numbers_of, size_of

ITEMS = 400


def batches(prepared: SharedPreparation, size: int = 16, **order: Any) -> Iterator[list[Any]]:
    """Batches of the next epoch of `order`, or of the first of an order with these options."""
    items = iter(order.pop("order", None) or prepared.order(**order))
    while batch := list(islice(items, size)):
        yield prepared.__getitems__(batch)


def epoch(prepared: SharedPreparation, **order: Any) -> list[int]:
    """Numbers of the samples of an epoch."""
    return [number for batch in batches(prepared, **order) for number in numbers_of(batch)]


def forked(work: Any) -> int:
    """Process that does `work` and ends."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:  # The rest of the test is not for this process.
            os._exit(0)
    return child


def test_two_jobs_prepare_each_sample_once_an_epoch(tmp_path):
    dataset = Numbered(ITEMS)
    one, other = (SharedPreparation(dataset, 16 * MB, tmp_path) for _ in range(2))
    orders = one.order(seed=7), other.order(seed=7)
    for number in range(1, 4):
        with ThreadPoolExecutor() as pool:
            theirs = pool.submit(epoch, other, order=orders[1])
            seen = epoch(one, order=orders[0])
        assert theirs.result() == seen
        assert sorted(seen) == list(range(ITEMS))
        assert (dataset.reads, one.prepared, one.shared) == (number * ITEMS,) * 3
        assert one.held == 0


def test_both_jobs_take_part_in_a_batch_that_both_wait_for(tmp_path):
    """Each prepares a sample that the other has not begun."""
    both = threading.Barrier(2, timeout=60)

    class InPairs(Numbered):
        def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
            both.wait()
            return super().__getitem__(index)

    mine, others = InPairs(32), InPairs(32)
    one, other = SharedPreparation(mine, 4 * MB, tmp_path), SharedPreparation(others, 4 * MB, tmp_path)
    with ThreadPoolExecutor() as pool:
        theirs = pool.submit(epoch, other)
        assert epoch(one) == theirs.result()
    assert (mine.reads, others.reads) == (16, 16)


def test_the_folder_holds_the_lead_of_the_faster_job(tmp_path):
    fast, slow = (SharedPreparation(Numbered(ITEMS), 16 * MB, tmp_path) for _ in range(2))
    ahead, behind = batches(fast, 20), batches(slow, 20)
    for lead in (1, 2, 3):
        next(ahead)
        assert fast.held == 20 * lead
    for lead in (2, 1, 0):
        next(behind)
        assert fast.held == 20 * lead


def test_jobs_with_batches_of_different_sizes_share_samples(tmp_path):
    dataset = Numbered(ITEMS)
    one, other = (SharedPreparation(dataset, 16 * MB, tmp_path) for _ in range(2))
    assert epoch(one, size=16) == epoch(other, size=50)
    assert (dataset.reads, one.held) == (ITEMS, 0)


def test_random_transforms_have_one_result_for_all_jobs_of_an_epoch(tmp_path):
    one, other = (SharedPreparation(Noisy(50), 4 * MB, tmp_path) for _ in range(2))
    orders = one.order(shuffle=False), other.order(shuffle=False)
    epochs = []
    for _ in range(2):
        mine, theirs = (
            list(chain(*batches(job, order=order))) for job, order in zip((one, other), orders, strict=True)
        )
        assert mine == theirs
        epochs.append(dict(mine))
    assert all(epochs[0][number] != epochs[1][number] for number in range(50))


def test_a_full_folder_loses_no_sample(tmp_path):
    """The slower job prepares what had no room; the folder stays within its bytes."""
    dataset = Numbered(ITEMS)
    fast, slow = (SharedPreparation(dataset, 2 * MB, tmp_path) for _ in range(2))
    orders = fast.order(), slow.order()
    for number in (1, 2):
        before = dataset.reads
        assert sorted(epoch(fast, order=orders[0])) == list(range(ITEMS))
        held = fast.held
        assert 0.3 * ITEMS < held < 2 * MB / 8000
        assert sorted(epoch(slow, order=orders[1])) == list(range(ITEMS))
        assert dataset.reads - before == 2 * ITEMS - held
        assert (fast.held, size_of(tmp_path) <= 2 * MB) == (0, True), number


JOB = """
import os, resource, sys
from esprof.data import SharedPreparation
from tests.cases.samples import MB, Noisy
from tests.unit.data.test_shared_preparation import batches
prepared = SharedPreparation(Noisy(200), 16 * MB, sys.argv[1])
assert prepared.wait_for_jobs(2)
order = prepared.order(seed=1)
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
for epoch in range(2):
    seen = [sample for batch in batches(prepared, order=order) for sample in batch]
    assert sorted(number for number, _ in seen) == list(range(200))
    print(epoch, hash(tuple(seen)))
print(prepared.dataset.reads)
"""


def two_jobs(*arguments: Any) -> list[list[str]]:
    """What two processes with `JOB` print."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )
        for _ in range(2)
    ]
    said = [job.communicate()[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    return [text.split("\n") for text in said]


def test_two_processes_share_all_epochs(tmp_path):
    (*mine, my_reads, _), (*theirs, their_reads, _) = two_jobs(tmp_path)
    assert mine == theirs
    assert int(my_reads) + int(their_reads) == 400
    last = SharedPreparation(Noisy(200), 16 * MB, tmp_path)
    assert (last.prepared, last.shared, last.held) == (400, 400, 0)


def test_a_full_disk_loses_no_sample(tmp_path):
    """Files that cannot grow fail like those on a full disk. These are too small for a batch, however fast it is taken."""
    (*_, my_reads, _), (*_, their_reads, _) = two_jobs(tmp_path, 100_000)
    assert 400 < int(my_reads) + int(their_reads) <= 800


KILLED = """
import signal, sys
from esprof.data import SharedPreparation
from tests.cases.samples import MB, Signalling
from tests.unit.data.test_shared_preparation import epoch
dataset = Signalling(400, 123, signal.SIGKILL)
dataset.maker = 0
prepared = SharedPreparation(dataset, 16 * MB, sys.argv[1])
print("joined", flush=True)
sys.stdin.readline()
epoch(prepared, shuffle=False)
"""


def test_a_killed_job_leaves(tmp_path):
    """What it was preparing is prepared by another at once, and what only it needed is removed."""
    dying = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert dying.stdout.readline() == "joined\n"
    left = SharedPreparation(Numbered(ITEMS), 16 * MB, tmp_path, timeout_s=60)
    order = left.order(shuffle=False)
    first = next(batches(left, 32, order=order))
    assert left.held == 32
    dying.communicate("go\n")
    assert dying.returncode == -signal.SIGKILL
    began = time.monotonic()
    rest = epoch(left, order=islice(left.order(shuffle=False), 32, None))
    assert numbers_of(first) + rest == list(range(ITEMS))
    assert time.monotonic() - began < 60
    assert left.shared == 123, "32 by the job that was killed, and 91 that it had prepared"
    assert sorted(epoch(left, order=order)) == list(range(ITEMS))
    assert left.held == 0


def test_what_a_killed_worker_was_preparing_is_prepared_by_another(tmp_path):
    dataset = Signalling(10, 3, signal.SIGKILL)
    prepared = SharedPreparation(dataset, MB, tmp_path, timeout_s=60)
    child = forked(lambda: prepared[EpochItem(0, 3)])
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    began = time.monotonic()
    assert prepared[EpochItem(0, 3)][0] == 3
    assert time.monotonic() - began < 60


def test_a_sample_that_the_database_has_no_room_for_is_used_and_no_longer_claimed(tmp_path):
    store, items = PreparedStore(MB, 100, tmp_path), [EpochItem(0, number) for number in range(100)]
    ranks = [store.join(job) for job in ("one", "other")]
    store._room = 1 << 40  # The pages of LMDB may be used up before.
    for item in items:
        assert store.take("one", item) is Turn.PREPARE
        store.finish("one", item, bytes(MB // 20))
    assert 0 < store.held < 100
    assert Turn.WAIT not in [store.take("other", item) for item in items]
    for rank in ranks:
        store.leave(rank)


def test_what_a_killed_process_was_reading_makes_room_at_once(tmp_path):
    store, items = PreparedStore(MB, 100, tmp_path), (EpochItem(0, number) for number in range(100))
    ranks = [store.join(job) for job in ("one", "other")]
    began, begin = os.pipe()

    def read() -> None:
        with PreparedStore(MB, 100, tmp_path)._database.begin():
            os.write(begin, b".")
            signal.pause()

    def passes_on() -> bool:
        item, data = next(items), bytes(MB // 20)
        store.finish("one", item, data)
        return store.take("other", item) == data

    reader = forked(read)
    os.read(began, 1)
    while passes_on():
        pass
    os.kill(reader, signal.SIGKILL)
    os.waitpid(reader, 0)
    assert passes_on()
    for rank in ranks:
        store.leave(rank)


def test_a_use_is_noted_as_soon_as_a_reader_gives_room(tmp_path):
    """LMDB keeps the pages that a reader may still see: without room, a use could be lost, and its sample stay."""
    store, items = PreparedStore(MB, 1000, tmp_path), (EpochItem(0, number) for number in range(1000))
    ranks = [store.join(job) for job in ("one", "other")]
    (began, begin), (ends, end) = os.pipe(), os.pipe()

    def read() -> None:
        with PreparedStore(MB, 1000, tmp_path)._database.begin():
            os.write(begin, b".")
            os.read(ends, 1)

    def is_noted(store: PreparedStore) -> bool:
        item = next(items)
        store.finish("one", item, None)
        return not store.is_needed(item, besides="other")

    reader = forked(read)
    os.read(began, 1)
    while is_noted(store):
        pass
    over = threading.Timer(0.05, os.write, (end, b"."))
    over.start()
    assert is_noted(PreparedStore(MB, 1000, tmp_path))
    over.join()
    os.waitpid(reader, 0)
    for rank in ranks:
        store.leave(rank)


def test_a_sample_that_both_jobs_prepared_is_held_for_neither(tmp_path):
    """As when one cannot take it: a full database takes no note that it is used."""
    store, item = PreparedStore(MB, 10, tmp_path), EpochItem(0, 3)
    ranks = [store.join(job) for job in ("one", "other")]
    store.finish("one", item, b"sample")
    assert store.held == 1
    store.finish("other", item, b"sample")
    assert (store.held, store.held_bytes) == (0, 0)
    for rank in ranks:
        store.leave(rank)


@pytest.mark.slow
def test_workers_may_be_killed_at_any_time(tmp_path):
    """Locks are released, changes are whole, and the bytes of what is held add up."""
    one, other = (SharedPreparation(Numbered(ITEMS), 2 * MB, tmp_path, timeout_s=60) for _ in range(2))

    def work(job: SharedPreparation, number: int) -> None:
        order = job.order(seed=number)
        while True:
            epoch(job, order=order)

    pauses = np.random.default_rng(3).uniform(0.001, 0.05, 100)
    workers = [forked(partial(work, (one, other)[number % 2], number)) for number in range(4)]
    for number, pause in enumerate(pauses.tolist()):
        time.sleep(pause)
        os.kill(workers[number % 4], signal.SIGKILL)
        os.waitpid(workers[number % 4], 0)
        workers[number % 4] = forked(partial(work, (one, other)[number % 2], number % 4))
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    orders = one.order(), other.order()
    for order in orders:
        order.set_epoch(100_000)
    with ThreadPoolExecutor() as pool:
        theirs = pool.submit(epoch, other, order=orders[1])
        assert sorted(epoch(one, order=orders[0])) == list(range(ITEMS))
    assert sorted(theirs.result()) == list(range(ITEMS))
    assert (one.held, one._store.held_bytes) == (0, 0)


def test_a_stopped_worker_is_waited_for_until_the_timeout(tmp_path):
    dataset = Signalling(10, 3, signal.SIGSTOP)
    prepared = SharedPreparation(dataset, MB, tmp_path, timeout_s=0.3)
    child = forked(lambda: prepared[EpochItem(0, 3)])
    os.waitpid(child, os.WUNTRACED)
    try:
        began = time.monotonic()
        assert numbers_of(prepared.__getitems__([EpochItem(0, index) for index in range(10)])) == list(range(10))
        assert time.monotonic() - began >= 0.3
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_sample_that_cannot_be_prepared_is_an_error_for_each_job(tmp_path):
    class Broken(Numbered):
        def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
            raise ValueError("damaged file")

    jobs = [SharedPreparation(Broken(10), MB, tmp_path, timeout_s=60) for _ in range(2)]
    for job in jobs:
        with pytest.raises(ValueError, match="damaged file"):
            job[EpochItem(0, 1)]


def test_jobs_more_than_an_epoch_apart_hold_nothing_for_each_other(tmp_path):
    resumed, new = (SharedPreparation(Numbered(50), 4 * MB, tmp_path) for _ in range(2))
    order = resumed.order()
    order.set_epoch(2)
    assert len(epoch(resumed, order=order)) == len(epoch(new)) == 50
    assert resumed.held == 0


def test_a_job_that_has_left_is_not_waited_for(tmp_path):
    done, other = (SharedPreparation(Numbered(50), 4 * MB, tmp_path) for _ in range(2))
    next(batches(other))
    assert other.held == 16
    done.leave()
    assert other.held == 0
    epoch(other)
    assert other.held == 0
    assert sorted(epoch(done)) == list(range(50)), "it goes on without sharing"


def test_ranks_of_a_job_divide_the_samples(tmp_path):
    """With another job of two ranks, each sample is prepared once; 51 samples are 26 for each rank."""
    dataset = Numbered(51)
    ranks = [
        (rank, SharedPreparation(dataset, 4 * MB, tmp_path, job=job)) for job in ("one", "other") for rank in (0, 1)
    ]
    seen = [epoch(prepared, rank=rank, world=2) for rank, prepared in ranks]
    assert [len(numbers) for numbers in seen] == [26] * 4
    assert seen[:2] == seen[2:]
    assert set(seen[0]) | set(seen[1]) == set(range(51))
    assert dataset.reads <= 51 + 2, "the sample that fills up is prepared again"


def test_ranks_of_a_launched_job_have_its_name(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    ranks = []
    for port in ("29500", "29500", "29501"):
        monkeypatch.setenv("MASTER_PORT", port)
        ranks.append(SharedPreparation(Numbered(11), MB, tmp_path))
    assert ranks[0].wait_for_jobs(2, timeout_s=0)
    assert not ranks[0].wait_for_jobs(3, timeout_s=0)
    assert [item.number for item in ranks[0].order(shuffle=False)] == [1, 3, 5, 7, 9, 0]


def test_a_copy_shares_as_spawned_workers_need(tmp_path):
    """The rank stays when the copy goes."""
    one, other = (SharedPreparation(Numbered(20), MB, tmp_path) for _ in range(2))
    copy = pickle.loads(pickle.dumps(one))
    numbers = epoch(copy)
    del copy
    assert epoch(other) == numbers
    assert (one.prepared, one.shared, one.held) == (20, 20, 0)


def test_bad_requests_are_refused(tmp_path):
    prepared = SharedPreparation(Numbered(10), MB, tmp_path)
    with pytest.raises(UsageError, match="in the order of"):
        prepared[3]
    with pytest.raises(UsageError, match="too long"):
        SharedPreparation(Numbered(10), MB, tmp_path, job="x" * 300)
    with pytest.raises(InputError, match="another data set"):
        SharedPreparation(Numbered(11), MB, tmp_path)
    with pytest.raises(InputError, match="another data set"):
        MinIOCache(Numbered(10), MB, tmp_path)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_loader_workers_of_two_jobs_share_the_preparation(tmp_path, method):
    data = pytest.importorskip("torch.utils.data")
    jobs = [SharedPreparation(Numbered(ITEMS), 16 * MB, tmp_path) for _ in range(2)]
    loaders = [
        data.DataLoader(
            job,
            batch_size=16,
            sampler=job.order(),
            num_workers=2,
            persistent_workers=True,
            multiprocessing_context=method,
        )
        for job in jobs
    ]
    for number in (1, 2):
        for (mine, _), (theirs, tensors) in zip(*loaders, strict=True):
            assert mine.tolist() == theirs.tolist()
            assert (tensors == theirs[:, None]).all()
        assert jobs[0].prepared == jobs[0].shared == number * ITEMS
    assert jobs[0].held == 0
