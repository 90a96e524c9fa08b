"""Datasets: what their samples depend on, and what they keep."""

import random
import tempfile
import time
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from tests.cases.programs.script import KINDS, WIDTH, Points, Script, either, equal, like, refused


class Moved(Points):
    """Points that `by(dataset, index)` moves."""

    def __init__(self, by):
        self.by = by

    def __getitem__(self, index):
        point, kind = super().__getitem__(index)
        return point + 0.3 * torch.as_tensor(self.by(self, index), dtype=torch.float32), kind


def _workers(count, **options):
    return {"num_workers": count, **options}


# Noise.


@like("noise_of_all_generators")
@equal
def generator_of_the_index():
    """Each sample's noise is that of its index."""
    return Script(data=Moved(lambda data, index: np.random.default_rng(index).random()))


def _noise(data, index):
    return random.random() + np.random.rand() + torch.rand(())


@equal
def noise_of_all_generators():
    """Augmentation by random, numpy and torch."""
    return Script(data=Moved(_noise))


@like("noise_in_workers")
@equal
def closure_in_workers():
    """A dataset that holds a lambda, which a forked loader process takes over."""
    return Script(data=Moved(lambda data, index: index / 40), batches=_workers(2))


@equal
def noise_in_workers():
    """The same in two loader processes."""
    return Script(data=Moved(_noise), batches=_workers(2))


def _seeded_noise(data, index):
    return np.random.default_rng(torch.initial_seed()).random()


@like("seed_of_the_sample_in_workers")
@equal
def seed_of_the_sample():
    """A generator that is made of torch.initial_seed(), as transforms in workers do."""
    return Script(data=Moved(_seeded_noise))


@equal
def seed_of_the_sample_in_workers():
    """The same in two loader processes."""
    return Script(data=Moved(_seeded_noise), batches=_workers(2))


def _own(generator, draw):
    data = Moved(lambda data, index: draw(data.generator))
    data.generator = generator
    return Script(data=data)


@either
def numpy_generator_of_a_dataset():
    """A dataset draws from a numpy Generator of its own."""
    return _own(np.random.default_rng(0), lambda generator: generator.random())


@like("numpy_generator_of_a_dataset")
@either
def random_generator_of_a_dataset():
    """A dataset draws from a random.Random of its own."""
    return _own(random.Random(0), lambda generator: generator.random())


@like("numpy_generator_of_a_dataset")
@either
def torch_generator_of_a_dataset():
    """A dataset draws from a torch.Generator of its own."""
    return _own(torch.Generator().manual_seed(0), lambda generator: torch.rand((), generator=generator))


def _draw(data, index):
    return data.generator.random()


@either
def numpy_generator_of_a_dataset_in_workers():
    """A numpy Generator of which each loader process has a copy."""
    data = Moved(_draw)
    data.generator = np.random.default_rng(0)
    return Script(data=data, batches=_workers(2))


def _worker_number(data, index):
    return get_worker_info().id


@refused
def worker_number():
    """A sample that depends on the loader process which makes it."""
    return Script(data=Moved(_worker_number), batches=_workers(2))


