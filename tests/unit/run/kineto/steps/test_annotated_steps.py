"""Steps of traces without ProfilerStep: those that the annotations of an inference server's loop begin."""

import pytest

from esprof.run.kineto.reader import read_trace
from tests.cases import serving
from tests.cases.kineto import EPOCH_US, document, kernel, launch, row, write


@pytest.fixture
def read(tmp_path):
    def of(rows):
        return read_trace(write(tmp_path / "trace.json", document(*rows)))

    return of


def starts(trace):
    """Start of each step and end of the last one, µs."""
    steps = trace.steps
    begin = steps.ints("start_ns") // 1000 - EPOCH_US
    return [*begin.tolist(), int(begin[-1] + steps.ints("dur_ns")[-1] // 1000)]


def annotated(name, ts, dur, *, call, thread=100):
    """An annotation with a launch inside, whose kernel runs 50 µs."""
    return [
        row(name, ts, dur, cat="user_annotation", tid=thread),
        launch(ts + 1, call, tid=thread),
        kernel(ts + 10, call, dur=50),
    ]


@pytest.mark.parametrize("name", [serving.SGLANG, serving.VLLM])
def test_annotations_of_a_server_begin_steps(read, name):
    trace = read(serving.decode(5, name=name))
    assert len(trace.steps) == 4  # The end of the last one is not known.
    (warning,) = trace.warnings
    assert warning.code == "steps-by-annotation"
    assert f"5 `{name}`" in warning.message


def test_prefill_and_decode_are_steps_of_one_loop(read):
    names = ("step[EXTEND bs=2 toks=4096]", "step[DECODE bs=2]", "step[DECODE bs=2]", "step[DECODE bs=1]")
    trace = read([one for at, name in enumerate(names) for one in annotated(name, 100 * at, 60, call=at + 1)])
    assert starts(trace) == [0, 100, 200, 300]


def test_of_nested_annotations_the_outermost_begin_steps(read):
    rows = []
    for at in range(4):
        rows += annotated(f"execute_context_0(0)_generation_{at}({at})", 100 * at, 80, call=2 * at + 1)
        rows += annotated("gpu_model_runner: forward", 100 * at + 20, 50, call=2 * at + 2)
    assert starts(read(rows)) == [0, 100, 200, 300]


def begins_with_annotations(trace):
    return "steps-by-annotation" in {warning.code for warning in trace.warnings}


def test_the_pieces_of_a_compiled_model_begin_no_steps(read):
    names = [f"## Call CompiledFxGraph f{at} ##" for at in range(6)]
    rows = [one for at, name in enumerate(names) for one in annotated(name, 100 * at, 60, call=at + 1)]
    assert not begins_with_annotations(read(rows))


def test_annotations_that_launch_little_begin_no_steps(read):
    rows = [one for at in range(6) for one in annotated("log", 100 * at, 20, call=2 * at + 1)]
    for at in range(6):
        rows += [launch(100 * at + 50, 2 * at + 2), kernel(100 * at + 60, 2 * at + 2, dur=500)]
    assert not begins_with_annotations(read(rows))


def test_two_annotations_are_no_loop(read):
    rows = [one for at in range(2) for one in annotated("generate", 100 * at, 60, call=at + 1)]
    assert not begins_with_annotations(read(rows))


def test_graphs_without_recorded_kernels_count_by_their_launches(read):
    rows = [one for one in serving.decode(5) if one["cat"] != "kernel" or one["name"] == "argmax"]
    assert begins_with_annotations(read(rows))
