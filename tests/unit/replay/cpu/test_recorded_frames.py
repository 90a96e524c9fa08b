"""Functions that torch.profiler recorded: which function of the job ran in each gap."""

from collections import defaultdict

import numpy as np
import pytest

from esprof.replay.building.build import build
from esprof.replay.cpu.python_time import PythonTime, text_of
from esprof.replay.cpu.recorded_frames import recorded_frames
from esprof.replay.whatif.pricing import what_if
from tests.cases.graph import EPOCH_NS, MAIN, call, events_of, kernel, op, python, run_of, step

MS = 1000.0
LOOP, LOAD, RESIZE = "train.py(3): main", "data.py(7): load", "PIL/Image.py(90): resize"
CALL, FORWARD, HOOK = "torch/nn/modules/module.py(1): _call_impl", "model.py(5): forward", "train.py(9): hook"
SLEEP = "<built-in function sleep>"


def took(*rows) -> dict[str, float]:
    """Time of each location in one step of 100 ms, ms, from these rows."""
    run = run_of({0: [step(1, 0, 100 * MS), *rows]})
    times = PythonTime(run, build(run), 0).by_location((1,))
    return {text_of(location): pytest.approx(ns / 1e6) for location, (ns, _) in times.items()}


def loop(*inside):
    """40 ms of `aten::mm`, a gap of 20 ms, and `aten::add`, in the training loop."""
    return python(LOOP, -5 * MS, 200 * MS), op("aten::mm", 0, 40 * MS), *inside, op("aten::add", 60 * MS, 40 * MS)


def test_a_gap_belongs_to_the_innermost_function_of_the_job_with_the_function_that_it_calls():
    inside = [python(LOAD, 42 * MS, 16 * MS), python(RESIZE, 43 * MS, 9 * MS), python(SLEEP, 44 * MS, 7 * MS)]
    assert took(*loop(*inside)) == {LOOP: 4, LOAD: 7, f"{LOAD} → {RESIZE}": 9}


def test_operations_within_a_function_are_not_its_time():
    inside = [python(LOAD, 40 * MS, 20 * MS), op("aten::randn", 45 * MS, 10 * MS)]
    assert took(*loop(*inside)) == {LOAD: 10}


def test_functions_that_an_operation_calls_back_count_and_the_rest_of_the_operation_does_not():
    assert took(op("evaluate", 0, 100 * MS), python(HOOK, 20 * MS, 30 * MS)) == {HOOK: 30}


def test_comprehensions_are_part_of_their_function():
    inside = [python(LOAD, 40 * MS, 20 * MS), python("data.py(8): <listcomp>", 42 * MS, 18 * MS)]
    inside += [python(RESIZE, 43 * MS, 9 * MS)]
    assert took(*loop(*inside)) == {LOAD: 11, f"{LOAD} → {RESIZE}": 9}


def test_an_address_is_no_part_of_a_name():
    inside = [python("<built-in method read of file object at 0x7f00>", 41 * MS, 19 * MS)]
    assert took(*loop(*inside)) == {LOOP: 1, f"{LOOP} → <built-in method read of file object>": 19}


@pytest.mark.parametrize(
    "waits",
    [
        "torch/autograd/graph.py(840): _engine_run_backward",
        "torch/distributed/distributed_c10d.py(5042): barrier",
        "<built-in method wait of torch._C._distributed_c10d.Work object at 0x7f00>",
        "torch/profiler/profiler.py(900): step",
    ],
)
def test_waiting_and_the_profiler_are_no_code_of_the_job(waits):
    assert took(*loop(python(waits, 40 * MS, 20 * MS))) == {}
    # Functions of the job that they call back are.
    assert took(*loop(python(waits, 40 * MS, 20 * MS), python(HOOK, 41 * MS, 10 * MS))) == {HOOK: 10}


def gaps(*inside, gap_ms: float = 0.5):
    """Twenty gaps between operations; `inside` are the names of the functions that are open in each, outermost first."""
    rows = [python(LOOP, -MS, 200 * MS), op("aten::mm", 0, MS)]
    for n in range(20):
        at = (1 + n * 4) * MS
        rows += [python(name, at + depth, gap_ms * MS - 2 * depth) for depth, name in enumerate(inside)]
        rows.append(op("aten::mm", at + gap_ms * MS, (4 - gap_ms) * MS))
    return [*rows, op("aten::mm", 81 * MS, 19 * MS)]


