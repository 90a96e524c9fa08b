"""Samplers of the script's own: the same order on all ranks, whenever it is asked for."""

import itertools

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from esprof.core.errors import MismatchError, UsageError
from esprof.elastic import Data, ElasticTrainer, Loaders
from esprof.elastic.data.order import Batches, SampleOrder
from esprof.elastic.data.sampled import SampledOrder
from esprof.elastic.runtime.rng import RngState
from tests.cases.elastic import loss_fn, on_threads
from tests.cases.elastic_job import bits, bits_of_ranks, small_trainer

LENGTH = 61


class ByEpoch(Sampler):
    """Starts each epoch elsewhere, as it is told."""

    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return LENGTH

    def __iter__(self):
        return iter([(place + 7 * self.epoch) % LENGTH for place in range(LENGTH)])


SAMPLERS = {
    "weighted": lambda: WeightedRandomSampler(torch.arange(1.0, LENGTH + 1), LENGTH),
    "shuffled": lambda: RandomSampler(range(LENGTH)),
    "a subset": lambda: SubsetRandomSampler(range(3, 43)),
    "told the epoch": ByEpoch,
    "the only rank's": lambda: DistributedSampler(range(LENGTH), 1, 0),
    "a list": lambda: list(range(LENGTH))[::-1],
    "tensors": lambda: torch.arange(LENGTH),
}


@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_an_epoch_s_order_depends_on_nothing_but_seed_and_epoch(make):
    asked = SampledOrder(make(), 3)
    before = {epoch: asked.epoch(epoch).tolist() for epoch in range(4)}
    torch.manual_seed(99)
    other = SampledOrder(make(), 3)
    assert {epoch: other.epoch(epoch).tolist() for epoch in (3, 1, 0, 2)} == before
    assert other.fields() == asked.fields()


@pytest.mark.parametrize("name", ["weighted", "shuffled", "a subset"])
def test_seed_and_epoch_change_what_is_drawn(name):
    one, other = SampledOrder(SAMPLERS[name](), 3), SampledOrder(SAMPLERS[name](), 4)
    assert one.epoch(0).tolist() != one.epoch(1).tolist()
    assert one.epoch(0).tolist() != other.epoch(0).tolist()
    assert one.fields() != other.fields()


def test_a_sampler_draws_from_no_est_s_generators():
    asked = SampledOrder(SAMPLERS["weighted"](), 0)
    before = RngState.capture(torch.device("cpu")).tensors()
    asked.epoch(5)
    after = RngState.capture(torch.device("cpu")).tensors()
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)


def test_ests_take_turns_at_what_the_sampler_gives():
    sampled = SampledOrder(list(range(20, 9, -1)), 0)
    order = SampleOrder(11, n_est=2, batch_size=2, drop_last=False, sampled=sampled)
    batches = [order.batch(step, est, 0) for step in range(3) for est in range(2)]
    assert batches == [[20, 18], [19, 17], [16, 14], [15, 13], [12, 10], [11]]


