"""Detection of change points of the step time."""

import random

import msgspec
import pytest

from esprof.reports.live.change_point import ChangePointDetector
from esprof.run.logs import LiveStep


def step(number, took, busy=(50.0, 50.0), ests=(4, 4), **more):
    return LiveStep(step=number, took_us=took, busy_us=busy, ests=ests, **more)


def noticed(steps):
    """The steps at which a change point is detected, and the first steps after it."""
    detector = ChangePointDetector()
    return [(one.step, detector.since) for one in steps if detector.note(one)]


@pytest.mark.parametrize("factor", [0.7, 1.3, 5.0])
def test_a_change_point_is_detected_once_and_soon(factor):
    draw = random.Random(1)
    took = [100 + draw.gauss(0, 3) for _ in range(80)] + [factor * (100 + draw.gauss(0, 3)) for _ in range(80)]
    found = noticed([step(number, one) for number, one in enumerate(took)])
    assert len(found) == 1
    at, since = found[0]
    assert 80 <= since + 5 <= at < 95


def test_noise_and_single_slow_steps_are_no_change_point():
    draw = random.Random(2)
    took = [100 * (1 + abs(draw.gauss(0, 0.05))) * (3 if number % 40 == 39 else 1) for number in range(3_000)]
    assert noticed([step(number, one) for number, one in enumerate(took)]) == []


def test_a_change_of_a_rank_hidden_by_a_slower_one_is_detected():
    steps = [step(number, 100.0, busy=(90.0, 40.0 if number < 50 else 80.0)) for number in range(100)]
    assert len(noticed(steps)) == 1


def test_a_change_of_a_rank_without_ests_is_detected_by_its_update():
    draw = random.Random(3)
    steps = [
        step(number, 100.0, (0.1, 80.0), (0, 8), updated_us=((9.0 if number < 50 else 3.0) + draw.random(), 3.0))
        for number in range(100)
    ]
    assert len(noticed(steps)) == 1
    # What updates take on a rank that has ESTs says less than these.
    assert noticed([msgspec.structs.replace(one, ests=(1, 7)) for one in steps]) == []


def test_time_of_a_rank_is_compared_per_est():
    """Another plan gives a rank twice the work: that is no change of the rank."""
    steps = [step(number, 100.0, (40.0, 40.0)) for number in range(50)]
    steps += [step(50 + number, 150.0, (80.0, 0.0), (8, 0), version=1) for number in range(50)]
    assert noticed(steps) == []


def test_a_job_restarted_from_an_earlier_step_resets_the_detector():
    detector = ChangePointDetector()
    for one in [step(number, 100.0) for number in range(50)] + [step(20 + number, 200.0) for number in range(30)]:
        assert not detector.note(one)
    assert detector.since == 21


def test_repeated_steps_are_ignored():
    steps = [step(number, 100.0) for number in range(50)] + [
        step(50 + number, 200.0, twice=True) for number in range(50)
    ]
    assert noticed(steps) == []
