"""Operations whose gradient a backward pass computes."""

from esprof.analyzers.views.gradients import has_gradient
from tests.cases.graph import numbered, op, run_of, step


def test_of_operations_with_one_number_the_last_creates_the_node():
    rows = [
        step(0, 0, 200),
        numbered("aten::argmax", 0, 10, 7),  # without a node of its own, it has the number of the next one
        numbered("aten::linear", 20, 40, 7),
        numbered("aten::addmm", 30, 20, 7),
        op("aten::copy_", 35, 5),
        numbered("aten::relu", 70, 10, 8),  # nothing goes back through it
        numbered("AddmmBackward0", 100, 50, 7, forward_thread=1),
        op("aten::mm", 110, 30),
    ]
    events = run_of({0: rows}).events(0)
    names = [name for name, mine in zip(events.texts("name"), has_gradient(events), strict=True) if mine]
    assert sorted(names) == ["aten::addmm", "aten::linear"]


def test_a_trace_without_sequence_numbers_has_none():
    events = run_of({0: [step(0, 0, 100), op("aten::mm", 0, 50)]}).events(0)
    assert not has_gradient(events).any()
