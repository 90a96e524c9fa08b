"""Samples that depend on more than their number and the seed."""

import numpy as np
import pytest
import torch

from esprof.core.errors import MismatchError, UsageError
from esprof.elastic.verify.content import content
from tests.cases.elastic import Job, Samples, on_threads, trainer

JOB = Job("mlp")
PARTS = [[0, 1], [2, 3]]


class OwnGenerator(Samples):
    def __init__(self):
        super().__init__(51, tokens=False)
        self.generator = np.random.default_rng(1)

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + self.generator.random(), label


class MadeOfTheIndex(OwnGenerator):
    def __getitem__(self, index):
        self.generator = np.random.default_rng(index)
        return super().__getitem__(index)


class Offset(Samples):
    def __init__(self, offset):
        super().__init__(51, tokens=False)
        self.offset = offset

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + self.offset, label


def test_a_dataset_with_a_generator_of_its_own_is_refused():
    with pytest.raises(UsageError, match=r"sample \d+ differed when it was made a second time"):
        trainer(JOB, [[0, 1, 2, 3]], dataset=OwnGenerator()).step()
    trainer(JOB, [[0, 1, 2, 3]], dataset=MadeOfTheIndex()).step()


class Cached(Samples):
    """Keeps each sample; with `raw` it keeps what comes before the noise."""

    def __init__(self, *, raw):
        super().__init__(51, tokens=False)
        self.raw, self.kept = raw, {}

    def __getitem__(self, index):
        if self.raw:
            return self.kept.setdefault(index, torch.full((1, 8, 8), index / 51)) + torch.rand(1, 8, 8), index % 5
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]


def test_a_dataset_that_caches_augmented_samples_is_refused():
    with pytest.raises(UsageError, match=r"sample \d+ drew random numbers when it was made, and none when"):
        trainer(JOB, [[0, 1, 2, 3]], dataset=Cached(raw=False)).step()
    trainer(JOB, [[0, 1, 2, 3]], dataset=Cached(raw=True)).step()


def test_ranks_whose_data_differ_are_refused():
    def body(transport, differs=True):
        with pytest.raises(MismatchError, match=r"sample \d+ differs between rank 1 and rank 0"):
            trainer(JOB, PARTS, transport, dataset=Offset(transport.rank)).step()
        return trainer(JOB, PARTS, transport, dataset=Offset(1)).step().losses

    first, second = on_threads(2, body)
    assert first == second


def test_hashes_tell_apart_what_differs():
    values = [
        None, 0, 1, 1.0, True, "1", b"1", torch.ones(2), torch.ones(1, 2), torch.ones(2, dtype=torch.int32), np.ones(2),
        [1, 2], [2, 1], {"a": 1}, {"a": 2}, {"b": 1}, {1, 2}, torch.ones(2, dtype=torch.bfloat16), Offset(1), Offset(2),
        torch.Generator().manual_seed(1), torch.Generator().manual_seed(2), np.random.default_rng(1),
        torch.tensor([-0.0, 0.0]),
    ]  # fmt: skip
    assert len({content(value) for value in values}) == len(values)
    assert content({"a": [torch.ones(2), Offset(1)]}) == content({"a": [torch.ones(2), Offset(1)]})
    assert content(Offset) == content(Offset)
