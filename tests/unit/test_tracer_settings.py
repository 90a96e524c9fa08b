"""Which steps are recorded."""

from itertools import groupby

import pytest

from esprof.tracer.injected.settings import Settings


def phases(settings: Settings, steps: int) -> list[tuple[str, int]]:
    """The run lengths of the phases of the first `steps` steps."""
    return [(phase, len(list(run))) for phase, run in groupby(map(settings.phase, range(steps)))]


def test_phases_follow_one_another():
    assert phases(Settings(skip=3, warmup=2, steps=4, stack_steps=2), 15) == [
        ("plain", 3), ("warmup", 2), ("timed", 4), ("export", 1), ("stack", 2), ("export", 1), ("plain", 2),
    ]  # fmt: skip


def test_without_stacks_there_is_one_export():
    settings = Settings(skip=1, warmup=0, steps=2, stack_steps=0)
    assert phases(settings, 6) == [("plain", 1), ("timed", 2), ("export", 1), ("plain", 2)]
    assert [settings.is_over(step) for step in (2, 3, 4)] == [False, True, True]


def test_is_over_waits_for_the_stacks():
    settings = Settings(skip=1, warmup=0, steps=2, stack_steps=2)
    assert [settings.phase(step) for step in (5, 6)] == ["stack", "export"]
    assert [settings.is_over(step) for step in (5, 6)] == [False, True]


@pytest.mark.parametrize("wrong", [{"skip": 0}, {"warmup": -1}, {"steps": 0}, {"stack_steps": -1}])
def test_impossible_plans_are_refused(wrong):
    with pytest.raises(ValueError, match="at least"):
        Settings(**wrong)


def test_every_process_reads_what_the_launcher_wrote(tmp_path):
    settings = Settings(skip=9, warmup=8, steps=7, stack_steps=6)
    settings.write(str(tmp_path))
    assert Settings.read(str(tmp_path)) == settings
