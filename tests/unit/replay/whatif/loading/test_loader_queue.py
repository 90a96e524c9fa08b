"""When batches are delivered, by hand and by a plain simulation of the DataLoader's rules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.replay.whatif.loading.loader_queue import delivered


def one_rank(took: list[float], workers: int, ahead: int, step: list[float], *, in_order: bool = True) -> list[float]:
    arrays = (np.array([one]) for one in (workers, ahead, in_order))
    at = delivered(np.array([took], float), *arrays, np.array(step, float))
    return at[0].tolist()


def test_two_workers_of_equal_batches_are_late_for_every_other_one():
    """Both workers start together and stay together: each second batch is ready when it is wanted."""
    assert one_rank([10] * 6, 2, 2, [2] * 6) == [10, 12, 20, 22, 30, 32]


def test_four_workers_deliver_in_bursts():
    assert one_rank([10] * 5, 4, 8, [1] * 5) == [10, 11, 12, 13, 20]


def test_a_slow_batch_holds_up_the_batches_behind_it():
    assert one_rank([1, 9, 1, 1], 2, 4, [1] * 4) == [1, 9, 10, 11]


def test_without_order_a_slow_batch_holds_up_only_its_worker():
    assert one_rank([1, 9, 1, 1], 2, 4, [1] * 4, in_order=False) == [1, 2, 9, 10]
    assert one_rank([9, 1, 1, 1, 1], 2, 2, [1] * 5, in_order=False) == [1, 2, 3, 4, 9]


def test_without_prefetching_a_worker_waits_for_the_delivery():
    assert one_rank([4, 4, 4], 1, 1, [3] * 3) == [4, 8, 12]
    assert one_rank([4, 4, 4], 1, 2, [5] * 3) == [4, 9, 14]


def test_without_workers_batches_are_made_between_the_steps():
    assert one_rank([4, 5, 4], 0, 1, [3] * 3) == [4, 12, 19]


def test_a_rank_with_slow_batches_holds_up_the_others():
    took, in_order = np.array([[1.0] * 3, [10.0] * 3]), np.array([True, True])
    at = delivered(took, np.array([1, 0]), np.array([2, 1]), in_order, np.array([2.0] * 3))
    assert at.tolist() == [[1, 12, 24], [10, 22, 34]]


@pytest.mark.parametrize("ahead", [1, 2, 6])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_of_constant_length_bound_the_step(workers, ahead):
    """The step takes the longer of itself and a batch divided by the workers, however many are made ahead."""
    at = one_rank([12] * 60, workers, workers * ahead, [3] * 60)
    assert (at[-1] - at[-1 - 2 * workers]) / (2 * workers) == pytest.approx(max(3, 12 / workers))


@given(
    took=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    step=st.integers(0, 20),
    workers=st.integers(1, 4),
    prefetch=st.integers(1, 3),
    in_order=st.booleans(),
)
def test_equals_a_plain_simulation_of_queues(took, step, workers, prefetch, in_order):
    found = one_rank(took, workers, workers * prefetch, [step] * len(took), in_order=in_order)
    assert found == (_by_queues if in_order else _by_completion)(took, step, workers, prefetch)


def _by_completion(took: list[int], step: int, workers: int, prefetch: int) -> list[float]:
    """Event by event: batches wait in one queue, and the worker of the one that is taken gets the next."""
    waiting = [list(range(worker, min(len(took), workers * prefetch), workers)) for worker in range(workers)]
    sent, free, queue, delivered_at, clock = min(len(took), workers * prefetch), [0] * workers, [], [], 0
    for worker in range(workers):
        for slot, batch in enumerate(waiting[worker]):
            free[worker] += took[batch]
            queue.append((free[worker], slot * workers + worker, worker))
    while queue:
        first = min(queue)
        queue.remove(first)
        made, slot, worker = first
        clock = max(clock, made)
        delivered_at.append(float(clock))
        if sent < len(took):
            free[worker] = max(free[worker], clock) + took[sent]
            queue.append((free[worker], slot, worker))
            sent += 1
        clock += step
    return delivered_at


def _by_queues(took: list[int], step: int, workers: int, prefetch: int) -> list[float]:
    """Tick by tick: each worker takes the next index from its queue when it is idle."""
    queues: list[list[int]] = [[] for _ in range(workers)]
    for batch in range(min(len(took), workers * prefetch)):
        queues[batch % workers].append(batch)
    busy, ready, delivered_at = [0] * workers, set(), []
    current, clock, free_at, sent = [-1] * workers, 0, 0, min(len(took), workers * prefetch)
    while len(delivered_at) < len(took):
        for worker in range(workers):
            if current[worker] >= 0 and busy[worker] <= clock:
                ready.add(current[worker])
                current[worker] = -1
        while len(delivered_at) in ready and free_at <= clock:
            delivered_at.append(float(clock))
            free_at = clock + step
            if sent < len(took):
                queues[sent % workers].append(sent)
                sent += 1
        for worker in range(workers):
            if current[worker] < 0 and queues[worker]:
                current[worker] = queues[worker].pop(0)
                busy[worker] = clock + took[current[worker]]
        clock += 1
    return delivered_at
