"""What the saves of a job cost."""

import pytest

from esprof.analyzers.steps.job_steps import JobSteps
from esprof.analyzers.steps.saves import saves_of
from esprof.core.types import NS_PER_MS
from tests.cases.saving_runs import job_that_saves


def measured(**job):
    return saves_of(JobSteps(job_that_saves(**job)))


def test_a_job_without_saves_has_none():
    assert measured(name="forward") is None


@pytest.mark.parametrize("name", ["torch.save", "torch.distributed.checkpoint.save", "write checkpoint", "save_model"])
def test_saves_are_known_by_their_function_or_by_the_name_of_the_stage(name):
    saves = measured(name=name)
    assert saves.names == (name,)
    assert (len(saves.begin), saves.every) == (8, 10)


def test_names_that_only_contain_the_word_are_no_saves():
    assert measured(name="unsaved batches") is None


def test_a_save_stops_its_step():
    saves = measured(stops_ms=50, world=2)
    assert saves.stops_ns.mean() == pytest.approx(50 * NS_PER_MS, rel=0.02)
    assert saves.clean_ns.mean() == pytest.approx(100 * NS_PER_MS, rel=0.01)
    assert saves.calls_ns.mean() == pytest.approx(50 * NS_PER_MS)
    assert saves.slows_ns == 0


def test_steps_beside_a_save_are_slower():
    saves = measured(stops_ms=5, writes_ms=300, slows_ms=20)
    assert saves.writes_ns.mean() == pytest.approx(300 * NS_PER_MS)
    assert saves.slows_ns == pytest.approx(20 * NS_PER_MS, rel=0.3)
    assert len(saves.beside_ns) > 0
    assert saves.waits_ns.max() == 0


def test_a_save_that_waits_for_the_one_before_it():
    # A save is written for 250 ms, and the next one begins 200 ms later: it waits for 50 of its 80 ms.
    saves = measured(every=2, usual_ms=60, stops_ms=80, writes_ms=250)
    assert saves.waits_ns[1:].mean() == pytest.approx(50 * NS_PER_MS, rel=0.1)


def test_what_steps_scatter_does_not_slow_them():
    assert measured(stops_ms=5, writes_ms=300).slows_ns == 0
