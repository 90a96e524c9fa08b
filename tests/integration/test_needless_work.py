"""Work that a recorded job does without need: marks of the recorder, and what replay says of them."""

from collections import Counter

import pytest

from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.views.enclosing import EnclosingCalls
from esprof.replay.building.build import build
from esprof.replay.whatif.gradients.marked_calls import calls_marked, repeated_calls
from esprof.replay.whatif.pricing import what_if
from esprof.run.raw.call_marks import DISCARDED, FLOAT64, NOT_HELD, NOT_OPTIMIZED
from tests.cases.record import job, recording, run


@pytest.mark.integration
def test_needless_work_of_a_recorded_job_is_marked_and_priced(tmp_path):
    ended = run(recording(tmp_path / "run", job("needless.py"), steps=4, stack_steps=0), tmp_path / "run")
    assert ended.code == 0, ended.stderr
    events, enclosing = ended.run.events(0), EnclosingCalls(RecordedJob(ended.run).samples, 0)
    of_step = events.ints("step") == max(events.ints("step"))

    def modules(calls):
        return Counter(enclosing.modules(row) for row in calls if of_step[row])

    assert modules(repeated_calls(events)) == {"Sequential": 1}
    assert modules(calls_marked(events, NOT_OPTIMIZED)) == {"Sequential": 2}
    assert modules(calls_marked(events, FLOAT64)) == {"Student.exact": 1}
    answers = what_if(ended.run, build(ended.run), ["repeated_calls=0", "unused_gradients=0", "double_precision=2x"])
    assert [answer.reason for answer in answers] == [None] * 3
    assert answers[0].saving_us > 0
    assert answers[1].saving_us > 0


@pytest.mark.integration
@pytest.mark.parametrize(("arguments", "marked"), [((), 1), (("detached",), 0)])
def test_gradients_that_are_discarded_are_marked_and_priced(tmp_path, arguments, marked):
    script = job("undetached.py", *arguments)
    ended = run(recording(tmp_path / "run", script, steps=4, stack_steps=0), tmp_path / "run")
    assert ended.code == 0, ended.stderr
    events = ended.run.events(0)
    calls = calls_marked(events, DISCARDED)
    steps = events.ints("step")
    of_last = [int((steps[calls] == step).sum()) for step in sorted({*steps.tolist()})[-3:]]
    assert of_last == [marked] * 3
    (answer,) = what_if(ended.run, build(ended.run), ["unused_gradients=0"])
    assert answer.answered == bool(marked)
    assert not marked or answer.saving_us > 0


@pytest.mark.integration
@pytest.mark.parametrize(("arguments", "marked"), [((), 1), (("frozen",), 0)])
def test_gradients_of_a_moving_average_and_of_layers_that_no_optimizer_holds_are_marked(tmp_path, arguments, marked):
    script = job("mean_teacher.py", *arguments)
    ended = run(recording(tmp_path / "run", script, steps=6, stack_steps=0), tmp_path / "run")
    assert ended.code == 0, ended.stderr
    events = ended.run.events(0)
    steps = events.ints("step")
    last = sorted({*steps.tolist()})[-3:]

    def of_last(mark):
        return [int((steps[calls_marked(events, mark)] == step).sum()) for step in last]

    assert of_last(NOT_HELD) == [marked] * 3
    assert of_last(NOT_OPTIMIZED) == [2 * marked] * 3  # the average, and the network in it
    (answer,) = what_if(ended.run, build(ended.run), ["unused_gradients=0"])
    assert answer.answered == bool(marked)
