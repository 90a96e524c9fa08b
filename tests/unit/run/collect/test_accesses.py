"""From noted keys of samples to the table of accesses."""

import numpy as np

from esprof.run.collect.accesses import accesses_of
from esprof.run.collect.notes import RankIdentity, RankNotes, Workers
from esprof.run.collect.rolled_rows import Fetch, Next, RankRows


def noted(*keys: int) -> bytes:
    return np.array(keys, "<i8").tobytes()


def taken(batch: int, start: int, **fields) -> Next:
    fields = {"iterator": 0, "epoch": 0, "worker": None, "workers": 0} | fields
    return Next(
        batch=batch, prefetch=None, start_ns=start, end_ns=start + 5, samples=2, tokens=None, training=True, **fields
    )


def made(batch: int, start: int, pid: int, worker: int, **fields) -> Fetch:
    return Fetch(pid=pid, worker=worker, epoch=0, batch=batch, start_ns=start, end_ns=start + 5, samples=2, **fields)


def rank(*workers: Workers, **kinds) -> tuple[RankNotes, RankRows]:
    who = RankIdentity(rank=0, world_size=1, host="a", pid=7, device="cpu", accelerators=0, versions={})
    return RankNotes(who, workers=list(workers)), RankRows(**kinds)


def columns(of: tuple[RankNotes, RankRows]) -> dict[str, list[int]]:
    table = accesses_of(*of)
    return {name: table.ints(name).tolist() for name in table.arrow.column_names}


def test_batches_of_workers_come_in_the_order_in_which_they_were_begun():
    found = columns(
        rank(
            Workers(process="p", iterator=0, start_ns=0, pids=[50, 51]),
            nexts=[taken(0, 20, workers=2, worker=0), taken(1, 30, workers=2, worker=1)],
            fetches=[
                made(0, 10, 50, 0, keys=noted(4, 9), items=10),
                made(1, 8, 51, 1, keys=noted(7), items=10),
                made(2, 12, 99, 0, keys=noted(1), items=10),  # of an unknown process
            ],
        )
    )
    assert found == {
        "loader": [0, 0, 0], "batch": [1, 0, 0], "worker": [1, 0, 0],
        "start_ns": [8, 10, 10], "key": [7, 4, 9], "items": [10, 10, 10],
    }  # fmt: skip


def test_a_rank_without_workers_reads_itself():
    found = columns(rank(nexts=[taken(0, 5, keys=noted(-2, 3)), taken(0, 9, epoch=1, keys=noted(3))]))
    assert found["key"] == [-2, 3, 3]
    assert found["loader"] == [0, 0, 1]
    assert set(found["worker"]) == set(found["items"]) == {-1}


def test_a_corrupt_line_leaves_whole_keys_only():
    assert columns(rank(nexts=[taken(0, 5, keys=noted(1, 2)[:-3])]))["key"] == [1]


def test_without_noted_keys_the_table_is_empty():
    assert len(accesses_of(*rank(nexts=[taken(0, 5)]))) == 0
