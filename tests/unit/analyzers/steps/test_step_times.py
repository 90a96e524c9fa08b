"""Step times over the run: roles of steps, the steps that represent others, and findings that name steps."""

import msgspec
import numpy as np
import pytest

from esprof.analyzers import diagnose
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.analyzers.steps.step_times import MAX_BOUNDARIES_MARKED, MAX_STRETCHES, step_times
from esprof.core.types import NS_PER_MS
from esprof.run.run import Run, Window
from esprof.run.schema import EVENTS, STAGES, table
from tests.cases import report as reportcase
from tests.cases import step_runs
from tests.cases.step_runs import EPOCH_NS, meta, step_table


def by_step(series):
    return dict(zip(series.step, series.us, strict=True))


def test_each_step_has_exactly_one_role():
    phases = ["plain", "plain", "warmup", "timed", "timed", "export", "stack", "plain"]
    times = step_times(RecordedJob(step_runs.run(step_table(range(1, 9), phase=phases))))
    assert {role: series.step for role, series in times.series.items()} == {
        "plain": (1, 7),
        "timed": (3, 4),
        "stack": (6,),
        "beside": (0, 2, 5),
    }
    assert by_step(times.series["timed"]) == {3: 4_000, 4: 5_000}
    # Each step starts at the end of the previous one.
    assert times.series["plain"].at_s == (0.001, 0.028)
    assert (times.steps, times.plain, times.stretch, times.span_s) == (8, 2, 1, 0.036)


def test_a_step_is_plain_only_if_it_is_plain_on_every_rank():
    other = ["plain", "plain", "export", "plain"]
    times = step_times(RecordedJob(step_runs.run(step_table([1] * 4), step_table([1] * 4, phase=other))))
    assert (times.series["plain"].step, times.series["beside"].step) == ((1, 3), (0, 2))


def test_a_step_ends_with_the_last_rank():
    times = step_times(RecordedJob(step_runs.run(step_table([10, 10, 10]), step_table([10, 30, 10]))))
    assert by_step(times.series["plain"]) == {1: 30_000, 2: 10_000}


def test_mean_and_median_cover_plain_steps_without_the_first():
    phases = ["plain"] * 5 + ["timed"]
    times = step_times(RecordedJob(step_runs.run(step_table([500, 10, 10, 10, 30, 900], phase=phases))))
    assert (times.mean_us, times.median_us) == (15_000, 10_000)


def test_without_plain_steps_there_is_no_result():
    assert step_times(RecordedJob(step_runs.run(step_table([10] * 20, phase="timed")))) is None


