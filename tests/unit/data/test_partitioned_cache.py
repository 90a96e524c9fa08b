"""A cache that is divided among the hosts of a job. Two hosts here are two parts of one process, or processes."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lmdb")

from torch.distributed import HashStore  # noqa: E402  needs torch
from torch.utils.data import DataLoader  # noqa: E402

from esprof.core.errors import InputError, UsageError  # noqa: E402
from esprof.data import JobHosts, PartitionedCache  # noqa: E402
from esprof.data.hosts.messages import PeerLine  # noqa: E402
from tests.cases.samples import ITEM_BYTES, MB, Numbered, numbers_of, size_of  # noqa: E402

ITEMS = 400
GONE_S = 30.0


def on_hosts(datasets: list[Numbered], size: int, **options: Any) -> list[PartitionedCache]:
    """A cache on each of so many hosts with one rank."""
    store = HashStore()

    def created(host: int) -> PartitionedCache:
        return PartitionedCache(datasets[host], size, hosts=JobHosts(host, len(datasets), 0, store), **options)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(created, range(len(datasets))))


def epoch(caches: list[PartitionedCache], number: int) -> list[int]:
    """Numbers of the samples of an epoch that is divided among the hosts at random, in batches of 20."""
    order = np.random.default_rng(number).permutation(len(caches[0])).tolist()
    seen = []
    for start in range(0, len(order), 20 * len(caches)):
        for host, cache in enumerate(caches):
            seen += numbers_of(cache.__getitems__(order[start : start + 20 * len(caches)][host :: len(caches)]))
    return seen


def has_ended(pid: int) -> bool:
    """Whether a process ends within seconds."""
    deadline_s = time.monotonic() + GONE_S
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_samples_that_fit_are_read_from_storage_once_a_job():
    datasets = [Numbered(ITEMS) for _ in range(3)]
    caches = on_hosts(datasets, 2 * MB)
    for number in range(3):
        assert sorted(epoch(caches, number)) == list(range(ITEMS))
        assert sum(dataset.reads for dataset in datasets) == ITEMS
    assert sum(cache.held for cache in caches) == ITEMS
    counts = [cache.counts for cache in caches]
    assert [one.local_hits + one.peer_hits + one.storage_reads for one in counts] == [402, 399, 399]


def test_shares_of_a_cache_that_is_too_small():
    """c/D of the samples are local hits, min(1, nc/D) - c/D come from peers, and the rest from storage."""
    datasets = [Numbered(ITEMS) for _ in range(2)]
    caches = on_hosts(datasets, 3 * MB // 2)
    epoch(caches, 0)
    before = [cache.counts for cache in caches]
    held = sum(cache.held for cache in caches)
    assert 0.5 * ITEMS < held < 0.95 * ITEMS
    epochs = 10
    for number in range(1, epochs + 1):
        assert sorted(epoch(caches, number)) == list(range(ITEMS))
    for cache, first in zip(caches, before, strict=True):
        taken, share = epochs * ITEMS / 2, cache.held / ITEMS
        assert (cache.counts.local_hits - first.local_hits) / taken == pytest.approx(share, abs=0.02)
        assert (cache.counts.peer_hits - first.peer_hits) / taken == pytest.approx(held / ITEMS - share, abs=0.02)
        assert cache.counts.peer_bytes / cache.counts.peer_hits == pytest.approx(ITEM_BYTES, rel=0.01)
        assert size_of(cache.folder) <= 3 * MB // 2
    # Of the whole job it is exact: no sample is held twice.
    read = sum(cache.counts.storage_reads - first.storage_reads for cache, first in zip(caches, before, strict=True))
    assert read == epochs * (ITEMS - held)
    assert sum(dataset.reads for dataset in datasets) == ITEMS + read


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_loader_workers_of_a_host_use_the_other_host(method):
    caches = on_hosts([Numbered(ITEMS) for _ in range(2)], 8 * MB)
    for host, cache in enumerate(caches):
        cache.__getitems__(list(range(host, ITEMS, 2)))
    loader = DataLoader(caches[0], batch_size=16, num_workers=2, multiprocessing_context=method)
    for _ in range(2):
        for numbers, tensors in loader:
            assert (tensors == numbers[:, None]).all()
    counts = caches[0].counts
    assert (counts.local_hits, counts.peer_hits, counts.storage_reads) == (ITEMS, ITEMS, ITEMS // 2)


def test_a_killed_host_is_replaced_by_storage_with_one_warning():
    datasets = [Numbered(ITEMS) for _ in range(2)]
    caches = on_hosts(datasets, 8 * MB)
    epoch(caches, 0)
    os.kill(caches[1].server_pid, signal.SIGKILL)
    assert has_ended(caches[1].server_pid)
    with pytest.warns(UserWarning, match=r"the cache of host 1 .* is lost") as warned:
        samples = caches[0].__getitems__(list(range(ITEMS)))
    assert numbers_of(samples) == list(range(ITEMS))
    assert len(warned) == 1
    assert caches[0].held == ITEMS, "what the other host held is cached again"
    assert datasets[0].reads == ITEMS


def test_a_host_that_hangs_is_lost_after_the_timeout_for_all_workers():
    caches = on_hosts([Numbered(ITEMS) for _ in range(2)], 8 * MB, timeout_s=0.3)
    caches[1].__getitems__(list(range(ITEMS // 2, ITEMS)))
    os.kill(caches[1].server_pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.warns(UserWarning, match="timed out") as warned:
        caches[0].__getitems__(list(range(ITEMS // 2)))
    assert time.monotonic() - began >= 0.3
    assert len(warned) == 1
    os.kill(caches[1].server_pid, signal.SIGCONT)
    loader = DataLoader(caches[0], batch_size=16, num_workers=2, multiprocessing_context="fork")
    assert sum(len(numbers) for numbers, _ in loader) == ITEMS
    assert caches[0].counts.peer_hits == 0, "no worker asks the lost host again"


JOB = """
import os, sys, time
from esprof.data import JobHosts, PartitionedCache
from tests.cases.samples import MB, Numbered

