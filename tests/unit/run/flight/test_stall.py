"""Who keeps a job from getting on where no collective tells it all."""

import msgspec
import pytest

from esprof.run.flight.log import Worker
from esprof.run.flight.stall import find_stall
from tests.cases.flight import SIGTERM_TEXT, S, by_rank, call, snapshot

STILL = {"lingers": True, "stands_still": True, "same_place_ns": 61 * S, "world_size": 2}
BUSY = STILL | {"stands_still": False, "reason": "starting"}


def at_start(rank, calls=(), *, joined=True, **fields):
    found = snapshot(rank, calls, step=0, **fields)
    return found if joined else msgspec.structs.replace(found, groups=())


def joining(rank, **fields):
    return at_start(rank, joined=False, joins=True, **STILL | fields)


@pytest.mark.parametrize(
    ("snapshots", "kind", "at_fault", "said"),
    [
        (
            by_rank(joining(0), at_start(1, joined=False, **STILL)),
            "unjoined",
            (1,),
            "rank 1 did not enter init_process_group, which rank 0 waits in",
        ),
        (
            by_rank(joining(0, world_size=4), joining(2, world_size=4)),
            "unjoined",
            (1, 3),
            "ranks 0, 2 wait in init_process_group, and nothing is seen of ranks 1, 3",
        ),
        (
            by_rank(joining(0), joining(1)),
            "joining",
            (0, 1),
            "init_process_group does not end, though all of ranks 0–1 entered it",
        ),
        (
            by_rank(at_start(0, [call(1, over=False)], **STILL), at_start(1, **STILL)),
            "collective",
            (1,),
            "rank 1 did not enter all_reduce 1, which rank 0 waits in",
        ),
        (
            by_rank(at_start(0, **STILL, workers=(Worker(worker=1, pid=7),))),
            "loader",
            (0,),
            "rank 0 waits for a worker of its data loader",
        ),
        (by_rank(at_start(0, **STILL)), "alone", (0,), "rank 0 waits for something that is no collective"),
        (
            by_rank(at_start(0, [call(1, over=False)], **STILL), at_start(1, **BUSY)),
            "slow",
            (1,),
            "rank 1 computes at one place",
        ),
        (by_rank(at_start(0, **STILL), at_start(1, **BUSY)), "slow", (1,), "rank 1 computes at one place"),
    ],
    ids=["not joined", "not seen", "all join", "collective", "loader", "alone", "waits for a slow one", "may be slow"],
)
def test_each_way_to_stand_still_is_told_from_the_others(snapshots, kind, at_fault, said):
    found = find_stall(snapshots)
    assert (found.kind, found.at_fault, str(found)) == (kind, at_fault, said)
    assert found.waited_ns == 61 * S


def test_who_waits_for_a_rank_that_gets_on_is_no_matter():
    getting_on = {"reason": "asked", "world_size": 2}
    assert find_stall(by_rank(joining(0), at_start(1, joined=False, **getting_on))) is None
    assert find_stall(by_rank(at_start(1, **getting_on))) is None
    assert find_stall({}) is None


def test_where_a_rank_is_told_with_the_worker_that_it_waits_for():
    shown, stopped = Worker(worker=1, pid=7, state="S", dump=SIGTERM_TEXT), Worker(worker=0, pid=8, state="T")
    waits = at_start(0, **STILL, workers=(shown,))
    worker = "waiting for worker 1 of its data loader (process 7), which is at /job/train.py(88): step"
    assert waits.whereabouts == f"train.py(10): main, {worker}"
    both = msgspec.structs.replace(waits, workers=(stopped, shown)).whereabouts
    assert both.endswith("worker 0 of its data loader (process 8), which was stopped by a signal, or for another of 2")
