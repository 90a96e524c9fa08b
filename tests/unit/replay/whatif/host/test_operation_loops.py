"""Loops of Python over operations, against a search of all places and periods."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esprof.replay.whatif.host.operation_loops import MAX_OPERATIONS, MIN_ITERATIONS, operation_loops
from tests.cases.graph import events_of, numbered, op, python, step
from tests.cases.properties import thorough

TOOK = 20.0
"""Of each operation, in µs."""


def sequence(names, begin=0.0):
    return [op(name, begin + TOOK * at, TOOK - 1) for at, name in enumerate(names)]


def module(name: str, begin: float, dur: float):
    return python(f"nn.Module: {name}", begin, dur)


def loops_in(rows, end=100_000.0):
    """(step, operations of an iteration, iterations, time in µs) of each loop; an own module is called first."""
    events = events_of([step(1, 0, end), module("GPT", 0, 1), *rows], {})
    found = operation_loops(events)
    took = (found.end_ns - found.begin_ns) / 1000
    columns = (found.step, found.operations, found.iterations, took)
    return list(zip(*(column.tolist() for column in columns), strict=True))


ITEMS = ["aten::slice", "aten::mul", "aten::sum"] * 15


def test_a_loop_over_items_is_found_with_its_iterations():
    rows = sequence(["aten::linear", *ITEMS, "aten::stack"])
    rows.append(op("aten::add", TOOK + 2, 5))  # within the first slice
    assert loops_in(rows) == [(1, 3, 15, 45 * TOOK - 1)]


def test_few_iterations_are_none():
    assert loops_in(sequence(ITEMS[: 3 * (MIN_ITERATIONS - 1)])) == []


def test_layers_are_no_loop_but_one_module_called_again_and_again_is():
    layers = [module(f"GPT.layers.{at}", 3 * TOOK * at, 2 * TOOK) for at in range(15)]
    cells = [module("GPT.cell", 3 * TOOK * at, 2 * TOOK) for at in range(15)]
    assert loops_in([*sequence(ITEMS), *layers]) == []
    assert len(loops_in([*sequence(ITEMS), *cells])) == 1


def test_optimizers_are_no_loop():
    span = msgspec.structs.replace(python("Optimizer.step#SGD.step", 0, 45 * TOOK), cat="user_annotation")
    assert loops_in([*sequence(ITEMS), span]) == []


def test_backward_passes_end_a_loop():
    rows = sequence(ITEMS)
    rows[20] = numbered("MulBackward0", rows[20].ts, TOOK - 1, sequence=1, forward_thread=1)
    assert loops_in(rows) == []


@pytest.mark.parametrize("collective", ["c10d::allreduce_", "_c10d_functional::all_reduce"])
def test_collectives_end_a_loop(collective):
    assert loops_in(sequence(["aten::norm", collective, "aten::item"] * 15)) == []
    assert len(loops_in(sequence([collective, *ITEMS, collective]))) == 1


def test_without_modules_layers_cannot_be_told_from_items():
    events = events_of([step(1, 0, 10_000), *sequence(ITEMS)], {})
    assert len(operation_loops(events).tid) == 0


@thorough(200)
@given(
    before=st.lists(st.sampled_from("ab"), max_size=5),
    iteration=st.lists(st.sampled_from("abc"), min_size=1, max_size=4),
    times=st.integers(1, 16),
    after=st.lists(st.sampled_from("bc"), max_size=5),
)
def test_the_longest_is_that_of_a_search_of_all_places(before, iteration, times, after):
    names = [*before, *iteration * times, *after]
    found = loops_in(sequence(names))
    expected = longest(names)
    assert max(((round(took / TOOK), -operations) for _, operations, _, took in found), default=None) == expected


def longest(names):
    """(length, negative period) of the longest repetition, the one of the shortest period among equals."""
    best = None
    for first in range(len(names)):
        for period in range(1, MAX_OPERATIONS + 1):
            end = first + period
            while end < len(names) and names[end] == names[end - period]:
                end += 1
            if end - first >= MIN_ITERATIONS * period and end <= len(names):
                best = max(best or (0, 0), (end - first, -period))
    return best