def test_the_shortest_and_longest_of_each_stretch_represent_many_steps():
    took = np.random.default_rng(0).uniform(10, 20, 60_000).round(3)
    took[12_345], took[54_321] = 3, 44
    times = step_times(RecordedJob(step_runs.run(step_table(took))))
    assert times.stretch == 100
    plain = by_step(times.series["plain"])
    assert len(plain) <= 2 * (MAX_STRETCHES + 1)
    assert times.series["plain"].of == 59_999
    assert (plain[12_345], plain[54_321]) == (3_000, 44_000)
    for stretch in range(1, 600):
        inside = took[stretch * 100 : (stretch + 1) * 100] * 1_000
        shown = [us for step, us in plain.items() if step // 100 == stretch]
        assert sorted(shown) == pytest.approx([inside.min(), inside.max()])
    # All of them count, drawn or not.
    assert times.mean_us == pytest.approx(took[1:].mean() * 1_000, abs=0.1)


def test_a_single_step_of_a_stretch_is_drawn_once():
    phases = ["plain"] * 60_000
    phases[30_000] = "timed"
    times = step_times(RecordedJob(step_runs.run(step_table([10] * 60_000, phase=phases))))
    assert times.series["timed"].step == (30_000,)


def test_very_long_steps_are_counted_above_the_axis():
    took = [10.0] * 200
    took[50] = 1_000
    times = step_times(RecordedJob(step_runs.run(step_table(took))))
    assert times.top_us < 100_000
    assert (times.above, times.longest_us) == (1, 1_000_000)


def test_the_axis_ends_just_above_the_longest_step():
    times = step_times(RecordedJob(step_runs.run(step_table([10, 10.5, 11]))))
    assert (times.top_us, times.above) == (1.05 * 11_000, 0)


def test_recurring_slow_steps_are_marked_by_their_finding():
    run = step_runs.run(step_table([100.0 if n % 5 else 300.0 for n in range(60)]))
    findings = diagnose(run).findings
    (mark,) = step_times(RecordedJob(run), findings).marks
    assert (mark.id, mark.title) == ("ESP806", findings[0].title)
    assert mark.steps.step == tuple(range(5, 60, 5))
    assert step_times(RecordedJob(run)).marks == ()
    assert step_times(RecordedJob(run), findings).above == 0


def test_steps_named_in_evidence_are_marked():
    first = reportcase.findings()[0]
    evidence = {
        "took": msgspec.convert({"value": {"7": 1, "9": 1, "99": 1}, "by": "step"}, type(first.evidence["prefetch"]))
    }
    slow = msgspec.structs.replace(first, id="ESP804", evidence=evidence)
    (mark,) = step_times(RecordedJob(step_runs.run(step_table([10] * 20))), [slow, first]).marks
    # The run has no step 99.
    assert (mark.id, mark.steps.step) == ("ESP804", (7, 9))


def with_more(steps, *, windows=(), stages=None) -> Run:
    meta = step_runs.meta(1)
    rank = msgspec.structs.replace(meta.ranks[0], windows=windows)
    tables = {"steps": steps, "stages": stages, "events": table({}, EVENTS)}
    return Run(msgspec.structs.replace(meta, ranks=(rank,)), lambda name, rank: tables.get(name))


@pytest.mark.parametrize("count", [2, MAX_BOUNDARIES_MARKED + 1])
def test_windows_are_named_unless_there_are_too_many(count):
    windows = tuple(Window(first=10 * n, last=10 * n + 3, stacks=n % 2 == 1) for n in range(count))
    times = step_times(RecordedJob(with_more(step_table([10] * 1_000), windows=windows)))
    assert times.window_count == count
    assert times.windows == (windows if count == 2 else ())


def test_a_pass_starts_with_the_step_of_its_first_batch():
    ends = [EPOCH_NS + at * NS_PER_MS for at in (5, 45, 55, 65, 75, 76, 85, 105, 95)]
    columns = {
        "kind": ["next"] * 8 + ["fetch"],
        "loader": [0, 0, 1, 1, 2, 2, 3, 3, 4],  # The pass within a step is a validation.
        "batch": [0, 1] * 4 + [0],
        "start_ns": [end - NS_PER_MS for end in ends],
        "end_ns": ends,
    }
    stages = table(columns | {name: [None] * 9 for name in STAGES.names if name not in columns}, STAGES)
    times = step_times(RecordedJob(with_more(step_table([10] * 12), stages=stages)))
    assert (times.passes, times.pass_count) == ((5, 8), 2)


def test_a_pass_started_before_the_first_step_is_the_first():
    steps = step_table([100] * 9, start_ns=1_000 * NS_PER_MS, first=1)
    begins = [950, 1_050, 1_150, 1_250, 1_350, 1_450, 1_550, 1_650, 1_750]
    passes = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    stages = table(
        {
            "kind": ["next"] * 9,
            "loader": passes,
            "start_ns": [round(at * NS_PER_MS) for at in begins],
            "end_ns": [round((at + 1) * NS_PER_MS) for at in begins],
        },
        STAGES,
    )
    run = Run(meta(1), lambda name, rank: {"steps": steps, "stages": stages, "events": table({}, EVENTS)}.get(name))
    assert JobSteps(run).epochs == (3, 6)
