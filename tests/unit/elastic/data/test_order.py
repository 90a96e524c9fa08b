"""Which sample which EST sees, and that it is the same sample wherever that is."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from esprof.core.errors import UsageError
from esprof.elastic.data.order import Batches, SampleOrder
from esprof.elastic.data.threads import blas_threads, use_threads
from esprof.elastic.runtime.rng import RngState

CPU = torch.device("cpu")


class Noisy(torch.utils.data.Dataset):
    """Says which sample it is, and what the generators gave it."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(()).item()


def seen(order, ests, step, count, workers=0, collate=list):
    batches = Batches(Noisy(), order, ests, step, workers=workers, collate=collate)
    return [next(batches) for _ in range(count)]


orders = st.builds(
    SampleOrder,
    samples=st.integers(40, 90),
    n_est=st.integers(1, 5),
    batch_size=st.integers(1, 3),
    accumulate=st.integers(1, 2),
    seed=st.integers(0, 9),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)


@given(orders, st.integers(0, 2))
def test_an_epoch_has_every_sample_once(order, epoch):
    first = epoch * order.steps_per_epoch
    indices = [
        index
        for step in range(first, first + order.steps_per_epoch)
        for est in range(order.n_est)
        for micro in range(order.accumulate)
        for index in order.batch(step, est, micro)
    ]
    assert len(set(indices)) == len(indices)
    whole = order.steps_per_epoch * order.per_step if order.drop_last else order.samples
    assert len(indices) == whole == sum(order.count(step) for step in range(first, first + order.steps_per_epoch))


@given(orders, st.integers(0, 2))
def test_est_e_sees_what_rank_e_of_a_distributed_sampler_sees(order, epoch):
    for est in range(order.n_est):
        sampler = DistributedSampler(
            range(order.samples), order.n_est, est, shuffle=order.shuffle, seed=order.seed, drop_last=True
        )
        sampler.set_epoch(epoch)
        first = epoch * order.steps_per_epoch
        mine = [
            index
            for step in range(first, first + order.samples // order.per_step)
            for micro in range(order.accumulate)
            for index in order.batch(step, est, micro)
        ]
        assert mine == list(sampler)[: len(mine)]


def test_an_epoch_without_a_step_is_refused():
    with pytest.raises(UsageError, match="7 samples are fewer than the 8 of one step") as raised:
        SampleOrder(7, n_est=4, batch_size=2)
    assert raised.value.remedy == "Use fewer ESTs, a smaller batch_size, or Data(drop_last=False)."


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 2), min_size=4, max_size=4), st.integers(0, 6))
def test_a_sample_is_the_same_wherever_its_est_runs(owners, step):
    order = SampleOrder(23, n_est=4, batch_size=1, seed=5)
    alone = dict(zip(range(4), seen(order, range(4), step, 4), strict=True))
    for rank in range(3):
        ests = [est for est in range(4) if owners[est] == rank]
        assert seen(order, ests, step, len(ests)) == [alone[est] for est in ests]


def test_workers_make_no_difference():
    order = SampleOrder(23, n_est=2, batch_size=2, accumulate=2)
    assert seen(order, (0, 1), 3, 9, workers=2) == seen(order, (0, 1), 3, 9)


def drawing(samples):
    return samples, random.random(), np.random.rand(), torch.rand(()).item()


def test_a_batch_put_together_at_random_is_the_same_wherever_its_est_runs():
    order = SampleOrder(23, n_est=2, batch_size=2, accumulate=2)
    alone = seen(order, (0, 1), 3, 8, collate=drawing)
    assert seen(order, (0, 1), 3, 8, workers=2, collate=drawing) == alone
    assert seen(order, (1,), 3, 4, collate=drawing) == alone[2:4] + alone[6:]
    assert len({made[1:] for made in alone}) == len(alone)


class Threads(Noisy):
    def __getitem__(self, index):
        return torch.get_num_threads(), blas_threads()


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_are_made_on_one_thread(workers):
    before = torch.get_num_threads()
    use_threads(2)
    try:
        batches = Batches(Threads(), SampleOrder(4, n_est=1, batch_size=2), (0,), 0, workers=workers)
        assert [counts.tolist() for counts in next(batches)] == [[1, 1], [1, 1]]
        assert (torch.get_num_threads(), blas_threads()) == (2, 2)
    finally:
        use_threads(before)


def test_another_epoch_makes_another_sample_of_the_same_index():
    order = SampleOrder(23, n_est=1, batch_size=23, shuffle=False)
    (first, second) = seen(order, (0,), 0, 2)
    assert [sample[0] for sample in first] == [sample[0] for sample in second]
    assert first != second


def test_fetching_leaves_an_est_s_generators_alone():
    before = RngState.capture(CPU).tensors()
    seen(SampleOrder(23, n_est=2, batch_size=2), (0, 1), 0, 5)
    after = RngState.capture(CPU).tensors()
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)


def test_a_micro_batch_without_samples_is_passed_over():
    order = SampleOrder(5, n_est=2, batch_size=1, accumulate=2, drop_last=False, shuffle=False)
    batches = seen(order, (0, 1), 0, 7)
    assert [[sample[0] for sample in batch] for batch in batches] == [[0], [2], [1], [3], [4], [0], [2]]
