"""Values that EST steps change: each EST has its own, wherever it runs and however often a step does."""

import pytest
import torch
from torch import nn

from esprof.core.errors import UsageError
from esprof.elastic import Assignment
from esprof.elastic.reach.places import EntryPlace
from esprof.elastic.reach.turns import EstValues
from esprof.elastic.reach.walk import Reached
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


def test_flags_and_tensors_are_those_of_the_est():
    model = nn.Module()
    model.ready, model.table = False, torch.zeros(1)
    values, owns = EstValues(model, Reached()), [{}, {}]
    for _ in range(2):
        values.begin(owns)
        for est, own in enumerate(owns):
            values.enter(own)
            assert (model.ready, float(model.table)) == (bool(own), len(own) and est + 1)
            model.ready, model.table = True, torch.full((1,), est + 1.0)
            own |= values.leave(est)
        values.finish(owns[0])
    assert model.ready
    assert float(model.table) == 1


def test_what_is_changed_in_place_is_restored_for_the_next_est():
    model = nn.Module()
    model.queue, model.seen = torch.arange(3.0), [1, 2]
    queue, seen = model.queue, model.seen
    values = EstValues(model, Reached())
    values.begin([])
    values.enter({})
    model.queue.mul_(2)
    model.seen.append(3)
    own = values.leave(0)
    values.enter({})
    assert (model.queue.tolist(), model.seen) == ([0, 1, 2], [1, 2])
    assert values.leave(1) == {}
    values.finish(own)
    assert model.queue is queue
    assert model.seen is seen
    assert (queue.tolist(), seen) == ([0, 2, 4], [1, 2, 3])


def test_what_the_script_sets_between_steps_is_that_of_all_ests():
    model = nn.Module()
    model.weight, owns = 1.0, [{}, {}]
    values = EstValues(model, Reached())
    values.begin(owns)
    for own in owns:
        values.enter(own)
        model.weight += 1
        own |= values.leave(0)
    values.finish(owns[0])
    model.weight = 10.0
    values.begin(owns)
    for own in owns:
        values.enter(own)
        assert model.weight == 10


def test_another_object_outside_of_the_model_is_refused_by_name():
    holder = {"engine": object()}
    values = EstValues(nn.Module(), Reached([EntryPlace("loss.engine", holder, "engine")]))
    values.begin([])
    values.enter({})
    holder["engine"] = object()
    with pytest.raises(UsageError, match=r"EST 3 changed loss\.engine, a object, which cannot move with it"):
        values.leave(3)


def test_a_list_that_grows_too_long_is_left_to_the_process_with_a_warning(monkeypatch):
    monkeypatch.setattr("esprof.elastic.reach.values.MAX_ITEMS_OF_EST", 3)
    model, owns = nn.Module(), [{}, {}]
    model.seen = []
    values = EstValues(model, Reached())

    def train(steps):
        for step in steps:
            values.begin(owns)
            for est, own in enumerate(owns):
                values.enter(own)
                model.seen.append((step, est))
                own |= values.leave(est)
            values.finish(owns[0])

    train(range(3))
    with pytest.warns(UserWarning, match="model.seen has become too long to move with ESTs"):
        train(range(3, 6))
    assert model.seen[:4] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert model.seen[4:] == [(3, 1), (4, 0), (4, 1), (5, 0), (5, 1)]