class Noisy(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index, torch.rand(()).item()


def test_a_sample_that_comes_several_times_is_not_made_the_same_way():
    order = SampleOrder(12, n_est=2, batch_size=3, sampled=SampledOrder([5] * 12, 0))
    batches = Batches(Noisy(), order, (0, 1), 0, collate=list)
    made = [sample for _ in range(8) for sample in next(batches)]
    assert {index for index, _ in made} == {5}
    assert len({noise for _, noise in made}) == 24, "in two epochs"
    alone = Batches(Noisy(), order, (1,), 1, workers=1, collate=list)
    assert [next(alone), next(alone)] == [made[9:12], made[15:18]]


@pytest.mark.parametrize("name", ["weighted", "told the epoch"])
def test_the_bits_do_not_depend_on_the_ranks(name):
    (alone,) = bits_of_ranks([[0, 1, 2, 3]], 9, sampler=SAMPLERS[name]())  # Into the second epoch.
    assert bits_of_ranks([[3, 0], [], [1, 2]], 9, sampler=SAMPLERS[name]()) == [alone] * 3
    assert bits(small_trainer(sampler=SAMPLERS[name](), num_workers=2, prefetch_factor=3), 9) == alone
    assert bits(small_trainer(), 9) != alone


def test_a_job_goes_on_in_the_midst_of_an_epoch(tmp_path):
    options = {"sampler": SAMPLERS["weighted"]()}
    expected = bits(small_trainer(**options), 12)
    first = small_trainer(folder=tmp_path, **options)
    seen = bits(first, 9)
    first.save()
    second = small_trainer(folder=tmp_path, sampler=SAMPLERS["weighted"](), num_workers=1)
    assert second.next_step == 9
    assert seen + bits(second, 3) == expected


def test_another_order_than_the_checkpoint_s_is_refused(tmp_path):
    first = small_trainer(folder=tmp_path, sampler=SAMPLERS["weighted"]())
    first.step()
    first.save()
    with pytest.raises(MismatchError, match=r"job.sampler_order is \w+ there and \w+ here"):
        small_trainer(folder=tmp_path, sampler=WeightedRandomSampler(torch.ones(LENGTH), LENGTH))
    with pytest.raises(MismatchError, match=r"job.shuffle is False there and True here"):
        small_trainer(folder=tmp_path)


def test_ranks_with_other_orders_are_refused():
    def body(transport):
        small_trainer(transport=transport, sampler=DistributedSampler(range(LENGTH), 2, transport.rank))

    with pytest.raises(MismatchError, match=r"sampler_order is \w+ on rank 0 and \w+ on rank 1"):
        on_threads(2, body)


class Counting(ByEpoch):
    """Counts its epochs by itself."""

    set_epoch = None
    count = itertools.count()

    def __iter__(self):
        self.epoch = next(self.count)
        return super().__iter__()


class Endless(ByEpoch):
    def __iter__(self):
        return itertools.count()


class Shrinking(ByEpoch):
    def __iter__(self):
        return iter(range(LENGTH - self.epoch))


REFUSED = {
    "returns another order when it is iterated again": lambda: RandomSampler(
        range(LENGTH), generator=torch.Generator()
    ),
    "sampler Counting returns another order": Counting,
    "sampler Endless returns more samples in epoch 0; its length is 61": Endless,
    "sampler Shrinking returns 60 samples in epoch 1; its length is 61": Shrinking,
    "sampler generator has no length": lambda: (place for place in range(LENGTH)),
    "sampler BatchSampler returns something other than an index: 'list' object": lambda: BatchSampler(
        SequentialSampler(range(LENGTH)), 2, drop_last=True
    ),
    "0 samples are fewer than the 8 of one step": list,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_sampler_of_a_whole_epoch_is_refused(reason):
    with pytest.raises(UsageError, match=reason):
        small_trainer(sampler=REFUSED[reason]())


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_order_and_a_sampler_are_not_both_asked_for(shuffle):
    with pytest.raises(UsageError, match=f"shuffle={shuffle} cannot be used with a sampler"):
        Data([], batch_size=1, sampler=[1, 2], shuffle=shuffle)


def test_loaders_have_samplers_of_their_own():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    data = Data(Loaders(lambda est, n_est: None), batch_size=1, sampler=[1, 2])
    with pytest.raises(UsageError, match="Loaders cannot take a sampler"):
        ElasticTrainer(model, optimizer, loss_fn, data, 1)


def test_working_ahead_needs_workers():
    with pytest.raises(UsageError, match="prefetch_factor needs num_workers"):
        Data([], batch_size=1, prefetch_factor=2)


def test_what_is_asked_of_the_loader_reaches_it():
    trainer = small_trainer(num_workers=2, prefetch_factor=5, pin_memory=True)
    loader = trainer._est_steps.feed._batches._loader
    assert (loader.num_workers, loader.prefetch_factor, loader.pin_memory) == (2, 5, True)
