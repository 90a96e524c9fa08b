"""The interval of checkpoints that adapts to their cost."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.elastic import Checkpoint
from esprof.elastic.checkpoint.adapting import AdaptiveInterval
from tests.cases.elastic_job import bits, small_trainer
from tests.cases.properties import thorough

MS = 1_000_000


def after(adaptive, *, step=100, stops=10, writes=0, slows=0):
    """The costs of one interval in ms: a checkpoint, and the steps until the next."""
    now = 0
    adaptive.begun(now, now + stops * MS)
    for number in range(adaptive.every + 1):
        now += (step + stops * (number == 0) + slows * (now < writes * MS)) * MS
        adaptive.step_begins(now)
    adaptive.written(writes * MS)
    return adaptive.costs()


def test_what_a_checkpoint_costs_a_rank():
    assert after(AdaptiveInterval(20, 0.05), stops=10, writes=350, slows=7) == (100 * MS, 10 * MS, 350 * MS, 7 * MS)


def test_nothing_is_known_before_the_first_checkpoint_and_of_one_that_failed():
    adaptive = AdaptiveInterval(20, 0.05)
    assert adaptive.costs() is None
    adaptive.begun(0, MS)
    adaptive.step_begins(2 * MS)
    assert adaptive.costs() is None
    assert adaptive.adapt([None, (1.0, 1.0, 1.0, 0.0)]) == 20


@pytest.mark.parametrize(("every", "wanted"), [(1, 40), (7, 40), (1000, 40)])
def test_it_becomes_longer_and_shorter(every, wanted):
    # A stop of 200 ms is 5 % of 40 steps of 100 ms.
    adaptive = AdaptiveInterval(every, 0.05)
    seen = [every]
    for _ in range(12):
        seen.append(adaptive.adapt([(100 * MS, 200 * MS, 0.0, 0.0)]))
    assert seen[-1] == wanted
    assert all(before // 2 <= now <= 2 * before for before, now in pairwise(seen))


def test_the_slowest_rank_counts():
    adaptive = AdaptiveInterval(39, 0.05)
    assert adaptive.adapt([(100 * MS, 20 * MS, 0.0, 0.0), (100 * MS, 200 * MS, 0.0, 0.0)]) == 40


def test_small_gains_are_left():
    assert AdaptiveInterval(48, 0.05).adapt([(100 * MS, 200 * MS, 0.0, 0.0)]) == 48


@thorough()
@given(st.lists(st.tuples(*[st.floats(1, 1e9)] * 4), min_size=1, max_size=20), st.integers(1, 1000))
def test_it_is_the_same_on_all_ranks(costs, every):
    one, other = AdaptiveInterval(every, 0.05), AdaptiveInterval(every, 0.05)
    for at in range(len(costs)):
        of_ranks = [costs[at], costs[-1 - at]]
        assert one.adapt(of_ranks) == other.adapt(of_ranks) >= 1


def test_a_job_whose_interval_adapts_has_the_same_bits_and_resumes(tmp_path):
    expected = bits(small_trainer(), 12)
    trainer = small_trainer(checkpoint=Checkpoint(tmp_path, every=1, max_overhead=1e-6))
    assert bits(trainer, 12) == expected
    assert trainer.checkpoints.every > 1
    trainer.close()
    assert small_trainer(checkpoint=Checkpoint(tmp_path)).next_step > 0
