"""One DataLoader an EST: wherever it is made again, it goes on with the batch that would have been next."""

import io
import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from esprof.core.errors import InputError, UsageError
from esprof.elastic import Assignment, Checkpoint, Data, ElasticTrainer, Loaders, Placement
from esprof.elastic.data.loaders import EstLoader, batches_per_epoch
from esprof.elastic.runtime.context import EstContext
from tests.cases.elastic import on_threads

CPU = torch.device("cpu")


class Shuffled(Dataset):
    """Samples of an EST's own, changed at random as they are read."""

    def __init__(self, est, n_est):
        self.first = 100 * est

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([self.first + index + random.random(), torch.rand(()).item()])


class Walk(IterableDataset):
    """A random walk that goes on across epochs: all that it is stands in its state."""

    def __init__(self, est, n_est):
        self.generator = torch.Generator().manual_seed(est)
        self.at = torch.zeros(2)
        self.place = 0

    def __len__(self):
        return 6

    def __iter__(self):
        while self.place < 6:
            self.at = self.at + torch.randn(2, generator=self.generator)
            self.place += 1
            yield self.at
        self.place = 0

    def state_dict(self):
        return {"generator": self.generator.get_state(), "at": self.at, "place": self.place}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])
        self.at = state["at"]
        self.place = state["place"]


def shuffled(est, n_est):
    return StatefulDataLoader(Shuffled(est, n_est), batch_size=2, shuffle=True)


def walk(est, n_est):
    return StatefulDataLoader(Walk(est, n_est), batch_size=2)


def shuffled_by_worker(est, n_est):
    return StatefulDataLoader(Steady(est, n_est), batch_size=2, shuffle=True, num_workers=1)


class Steady(Shuffled):
    def __getitem__(self, index):
        return torch.tensor([self.first + index, 0.0])


def taken(loader, make, count):
    return [loader.next(make, 1, 4, seed=7, per_epoch=3).tolist() for _ in range(count)]


@pytest.mark.parametrize("make", [shuffled, walk])
@pytest.mark.parametrize("at", [0, 1, 3, 5, 6])
def test_a_loader_made_again_goes_on_where_it_was(make, at):
    whole = taken(EstLoader(), make, 9)
    first = EstLoader()
    begin = taken(first, make, at)
    torch.manual_seed(99)
    random.seed(99)
    assert begin + taken(EstLoader(first.state()), make, 9 - at) == whole


def test_a_loader_with_workers_goes_on_where_it_was():
    whole = taken(EstLoader(), shuffled_by_worker, 6)
    first = EstLoader()
    begin = taken(first, shuffled_by_worker, 2)
    assert begin + taken(EstLoader(first.state()), shuffled_by_worker, 4) == whole