@refused
def clock_in_the_samples():
    """A sample that depends on the time of day."""
    return Script(data=Moved(lambda data, index: time.time_ns() // 1000 % 97 / 97))


# State that persists from one sample to the next.


@equal
def cached_samples():
    """lru_cache on the function that reads a sample."""
    read = lru_cache(Points().__getitem__)
    return Script(data=Moved(lambda data, index: read(index)[0].mean()))


@like("cached_samples")
@equal
def file_opened_at_first_use():
    """A file that each process opens when it needs it, and keeps open."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "points"
    path.write_bytes(np.arange(40, dtype=np.float32).tobytes())

    def read(data, index):
        if data.file is None:
            data.file = path.open("rb")
        data.file.seek(4 * index)
        return float(np.frombuffer(data.file.read(4), dtype=np.float32)[0]) / 40

    data = Moved(read)
    data.file, data.folder = None, folder
    return Script(data=data)


@refused
def cached_noise():
    """A cache that keeps augmented samples: noise is that of the epoch in which a process saw the sample first."""
    noise = lru_cache(lambda index: random.random())
    return Script(data=Moved(lambda data, index: noise(index)))


@like("cached_noise")
@refused
def cached_noise_in_workers():
    """The same in loader processes, each with a cache of its own."""
    noise = lru_cache(lambda index: random.random())
    return Script(data=Moved(lambda data, index: noise(index)), batches=_workers(2))


@refused
def curriculum_by_accesses():
    """Samples grow harder with the number that a process has taken."""

    def grow(data, index):
        data.taken += 1
        return data.taken / 20

    data = Moved(grow)
    data.taken = 0
    return Script(data=data)


@equal
def accesses_counted_for_the_log():
    """A dataset counts how often it was asked, for the log."""

    def count(data, index):
        data.taken += 1
        return 0.0

    data = Moved(count)
    data.taken = 0
    return Script(data=data)


@like("curriculum_by_accesses")
@refused
def dataset_that_shuffles_itself():
    """A dataset that puts its samples into another order on each access."""

    class Shuffled(Points):
        def __init__(self):
            self.order = list(range(40))

        def __getitem__(self, index):
            random.Random(len(self.order)).shuffle(self.order)
            return super().__getitem__(self.order[index])

    return Script(data=Shuffled())


@refused
def dataset_that_writes_its_samples():
    """A dataset that wears its own tensors off."""

    class Worn(Points):
        def __init__(self):
            self.points = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(0))

        def __getitem__(self, index):
            return self.points[index].mul_(1.2), index % KINDS

    return Script(data=Worn())


@like("curriculum_by_accesses")
@refused
def neighbour_of_the_sample_before():
    """A sample is mixed with the one that the process took before."""

    def mix(data, index):
        before, data.last = data.last, index
        return before / 40

    data = Moved(mix)
    data.last = 0
    return Script(data=data)


# Batches.


@equal
def collate_with_noise():
    """Noise is added to the whole batch."""

    def collate(samples):
        points, kinds = default_collate(samples)
        return points + 0.1 * torch.randn_like(points), kinds

    return Script(batches=_workers(0, collate_fn=collate))


@refused
def collate_with_a_counter():
    """Batches fade with the number that a process has made."""
    made = []

    def collate(samples):
        made.append(None)
        points, kinds = default_collate(samples)
        return points * 0.95 ** len(made), kinds

    return Script(batches=_workers(0, collate_fn=collate))


@like("collate_with_noise")
@equal
def samples_of_unlike_length():
    """Sequences are padded to the longest of their batch."""

    class Sequences(Points):
        def __getitem__(self, index):
            point, kind = super().__getitem__(index)
            return point[: 2 + index % 6], kind

    def collate(samples):
        points = torch.nn.utils.rnn.pad_sequence([point for point, _ in samples], batch_first=True)
        return F.pad(points, (0, WIDTH - points.shape[1])), torch.tensor([kind for _, kind in samples])

    return Script(data=Sequences(), batches=_workers(0, collate_fn=collate))


@equal
def last_step_with_less():
    """drop_last=False and an epoch that ends in the midst of a step."""

    class More(Points):
        def __len__(self):
            return 27

    return Script(data=More(), batches=_workers(0, drop_last=False))


@equal
def samples_in_a_dict():
    """Batches are dicts."""

    class Named(Points):
        def __getitem__(self, index):
            point, kind = super().__getitem__(index)
            return {"point": point, "kind": kind}

    return Script(data=Named(), loss=lambda model, batch: F.cross_entropy(model(batch["point"]), batch["kind"]))


@refused
def endless_dataset():
    """An IterableDataset, whose samples cannot be distributed by index."""

    class Endless(IterableDataset):
        def __iter__(self):
            return iter(partial(Points().__getitem__, 0), None)

    return Script(data=Endless())


@equal
def sorted_samples():
    """shuffle=False."""
    return Script(batches=_workers(0, shuffle=False))
