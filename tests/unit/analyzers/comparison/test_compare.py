"""Pairs of small jobs with a planted change: the change is named first, the parts sum to the whole, the rest is noise."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from esprof.analyzers.comparison.compare import compare
from esprof.core.errors import MismatchError
from esprof.core.types import NS_PER_MS
from esprof.run.run import Run, RunWarning, WarningCode
from tests.cases.compared import Made, made
from tests.cases.waiting import waiting_job, waiting_rank

SAME = Made()


@pytest.fixture(scope="module")
def before():
    return made(SAME)


def first(found):
    """The largest part, and its largest place."""
    return found.parts[0].name, found.parts[0].places[0].name if found.parts[0].places else None


@pytest.mark.parametrize(
    ("change", "part", "place", "ms"),
    [
        ({"buckets": 9}, "communication", "all_reduce", 10),
        ({"forward": 26}, "compute", "aten::linear", 6),
        ({"extra": 7}, "compute", "aten::sort", 7),
        ({"code": 7}, "host_gap", "train.py: augment", 6),
        ({"wait": 8}, "data", None, 8),
        ({"slow": 9}, "compute", "aten::linear", 9),
        ({"save": 60}, "slow_steps", None, 60 / 8),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_planted_change_is_the_largest_part(before, change, part, place, ms):
    found = compare(before, made(SAME.but(**change)))
    name, where = first(found)
    assert name == part
    assert place in (None, where)
    assert not found.parts[0].noise
    assert found.parts[0].change_us == pytest.approx(ms * 1000, rel=0.25)
    assert found.step.change_us == pytest.approx(ms * 1000, rel=0.25)
    assert found.verdict.startswith("A step takes ")


def test_more_smaller_buckets_are_counted(before):
    found = compare(before, made(SAME.but(buckets=9)))
    (all_reduce,) = found.collectives
    assert (all_reduce.calls_before, all_reduce.calls_after) == (4, 9)
    assert "exposed communication, all_reduce (4 → 9 a step)" in found.verdict


def test_an_operation_of_one_run_alone_is_listed_with_its_calls(before):
    found = compare(before, made(SAME.but(extra=7)))
    (sort,) = [one for one in found.operators if one.name == "aten::sort"]
    assert (sort.calls_before, sort.calls_after) == (0, 1)
    assert sort.change_us == pytest.approx(7_000, rel=0.05)


def test_the_line_of_code_is_named_by_its_function(before):
    assert "train.py(12): augment" in compare(before, made(SAME.but(code=7))).verdict


def test_a_rank_that_became_slow_alone_is_named(before):
    found = compare(before, made(SAME.but(slow=9)))
    assert [one.rank for one in found.ranks if one.alone] == [1]
    assert "Rank 1 alone has more work of its own" in found.verdict


def test_no_rank_is_named_where_others_may_have_changed_about_as_much(before):
    found = compare(before, made(SAME.but(forward=24, slow=9, noise=0.1)))
    of_rank = {one.rank: one for one in found.ranks}
    assert not of_rank[1].noise
    assert of_rank[0].change_us < of_rank[1].change_us / 2 < of_rank[0].high_us
    assert not any(one.alone for one in found.ranks)


def test_longer_waits_for_input_are_found_in_all_steps(before):
    found = compare(before, made(SAME.but(wait=8)))
    (wait,) = [one for one in found.waits if one.name == "loader_wait"]
    assert wait.change_us == pytest.approx(8_000)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_differs_between_runs_of_the_same_job(before, seed):
    found = compare(before, made(SAME.but(seed=seed + 10)))
    assert found.step.noise
    assert all(part.noise for part in found.parts)
    assert found.verdict.startswith("Nothing differs beyond noise")
    assert "would have been found" in found.verdict


@pytest.mark.parametrize("change", [{}, {"buckets": 9}, {"save": 60}, {"plain": 0}])
def test_parts_sum_to_the_change_of_the_step(change):
    job = replace(SAME, **change)
    found = compare(made(job), made(job.but(forward=26)))
    assert sum(part.change_us for part in found.parts) == pytest.approx(found.step.change_us, abs=1e-6)
    for part in found.parts:
        if part.places:
            assert sum(place.change_us for place in part.places) == pytest.approx(part.change_us, abs=0.01)


def test_the_change_back_has_the_opposite_sign(before):
    after = made(SAME.but(buckets=9))
    there, back = compare(before, after), compare(after, before)
    assert back.step.change_us == -there.step.change_us
    assert back.verdict.startswith("A step takes ")
    assert " less " in back.verdict


def test_fewer_recorded_steps_are_compared_by_step(before):
    found = compare(before, made(SAME.but(timed=4)))
    assert len(found.after.recorded_steps) < len(found.before.recorded_steps)
    assert found.step.noise
    assert abs(found.step.pct) < 2


def test_profiled_steps_are_compared_where_all_are(before):
    traces = made(SAME.but(plain=0)), made(SAME.but(plain=0, forward=26))
    found = compare(*traces)
    assert found.phase == "timed"
    assert first(found) == ("compute", "aten::linear")


def test_a_single_step_has_no_interval():
    found = compare(made(SAME.but(plain=0, timed=1)), made(SAME.but(plain=0, timed=1, forward=26)))
    assert found.step.low_us is None
    assert all(part.noise for part in found.parts)
    assert "a single step" in found.verdict


def test_operations_that_all_take_longer_alike_are_no_change_of_one_of_them():
    before, after = made(SAME.but(extra=5)), made(SAME.but(extra=5, pace=1.08, seed=3))
    found = compare(before, after)
    assert found.parts[0].alike_pct == pytest.approx(8, abs=1)
    assert "spread over all operations alike as on a slower machine" in found.verdict
    both = compare(before, made(SAME.but(extra=5, pace=1.08, code=3, seed=3)))
    assert both.verdict.index("augment") < both.verdict.index("alike")


def test_steps_that_wait_longer_for_a_cpu_are_to_be_recorded_again():
    runs = made(SAME.but(ready=0.1)), made(SAME.but(ready=4.1, code=5))
    found = compare(*runs)
    assert "compare again on an idle machine" in found.verdict
    assert all(part.noise for part in found.parts)


def test_a_change_is_named_even_if_a_part_of_it_are_waits_for_a_cpu():
    runs = made(SAME.but(ready=0.1)), made(SAME.but(ready=6, code=11))
    verdict = compare(*runs).verdict
    assert "code between operations, train.py(12): augment" in verdict
    assert "It also waits 5.90 ms more for a CPU" in verdict


def test_a_worker_that_is_always_busy_bears_only_what_its_rank_waits_for():
    slow, slower = (waiting_job(waiting_rank([ms] * 12, step_ms=20)) for ms in (21, 30))
    found = {part.name: part for part in compare(slow, slower).parts}
    assert found["data"].change_us == pytest.approx(9_000, rel=0.05)
    assert abs(found["compute"].change_us) < 500


# What is refused


def with_meta(run: Run, **changed) -> Run:
    meta = msgspec.structs.replace(run.meta, **changed)
    return Run(meta, run.recorded)


def test_other_versions_are_refused_unless_asked_for(before):
    other = with_meta(before, versions={"torch": "2.12.0"})
    with pytest.raises(MismatchError, match=r"torch version: unknown before, 2\.12\.0 after") as refused:
        compare(before, other)
    assert "--anyway" in str(refused.value)
    assert compare(before, other, anyway=True).differs == ("torch version: unknown before, 2.12.0 after",)


def test_another_world_size_is_refused(before):
    with pytest.raises(MismatchError, match="world size: 2 before, 4 after"):
        compare(before, with_meta(before, world_size=4))


@pytest.mark.parametrize("code", [WarningCode.STEPS_BY_BLOCK, WarningCode.NO_STEPS])
def test_other_units_are_refused_even_if_asked_for(before, code):
    other = with_meta(before, warnings=(RunWarning(code, "no step is marked"),))
    with pytest.raises(MismatchError, match=r"a step of the run before cannot be compared with a (block|window)"):
        compare(before, other, anyway=True)


def test_windows_without_steps_or_blocks_are_refused(before):
    window = with_meta(before, warnings=(RunWarning(WarningCode.NO_STEPS, "no step is marked"),))
    with pytest.raises(MismatchError, match="length of a window"):
        compare(window, window)


def test_blocks_are_compared_with_blocks_and_named_so(before):
    blocks = with_meta(before, warnings=(RunWarning(WarningCode.STEPS_BY_BLOCK, "no step is marked"),))
    found = compare(blocks, blocks)
    assert found.unit == "block"
    assert "a block takes" in found.verdict or "Nothing differs" in found.verdict


def test_a_step_takes_what_its_measured_steps_take(before):
    found = compare(before, before)
    took = before.steps(0).ints("dur_ns")[1:60]
    assert found.step.before_us == pytest.approx(float(np.mean(took)) / NS_PER_MS * 1000, rel=0.02)
