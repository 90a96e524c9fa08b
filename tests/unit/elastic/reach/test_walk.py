"""What a script's functions and objects reach is found by name, without calling their code."""

import functools
import random
import threading

import torch
from torch import nn

from esprof.elastic.reach.walk import walk

LIMIT, UNUSED = 3, 4


class Weights:
    """Its property and `__getattr__` must not be called."""

    rate = 0.5
    __slots__ = ("__dict__", "level")

    def __init__(self):
        self.level, self.generator = 1, random.Random(0)

    @property
    def trap(self):
        raise AssertionError("called")

    def __getattr__(self, name):
        raise AssertionError(name)

    def __call__(self, model, batch):
        return self.level * LIMIT


def found(*roots, model=None):
    (reached,) = walk([{f"root{number}": root for number, root in enumerate(roots)}], model or nn.Module())
    return reached


def names(*roots):
    return {place.name for place in found(*roots).places}


def test_closures_globals_and_attributes_are_found():
    count, table = 0, {"a": [torch.zeros(1)]}

    def loss(model, batch):
        nonlocal count
        count += len(table)
        return count + LIMIT

    loss.calls = 0
    module = __name__
    assert names(loss) == {"root0.count", "root0.table", "root0.calls", f"{module}.LIMIT"}
    assert names(functools.partial(loss, scale=2.0)) >= {"root0.scale", "root0.count"}


def test_objects_are_found_without_a_call():
    weights = Weights()
    assert names(weights) == {"root0.level", "root0.generator", "Weights.rate", f"{__name__}.LIMIT"}
    assert names(weights.__call__) == names(weights)


def test_modules_are_found_but_not_the_model():
    model, teacher = nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2))
    criterion = nn.CrossEntropyLoss(weight=torch.ones(2))

    def loss(given, batch):
        return criterion(model(batch), teacher(batch))

    reached = found(loss, model=model)
    assert reached.modules == {"root0.criterion": criterion, "root0.teacher": teacher}


class Connection:
    """Counts what it has sent; a thread of its own may use it."""

    def __init__(self):
        self.sent, self.lock = 0, threading.Lock()


class Client:
    def __init__(self):
        self.calls, self.connection = 0, Connection()


def test_objects_that_other_threads_may_use_are_left_alone():
    assert names(Connection()) == names(Client()) == set()


def test_cycles_and_long_lists_end():
    ring = [object() for _ in range(1000)]
    ring.append(ring)
    assert len(found(lambda model, batch: ring).places) <= 65


def test_one_place_is_found_once():
    count = 0

    def first():
        return count

    def second():
        return count

    assert names([first, second]) == {"root0[0].count"}
