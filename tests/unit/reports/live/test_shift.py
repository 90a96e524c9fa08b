"""Lasting changes of a job's steps, told from slow steps and from other plans."""

import random

from esprof.reports.live.shift import Shift
from tests.cases.live import live_step


def shifts(times, **more):
    """Numbers of the steps with which steps have shifted."""
    shift = Shift()
    return [step for step, took in enumerate(times) if shift.note(live_step(step, took, **more))]


def noisy(us, count, seed=0):
    draw = random.Random(seed)
    return [us * draw.lognormvariate(0, 0.05) for _ in range(count)]


def test_a_job_that_slows_down_for_good_is_noticed_once_within_its_window():
    found = shifts(noisy(1000, 200) + noisy(1300, 300, seed=1))
    assert len(found) == 1
    assert 200 < found[0] <= 250


def test_and_so_is_one_that_gets_faster():
    assert len(shifts(noisy(1000, 100) + noisy(700, 200))) == 1


def test_noise_and_single_slow_steps_are_no_shift():
    assert shifts(noisy(1000, 2000)) == []
    assert shifts([5000 if step % 7 == 0 else 1000 for step in range(500)]) == []
    assert shifts([1000] * 100 + [3000] * 20 + [1000] * 300) == []


def test_another_plan_and_steps_made_twice_are_none():
    shift = Shift()
    told = [shift.note(live_step(step, 1000.0)) for step in range(200)]
    told += [shift.note(live_step(200 + step, 2000.0, version=1)) for step in range(200)]
    told += [shift.note(live_step(400 + step, 9000.0, version=1, twice=True)) for step in range(200)]
    assert not any(told)
