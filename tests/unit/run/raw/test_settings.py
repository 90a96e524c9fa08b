"""What is recorded: the settings that the launcher hands to the job's processes."""

import pytest

from esprof.run.raw.settings import Settings


@pytest.mark.parametrize("wrong", [{"skip": 0}, {"warmup": -1}, {"steps": 0}, {"stack_steps": -1}])
def test_impossible_plans_are_refused(wrong):
    with pytest.raises(ValueError, match="at least"):
        Settings(**wrong)


def test_windows_may_touch_but_not_overlap():
    assert Settings(warmup=2, steps=4, stack_steps=2).span == 10
    assert Settings(warmup=2, steps=4, stack_steps=0).span == 7
    Settings(warmup=2, steps=4, stack_steps=2, every=10)
    with pytest.raises(ValueError, match="every must be at least"):
        Settings(warmup=2, steps=4, stack_steps=2, every=9)


def test_wall_time_and_demand_leave_nothing_to_be_planned_by_steps():
    assert Settings().by_steps
    assert not Settings(windows=False).by_steps
    assert not Settings(skip_s=1).by_steps
    assert not Settings(every_s=1).by_steps


def test_every_process_reads_what_the_launcher_wrote(tmp_path):
    settings = Settings(skip=9, warmup=8, steps=7, stack_steps=6, every=50, shapes=True, probed=("links", "storage"))
    settings.write(str(tmp_path))
    assert Settings.read(str(tmp_path)) == settings
    with pytest.raises(FileExistsError):  # nor follows a link that somebody put there
        settings.write(str(tmp_path))


def test_steps_with_stacks_record_shapes_or_timed_ones_if_there_are_none():
    assert Settings().shapes_in is None
    assert Settings(shapes=True).shapes_in == "stack"
    assert Settings(shapes=True, stack_steps=0).shapes_in == "timed"