def test_short_gaps_in_the_forward_of_a_model_are_ordinary_overhead_and_its_hooks_are_not():
    assert took(*gaps(CALL, FORWARD)) == {}
    assert took(*gaps(CALL, FORWARD, "model.py(2): mask")) == {}
    assert sum(value.expected for value in took(*gaps(CALL, HOOK)).values()) == pytest.approx(10, abs=0.1)
    # A long gap is code of the model that takes long.
    assert sum(value.expected for value in took(*gaps(CALL, FORWARD, gap_ms=2)).values()) == pytest.approx(40, abs=0.2)


def test_functions_of_another_thread_do_not_fill_gaps():
    other = python(LOAD, 40 * MS, 20 * MS)
    other.tid = MAIN + 50
    assert took(*loop(other)) == {LOOP: 20}


def test_the_leading_functions_run_for_nearly_all_of_the_steps():
    rows = [python(LOOP, 0, 100 * MS), python(LOAD, 5 * MS, 80 * MS), python(RESIZE, 6 * MS, 70 * MS)]
    frames = recorded_frames(events_of(rows, {}))
    assert frames.leading(MAIN, EPOCH_NS, EPOCH_NS + 100_000_000) == {"train.py: main"}
    assert frames.leading(MAIN, EPOCH_NS + 5_000_000, EPOCH_NS + 85_000_000) == {"train.py: main", "data.py: load"}


def test_rows_know_the_function_of_the_job_around_them():
    # More functions end before the call than any fixed search would visit.
    past = [python(SLEEP, 10 + n * 0.01, 0.005) for n in range(2_000)]
    rows = [python(LOOP, 0, 100), *past, python("torch/_tensor.py(4): item", 60, 20), op("aten::item", 65, 5)]
    table = events_of(rows, {})
    frames = recorded_frames(table)
    assert frames.line(table.texts("name").index("aten::item")) == LOOP
    assert recorded_frames(events_of([op("aten::item", 0, 5)], {})).line(0) is None


def test_pieces_of_random_nests_are_those_of_the_innermost_row():
    random = np.random.default_rng(7)
    for _ in range(20):
        rows = _nested(random, 0, 4_000, depth=0)
        frames = recorded_frames(events_of(rows, {}))
        expected: dict[str, int] = defaultdict(int)
        for moment in range(4_000):
            covering = [row for row in rows if row.ts <= moment < row.ts + row.dur]
            if covering and covering[-1].cat == "python_function":
                expected[covering[-1].name] += 1
        seen: dict[str, int] = defaultdict(int)
        for begin, end, location in zip(frames.begin, frames.end, frames.location, strict=True):
            seen[frames.locations[location].frame] += int(end - begin) // 1000
        assert seen == expected


def _nested(random, begin: int, end: int, depth: int) -> list:
    """Rows of random nesting, each before those within it."""
    rows, at = [], begin
    while depth < 5 and at < end:
        length = int(random.integers(1, end - at + 1))
        name = f"{random.choice(list('abc'))}.py(1): f"
        rows.append(python(name, at, length) if random.random() < 0.7 else op("aten::mm", at, length))
        rows += _nested(random, at, at + length, depth + 1)
        at += length + int(random.integers(0, 100))
    return rows


def test_removing_a_function_shortens_the_step_of_a_gpu_job():
    rows = []
    for n in range(3):
        at = 50 * MS * n
        rows += [step(n, at, at + 50 * MS), python(LOOP, at, 50 * MS), python(LOAD, at + 1 * MS, 20 * MS)]
        rows += [op("aten::mm", at + 21 * MS, 10 * MS), call("cudaLaunchKernel", at + 22 * MS, 5, n + 1)]
        rows += [kernel("gemm", at + 22.1 * MS, 2 * MS, n + 1), op("aten::add", at + 31 * MS, 19 * MS)]
    run = run_of({0: rows})
    (answer,) = what_if(run, build(run), [r"python[^data\.py\(\d+\): load]=0"])
    assert answer.predicted_us == pytest.approx(30 * MS, abs=1)
