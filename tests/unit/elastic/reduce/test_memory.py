"""How many gradients a process holds, and partial sums that wait in host memory."""

import pytest
import torch
from torch import nn

from esprof.core.assignment import Assignment
from esprof.elastic.reduce.layout import Layout
from esprof.elastic.reduce.stash import Stash
from esprof.elastic.reduce.tree_reducer import TreeReducer
from esprof.elastic.runtime.transport import Alone


class LateCopier:
    """Copies as late as it may: what is changed too early shows."""

    def __init__(self):
        self.waiting = []

    def copy(self, to, source):
        self.waiting.append((to, source))
        return len(self.waiting)

    def wait(self, copied):
        for at in range(copied):
            if self.waiting[at] is not None:
                to, source = self.waiting[at]
                to.copy_(source)
                self.waiting[at] = None


class Counted(Layout):
    """A layout that counts the flat tensors it was asked for."""

    made = 0

    def new(self):
        self.made += 1
        return super().new()


def counted():
    return Counted(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), world=1, bucket_bytes=64)


def gradient(layout, est, step):
    generator = torch.Generator().manual_seed(100 * step + est)
    return torch.randn(layout.numel, generator=generator) * 10.0 ** (est % 5)


def means(reducer, n_est, steps=2):
    """The mean of each step, of ESTs that all run here."""
    found = []
    for step in range(steps):
        reducer.begin(Assignment.even(n_est, 1), None, {})
        for est in range(n_est):
            flat = reducer.buffer()
            if est == n_est - 1:
                reducer.send_last(est, flat)
            flat.copy_(gradient(reducer.layout, est, step))
            if est == n_est - 1:
                for slot in reducer.layout.slots:
                    reducer.ready(slot)
            else:
                reducer.fold(est, flat)
        found.append(reducer.finish().clone())
    return found


@pytest.mark.parametrize(("n_est", "most"), [(1, 1), (2, 2), (4, 3), (8, 4), (16, 5)])
def test_a_process_holds_one_gradient_and_a_sum_for_each_level_of_the_tree(n_est, most):
    layout = counted()
    means(TreeReducer(layout, Alone(), n_est), n_est)
    assert layout.made <= most


@pytest.mark.parametrize("n_est", [1, 2, 3, 4, 5, 8, 16])
def test_with_a_stash_the_device_holds_three_gradients_whatever_the_number_of_ests(n_est):
    layout = counted()
    found = means(TreeReducer(layout, Alone(), n_est, Stash(LateCopier())), n_est)
    plain = means(TreeReducer(counted(), Alone(), n_est), n_est)
    assert layout.made <= 3
    for one, other in zip(found, plain, strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_what_is_put_comes_back_though_its_tensor_is_used_again():
    stash, flat = Stash(LateCopier()), torch.arange(6.0)
    held = stash.put(flat)
    emptied = stash.emptied()
    assert emptied is flat
    emptied.fill_(0)
    assert held.fetch(slice(2, 4), torch.empty(2)).tolist() == [2.0, 3.0]
    assert stash.emptied() is None


def test_where_memory_is_the_hosts_there_is_no_stash():
    assert Stash.on(torch.device("cpu")) is None