class Alone(dict):
    set, get = dict.__setitem__, lambda self, key: self[key].encode()
    def add(self, key, amount): return 1
    def wait(self, keys, timeout): pass

cache = PartitionedCache(Numbered(), 2 * MB, hosts=JobHosts(0, 1, 0, Alone()))
if os.fork() == 0:
    time.sleep(60)
print(cache.server_pid, cache.folder, flush=True)
time.sleep(60)
"""


def test_the_server_ends_with_a_killed_rank_and_removes_the_folder():
    """A process that the rank has forked, as loader workers are, may live on."""
    job = subprocess.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        server, folder = job.stdout.readline().split()
        assert Path(folder).is_dir()
        job.kill()
        assert has_ended(int(server))
        assert not Path(folder).exists()
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def test_the_server_and_the_folder_end_with_the_cache():
    caches = on_hosts([Numbered(ITEMS)] * 2, MB)
    ends = [(cache.server_pid, cache.folder) for cache in caches]
    del caches
    for pid, folder in ends:
        assert has_ended(pid)
        assert not Path(folder).exists()


def test_ranks_of_a_host_share_its_part(tmp_path):
    store = HashStore()
    dataset = Numbered(ITEMS)

    def created(rank: int) -> PartitionedCache:
        return PartitionedCache(
            dataset, 8 * MB, tmp_path / str(rank // 2), hosts=JobHosts(rank // 2, 2, rank % 2, store)
        )

    with ThreadPoolExecutor() as pool:
        ranks = list(pool.map(created, range(3)))
    assert [cache.server_pid is None for cache in ranks] == [False, True, False]
    assert {cache.folder for cache in ranks} == {str(tmp_path / "0"), str(tmp_path / "1")}
    for number in range(2):
        assert sorted(epoch(ranks, number)) == list(range(ITEMS))
    assert dataset.reads == ITEMS
    assert ranks[0].counts == ranks[1].counts


def test_a_copy_shares_as_spawned_workers_need():
    caches = on_hosts([Numbered(ITEMS) for _ in range(2)], 8 * MB)
    copies = [pickle.loads(pickle.dumps(cache)) for cache in caches]
    epoch(copies, 0)
    del copies
    epoch(caches, 1)
    assert [cache.dataset.reads for cache in caches] == [0, 0]
    assert sum(cache.counts.peer_hits + cache.counts.local_hits for cache in caches) == ITEMS


def test_strangers_get_nothing():
    (cache, _) = on_hosts([Numbered(ITEMS)] * 2, 2 * MB)
    (served,) = cache._peers._cards
    with socket.create_connection((served.address, served.port)) as connection:
        connection.sendall(bytes(16 + 32))  # A nonce, and a proof that is wrong.
        received = b"".join(iter(lambda: connection.recv(100), b""))
    assert len(received) == 16 + 32, "the server's nonce and proof, then it hangs up"


def test_an_answer_that_is_too_long_is_refused():
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as one,
        listening.accept()[0] as other,
    ):
        PeerLine(other, 1.0).answer(b"x" * 100)
        with pytest.raises(ConnectionError, match="a sample of 100 bytes"):
            list(PeerLine(one, 1.0).answers(1, most=99))


def test_a_single_process_has_no_server():
    dataset = Numbered(ITEMS)
    cache = PartitionedCache(dataset, 8 * MB)
    for _ in range(2):
        assert numbers_of([cache[index] for index in range(ITEMS)]) == list(range(ITEMS))
    assert (cache.server_pid, dataset.reads, cache.counts.local_hits) == (None, ITEMS, ITEMS)
    assert cache[-1][0] == -1, "items without a number come from the data set"


def test_bad_requests_are_refused(monkeypatch):
    with pytest.raises(InputError, match=r"1\d samples here, and 1\d on host \d"):
        on_hosts([Numbered(10), Numbered(11)], MB)
    with pytest.raises(UsageError, match="too small"):
        PartitionedCache(Numbered(10), 1000)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="not connected"):
        PartitionedCache(Numbered(10), 2 * MB)


RANK = """
import os, sys
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from esprof.data import PartitionedCache
from tests.cases.samples import MB, Numbered