def test_epochs_hold_every_sample_once_in_another_order():
    batches = taken(EstLoader(), shuffled_by_worker, 6)
    epochs = [[int(sample[0]) for batch in batches[at : at + 3] for sample in batch] for at in (0, 3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(100, 106))
    assert epochs[0] != epochs[1]


def test_loading_takes_nothing_from_the_ests_own_stream():
    torch.manual_seed(0)
    random.seed(0)
    taken(EstLoader(), shuffled, 4)
    drawn = torch.rand(3), random.random()
    torch.manual_seed(0)
    random.seed(0)
    assert torch.equal(drawn[0], torch.rand(3))
    assert drawn[1] == random.random()


def trainer(make, accumulate=1, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    loss = lambda model, batch: model(batch).pow(2).mean()  # noqa: E731
    return ElasticTrainer(
        model, optimizer, loss, Data(Loaders(make), batch_size=2, accumulate=accumulate), 2, **options
    )


@pytest.mark.parametrize("make", [shuffled, walk])
def test_training_is_the_same_with_contexts_handed_over_as_tensors(make):
    whole = [result.losses for result in trainer(make).fit(epochs=3)]
    job, losses = trainer(make), []
    for _ in range(9):
        losses.append(job.step().losses)
        for est, context in job.state.contexts.items():
            job.state.contexts[est] = EstContext.of_tensors(context.tensors(), CPU)
    assert losses == whole


@pytest.mark.parametrize("make", [shuffled, walk])
def test_loaders_move_with_their_ests(make):
    history = [[[0, 1], []], [[1], [0]], [[], [0, 1]]]

    def losses(transport):
        job, found = trainer(make, placement=Placement(transport=transport, assignment=Assignment.of(history[0]))), []
        for parts in history:
            job.assign(Assignment.of(parts))
            found += [job.step().losses for _ in range(3)]
        return found

    whole = [result.losses for result in trainer(make).fit(epochs=3)]
    assert on_threads(2, losses) == [whole, whole]


@pytest.mark.parametrize("make", [shuffled, walk])
def test_training_goes_on_from_a_checkpoint(make, tmp_path):
    whole = [result.losses for result in trainer(make).fit(epochs=3)]
    first = trainer(make, checkpoint=Checkpoint(tmp_path))
    losses = [first.step().losses for _ in range(4)]
    first.save()
    assert losses + [result.losses for result in trainer(make, checkpoint=Checkpoint(tmp_path)).fit(epochs=3)] == whole


def test_an_epoch_is_as_long_as_the_loaders():
    assert trainer(walk).order.steps_per_epoch == 3
    assert trainer(walk, accumulate=3).order.steps_per_epoch == 1


class Threads(Shuffled):
    def __getitem__(self, index):
        return torch.get_num_threads()


def test_batches_are_made_on_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert taken(EstLoader(), lambda est, n_est: StatefulDataLoader(Threads(est, n_est), batch_size=2), 1) == [
            [1, 1]
        ]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class Uneven(Shuffled):
    """That of EST 1 has fewer samples."""

    def __len__(self):
        return 6 if self.first == 0 else 4


class Misjudged(IterableDataset):
    """Has another number of samples than it says."""

    def __init__(self, says, has):
        self.says, self.has = says, has

    def __len__(self):
        return self.says

    def __iter__(self):
        return iter(torch.ones(self.has, 2))


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda est, n_est: StatefulDataLoader(Uneven(est, n_est), batch_size=2), "EST 1 has 2 batches"),
        (lambda est, n_est: StatefulDataLoader(Misjudged(6, 4), batch_size=2), "EST 0 has ended after 2 batches"),
        (lambda est, n_est: StatefulDataLoader(Misjudged(4, 2), batch_size=2), "EST 0 has ended after 1 batches"),
        (lambda est, n_est: StatefulDataLoader(Misjudged(2, 0), batch_size=2), "EST 0 has ended after 0 batches"),
    ],
)
def test_a_loader_with_another_epoch_than_the_others_is_refused(make, found):
    with pytest.raises(UsageError, match=f"the loader of {found}"):
        list(trainer(make).fit(epochs=2))


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_a_loader_that_goes_on_is_refused():
    make = lambda est, n_est: StatefulDataLoader(Misjudged(4, 6), batch_size=2)  # noqa: E731
    with pytest.raises(UsageError, match="the loader of EST 0 goes on after 2 batches; an epoch has 2"):
        list(trainer(make).fit(epochs=2))


def test_what_is_no_stateful_loader_is_refused():
    with pytest.raises(UsageError, match="no state_dict"):
        batches_per_epoch(lambda est, n_est: DataLoader(Shuffled(est, n_est)), 2, 0, 1)
    with pytest.raises(UsageError, match="multiple of accumulate=2"):
        batches_per_epoch(walk, 2, 0, 2)


def test_bytes_that_would_run_code_are_refused():
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    file = io.BytesIO()
    torch.save({"taken": 1, "loader": Evil()}, file)
    with pytest.raises(InputError, match="cannot be read"):
        EstLoader(torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8))
