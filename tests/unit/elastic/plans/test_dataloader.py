"""`apply_plan` of a DataLoader: the same batches, by other workers."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from esprof import apply_plan
from esprof.core.errors import InputError, UsageError
from esprof.core.plan import write_plan
from tests.cases.plans import plan_of


class Numbers(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def collate(samples):
    return torch.cat(samples).tolist()


def init(worker):
    pass


def shuffled(**options):
    """Loaders with equal arguments give equal batches in the first epoch."""
    generator = torch.Generator().manual_seed(3)
    return DataLoader(Numbers(), batch_size=4, shuffle=True, generator=generator, collate_fn=collate, **options)


def planned(workers):
    return plan_of(workers=workers, world=1)


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 2)])
def test_the_batches_stay_the_same(before, after):
    found = apply_plan(shuffled(num_workers=before), planned(after))
    assert (found.num_workers, found.prefetch_factor) == (after, 3 if after else None)
    assert list(found) == list(shuffled())


def test_everything_else_stays_as_it_was():
    before = shuffled(
        num_workers=1,
        drop_last=True,
        timeout=7,
        worker_init_fn=init,
        multiprocessing_context="spawn",
        persistent_workers=True,
        in_order=False,
    )
    after = apply_plan(before, planned(2))
    names = ("dataset", "sampler", "batch_size", "drop_last", "generator", "collate_fn", "pin_memory", "timeout")
    names += ("worker_init_fn", "multiprocessing_context", "persistent_workers", "in_order")
    assert {name: getattr(after, name) for name in names} == {name: getattr(before, name) for name in names}


def test_a_batch_sampler_of_the_script_stays():
    sampler = BatchSampler(RandomSampler(Numbers()), batch_size=3, drop_last=False)
    assert apply_plan(DataLoader(Numbers(), batch_sampler=sampler), planned(1)).batch_sampler is sampler


def test_samples_that_are_not_batched_stay_so():
    found = apply_plan(DataLoader(Numbers(), batch_size=None), planned(1))
    assert [one.tolist() for one in found] == [[number] for number in range(10)]


def test_a_stateful_loader_stays_one():
    before = StatefulDataLoader(Numbers(), batch_size=4, snapshot_every_n_steps=5)
    after = apply_plan(before, planned(1))
    assert type(after) is StatefulDataLoader
    assert after.snapshot_every_n_steps == 5
    assert len(list(after)) == 3


def test_a_stateful_loader_with_a_state_to_resume_from_is_refused():
    loader = StatefulDataLoader(Numbers(), batch_size=4)
    loader.load_state_dict(StatefulDataLoader(Numbers(), batch_size=4).state_dict())
    with pytest.raises(UsageError, match="loaded a state"):
        apply_plan(loader, planned(1))


def test_the_plan_of_a_file(tmp_path):
    write_plan(tmp_path / "plan.json", planned(2))
    assert apply_plan(shuffled(), tmp_path / "plan.json").num_workers == 2
    with pytest.raises(InputError):
        apply_plan(shuffled(), tmp_path / "none.json")


def test_a_plan_that_does_not_change_the_loader_returns_it():
    loader = shuffled()
    assert apply_plan(loader, planned(0)) is loader
    assert apply_plan(loader, plan_of(codec="bf16", world=1)) is loader


class Own(DataLoader):
    pass


@pytest.mark.parametrize(
    ("target", "plan", "says"),
    [
        (shuffled(), plan_of(workers=2, world=2), "for 2 processes; this job has 1"),
        (DataLoader(Stream()), planned(2), "distributes its samples among its workers itself"),
        (Own(Numbers()), planned(2), "may take other arguments"),
        ([1, 2], planned(2), "cannot be applied to list"),
    ],
)
def test_what_cannot_be_made_anew_is_refused_with_the_reason(target, plan, says):
    with pytest.raises(UsageError, match=says):
        apply_plan(target, plan)


def test_options_of_ddp_are_none_of_a_loader():
    with pytest.raises(UsageError, match="bucket_cap_mb"):
        apply_plan(shuffled(), planned(2), bucket_cap_mb=4)