dist.init_process_group("gloo")
dataset = Numbered(300)
cache = PartitionedCache(dataset, 8 * MB)
sampler = DistributedSampler(cache)
loader = DataLoader(cache, batch_size=10, sampler=sampler, num_workers=2, multiprocessing_context="fork")
for epoch in range(3):
    sampler.set_epoch(epoch)
    seen = [None] * dist.get_world_size()
    dist.all_gather_object(seen, [n for numbers, _ in loader for n in numbers.tolist()])
    assert sorted(sum(seen, [])) == list(range(300))
if os.environ["LOCAL_RANK"] == "0":
    print(cache.held, *vars(cache.counts).values())
dist.barrier()
"""


@pytest.mark.slow
def test_hosts_of_a_launched_job_find_each_other():
    """Three ranks on two hosts, one of which has two."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3", "GROUP_WORLD_SIZE": "2"}
    places = [(0, 0, 2), (0, 1, 2), (1, 0, 1)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env=os.environ
            | shared
            | {
                "RANK": str(rank),
                "GROUP_RANK": str(host),
                "LOCAL_RANK": str(local_rank),
                "LOCAL_WORLD_SIZE": str(local_world),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, (host, local_rank, local_world) in enumerate(places)
    ]
    said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    (held, local, peer, read, _), (other_held, other_local, other_peer, other_read, _) = (
        map(int, said[rank].split()) for rank in (0, 2)
    )
    assert (held, other_held) == (read, other_read) == (200, 100)
    assert local + peer == 400
    assert other_local + other_peer == 200
    assert peer > 0
    assert other_peer > 0
