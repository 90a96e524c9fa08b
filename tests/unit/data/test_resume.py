"""The check that a resumed loader uses each item once."""

from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from esprof.core.errors import MismatchError, UsageError
from esprof.data import check_resume

NUMBERS = list(range(23))


def loader(**options):
    torch.manual_seed(7)
    return StatefulDataLoader(NUMBERS, batch_size=4, **options)


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True}])
def test_a_loader_with_a_state_resumes(options):
    check_resume(partial(loader, **options), stops=6)


class Forgetful:
    """A loader that resumes one batch too late, or too early."""

    def __init__(self, off):
        self.off, self.at = off, 0

    def __iter__(self):
        while self.at < 6:
            self.at += 1
            yield {"number": torch.tensor([2 * self.at, 2 * self.at + 1]), "text": ["a", "b"]}

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = max(0, state["at"] + self.off)


@pytest.mark.parametrize(("off", "says"), [(1, "loses 2 items and repeats 0"), (-1, "loses 0 items and repeats 2")])
def test_items_that_are_lost_or_repeated(off, says):
    with pytest.raises(MismatchError, match=says):
        check_resume(partial(Forgetful, off))


def test_the_caller_may_tell_items():
    check_resume(partial(Forgetful, 0), lambda batch: batch["number"].tolist())
    with pytest.raises(MismatchError):
        check_resume(partial(Forgetful, 1), lambda batch: batch["number"].tolist())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: DataLoader(NUMBERS), "has no state_dict"),
        (lambda: DataLoader([]), "makes no batches"),
        (lambda: [(torch.zeros(2), torch.zeros(3))], "are not known"),
    ],
)
def test_what_cannot_be_checked(make, says):
    with pytest.raises(UsageError, match=says):
        check_resume(make)
