"""What ends the steps of a job, by what it shows."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from esprof.recorder.injected.hang import loader_waits
from esprof.recorder.injected.log.circuit_breaker import CircuitBreaker
from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.steps import module_calls, pace
from esprof.recorder.injected.steps.pace import Pace
from esprof.run.raw.paced import PacedBy


@pytest.fixture
def job(monkeypatch):
    """A process whose modules and optimizers are watched, until the test is over: its loop and the steps that were seen."""
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    monkeypatch.setattr(torch.optim.Optimizer, "__init__", torch.optim.Optimizer.__init__)
    hooks = []
    monkeypatch.setattr(pace, "register_optimizer_step_post_hook", hooks.append)
    monkeypatch.setattr(module_calls, "sys", SimpleNamespace(modules={}))  # As if dynamo were not loaded.
    ends: list[PacedBy] = []
    watched = Pace(ends.append, CircuitBreaker("recording", Log()))
    watched.install()
    return SimpleNamespace(pace=watched, ends=ends, stepped=lambda optimizer: hooks[0](optimizer, (), {}))


def evaluate(job, batches: int, model: nn.Module | None) -> None:
    iterator = iter(DataLoader(torch.zeros(batches, 2)))
    for _ in range(batches):
        job.pace.batch_wanted(iterator)
        batch = next(iterator)
        if model is not None:
            model(batch)
    job.pace.batch_wanted(iterator)
    assert next(iterator, None) is None


def test_an_optimizers_steps_end_the_steps_and_nothing_else_does(job):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        evaluate(job, 1, model)
        job.stepped(optimizer)
    assert job.ends == [PacedBy.OPTIMIZER] * 3


def test_of_two_optimizers_the_first_counts_until_it_is_gone(job):
    first, second = (torch.optim.SGD([torch.zeros(1)], lr=0.1) for _ in range(2))
    job.stepped(first)
    job.stepped(second)
    assert len(job.ends) == 1
    del first
    job.stepped(second)
    assert len(job.ends) == 2


def test_batches_are_steps_where_modules_are_called_between_them(job):
    evaluate(job, 4, nn.Linear(2, 2))
    evaluate(job, 3, nn.Linear(2, 2))
    assert job.ends == [PacedBy.LOADER] * 7


def test_a_loop_over_data_alone_has_no_steps(job):
    evaluate(job, 100, None)
    assert job.ends == []


def test_modules_that_make_the_samples_are_no_work(job):
    iterator, transform = iter(DataLoader(torch.zeros(9, 2))), nn.LayerNorm(2)
    for _ in range(5):
        job.pace.batch_wanted(iterator)
        around = loader_waits.begin(iterator)
        transform(next(iterator))
        loader_waits.end(around)
    assert job.ends == []


def test_the_outermost_modules_calls_are_steps_without_a_loader(job):
    model, head = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2)
    for _ in range(4):
        head(model(torch.zeros(1, 2)))
    assert job.ends == [PacedBy.MODULE] * 3


def test_many_calls_in_a_batch_are_one_step(job):
    model = nn.Linear(2, 2)
    iterator = iter(DataLoader(torch.zeros(3, 2)))
    for _ in range(2):
        job.pace.batch_wanted(iterator)
        batch = next(iterator)
        for _ in range(10):
            model(batch)
    assert job.ends == [PacedBy.LOADER]


def test_a_loop_that_keeps_one_batch_has_its_calls_as_steps(job, monkeypatch):
    monkeypatch.setattr(pace, "_MAX_CALLS_IN_BATCH", 10)
    iterator = iter(DataLoader(torch.zeros(3, 2)))
    job.pace.batch_wanted(iterator)
    batch, model = next(iterator), nn.Linear(2, 2)
    for _ in range(15):
        model(batch)
    assert set(job.ends) == {PacedBy.MODULE}


def test_what_is_better_takes_over(job):
    model = nn.Linear(2, 2)
    for _ in range(3):
        model(torch.zeros(1, 2))
    evaluate(job, 2, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.stepped(optimizer)
    job.pace.job_stepped()
    job.stepped(optimizer)
    evaluate(job, 2, model)
    assert job.ends == [PacedBy.MODULE] * 2 + [PacedBy.LOADER] * 2 + [PacedBy.OPTIMIZER, PacedBy.JOB]


def test_a_process_that_could_train_counts_batches_only_once_it_clearly_evaluates(job):
    model = nn.Linear(2, 2)
    torch.optim.SGD(model.parameters(), lr=0.1)
    evaluate(job, 50, model)
    assert job.ends == []
    with torch.no_grad():
        evaluate(job, 5, model)
        assert job.ends == []
        evaluate(job, 50, model)
    assert set(job.ends) == {PacedBy.LOADER}


def test_modules_are_left_alone_once_they_are_not_needed(job):
    watching = nn.Module.__call__
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    assert nn.Module.__call__ is not watching


def test_nothing_is_replaced_once_dynamo_is_loaded(job, monkeypatch):
    monkeypatch.setattr(module_calls, "sys", SimpleNamespace(modules={"torch._dynamo": None}))
    before = nn.Module.__call__
    module_calls.OutermostCalls(print).install()
    assert nn.Module.__call__ is before
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    assert nn.Module.__call__ is before


def test_of_several_threads_the_first_counts_until_it_ends_or_has_long_not_come(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: now[0]))
    one = pace.OneThread()
    assert elsewhere(one.is_here)  # That thread has ended since.
    assert one.is_here()
    now[0] = 29
    assert not elsewhere(one.is_here)
    assert one.is_here()
    now[0] = 58
    assert not elsewhere(one.is_here)
    now[0] = 60
    assert elsewhere(one.is_here)


def elsewhere(ask):
    """What a thread of its own is answered."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()
