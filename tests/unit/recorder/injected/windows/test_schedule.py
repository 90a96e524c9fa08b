"""Which phase a step is in: by plan, by order, and where the two meet."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.recorder.injected.windows.schedule import WindowSchedule
from esprof.run.raw.settings import Settings


def phases(schedule: WindowSchedule, steps: int, first: int = 0) -> list[tuple[str, int]]:
    """The run lengths of the phases of so many steps."""
    return [(phase, len(list(run))) for phase, run in groupby(map(schedule.phase, range(first, first + steps)))]


WINDOW = [("warmup", 2), ("timed", 4), ("export", 1), ("stack", 2), ("export", 1)]
PLAN = {"skip": 3, "warmup": 2, "steps": 4, "stack_steps": 2}


def test_phases_follow_one_another():
    assert phases(WindowSchedule(Settings(**PLAN)), 30) == [("plain", 3), *WINDOW, ("plain", 17)]


def test_without_stacks_there_is_one_export():
    schedule = WindowSchedule(Settings(skip=1, warmup=0, steps=2, stack_steps=0))
    assert phases(schedule, 6) == [("plain", 1), ("timed", 2), ("export", 1), ("plain", 2)]


def test_windows_come_again():
    schedule = WindowSchedule(Settings(**PLAN, every=15))
    assert phases(schedule, 33) == [("plain", 3), *WINDOW, ("plain", 5), *WINDOW, ("plain", 5)]
    assert schedule.base(3 + 15 * 1000 + 9) == 3 + 15 * 1000
    assert schedule.base(3 + 15 * 1000 + 10) is None


def test_back_to_back_windows_leave_no_plain_step():
    assert phases(WindowSchedule(Settings(**PLAN, every=10)), 23) == [("plain", 3), *WINDOW, *WINDOW]


@pytest.mark.parametrize("settings", [Settings(**PLAN, windows=False), Settings(**PLAN, every_s=60)])
def test_a_window_on_demand_is_like_a_planned_one(settings):
    schedule = WindowSchedule(settings)
    assert phases(schedule, 50) == [("plain", 50)]
    assert schedule.order(20)
    assert phases(schedule, 50) == [("plain", 20), *WINDOW, ("plain", 20)]
    assert schedule.base(25) == 20


def test_an_order_that_meets_another_window_is_refused_and_one_beside_it_is_not():
    schedule = WindowSchedule(Settings(**{**PLAN, "skip": 30}))
    for at in (21, 25, 30, 39):
        assert not schedule.order(at)
    assert schedule.order(20)
    assert not schedule.order(11)
    assert schedule.order(40)
    assert schedule.order(50)
    assert phases(schedule, 60) == [("plain", 20), *WINDOW * 4]


def test_old_orders_are_forgotten_but_never_those_to_come():
    schedule = WindowSchedule(Settings(**PLAN, windows=False))
    assert all(schedule.order(100 * k) for k in range(1, 50))
    assert schedule.base(100) is None
    assert schedule.base(4900) == 4900


@given(
    orders=st.lists(st.integers(1, 200), max_size=8),
    every=st.sampled_from([0, 10, 17, 40]),
)
def test_windows_never_overlap_and_always_run_to_their_end(orders, every):
    schedule = WindowSchedule(Settings(**PLAN, every=every))
    for at in orders:
        schedule.order(at)
    bases = [schedule.base(step) for step in range(250)]
    for base, run in groupby(bases):
        length = len(list(run))
        if base is not None and base + 10 <= 250:
            assert length == 10
