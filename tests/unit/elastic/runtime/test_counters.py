"""Numbers that modules count in forward: each EST has its own, wherever it runs and however often a step does."""

import pytest
import torch
from torch import nn

from esprof.elastic import Assignment
from esprof.elastic.runtime.counters import EstCounters
from tests.cases.elastic import on_threads
from tests.cases.elastic_job import Net, bits, bits_of_ranks, small_trainer


class WarmUp(Net):
    """Scales by the number of its calls, which is an attribute of the class until the first; keeps the last mean."""

    calls = 0

    def __init__(self):
        super().__init__(5)
        self.mean = 0.0

    def forward(self, images):
        self.calls += 1
        out = super().forward(images) * min(1.0, self.calls / 5) + self.mean
        self.mean = 0.1 * float(out.detach().mean())
        return out


class Script:
    """Sets the counter back after step 3, before it saves."""

    def __init__(self, **options):
        self.trainer = small_trainer(model=WarmUp, **options)

    def train(self, until):
        found = []
        while self.trainer.next_step < until:
            found += bits(self.trainer, 1)
            if self.trainer.next_step == 4:
                self.trainer.state.model.calls = 2
        if self.trainer.checkpoints is not None:
            self.trainer.save()
        return found


def test_the_counts_of_an_est_do_not_depend_on_where_it_runs():
    static = bits(small_trainer(model=WarmUp), 3)
    assert bits_of_ranks([[3], [0, 1, 2]], model=WarmUp) == [static] * 2


def test_a_step_that_runs_twice_counts_once():
    assert bits(small_trainer(model=WarmUp, prove_every=1), 4) == bits(small_trainer(model=WarmUp, prove_every=0), 4)
    trainer = small_trainer(model=WarmUp, prove_every=1)
    bits(trainer, 3)
    assert trainer.state.model.calls == 3


def test_counts_move_with_their_est():
    def body(transport):
        trainer = small_trainer(model=WarmUp, transport=transport, assignment=Assignment.of([[0, 1], [2, 3]]))
        first = bits(trainer, 3)
        trainer.assign(Assignment.of([[], [3, 1, 0, 2]]))
        return first + bits(trainer, 3)

    assert on_threads(2, body) == [bits(small_trainer(model=WarmUp), 6)] * 2


@pytest.mark.parametrize("at", [2, 4])
def test_counts_are_in_checkpoints(tmp_path, at):
    seen = Script(folder=tmp_path).train(at)
    assert seen + Script(folder=tmp_path).train(6) == Script().train(6)


def test_flags_and_tensors_are_left_alone():
    model = nn.Module()
    model.ready, model.table = False, torch.zeros(1)
    counters = EstCounters(model)
    counters.begin([])
    for _ in range(2):
        counters.enter({})
        model.ready, model.table = True, torch.ones(1)
        assert counters.leave() == {}
    assert model.ready
