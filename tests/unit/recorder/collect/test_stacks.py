"""From the events of a window with stacks to the Python frames behind its gaps."""

from esprof.recorder.collect.stacks import stacks_of
from esprof.trace.schema import EVENTS, Table, table

MS = 1_000_000


def events(*rows: tuple[str, str, float, float], role: str = "main") -> Table:
    """Rows of (kind, name, start ms, duration ms), which the caller gives by start."""
    kinds, names, starts, durations = zip(*rows, strict=True)
    columns = {"kind": kinds, "name": names, "thread_role": [role] * len(rows)}
    times = {"start_ns": [int(t * MS) for t in starts], "dur_ns": [int(t * MS) for t in durations]}
    return table(columns | times, EVENTS)


def rows(stacks: Table) -> list[tuple]:
    return [tuple(row.values()) for row in stacks.arrow.to_pylist()]


def test_a_gap_is_named_by_the_innermost_user_frame_and_builtin_that_fill_it():
    found = stacks_of(
        events(
            ("python", "train.py(3): main", 0, 100),
            ("op", "aten::mul", 0, 10),
            ("op", "aten::empty", 2, 1),
            ("python", "model.py(7): forward", 10, 52),
            ("python", "torch/nn/modules/module.py(1): _call_impl", 10.5, 51),
            ("python", "random.py(5): shuffle", 10.5, 51),
            ("python", "injected/log.py(9): note", 10.5, 51),
            ("python", "shared/files.py(9): append", 10.5, 51),
            ("python", "<built-in function sleep>", 11, 50),
            ("op", "aten::add", 62, 10),
        )
    )
    assert rows(found) == [("aten::mul", "aten::add", "model.py(7): forward", "<built-in function sleep>", 52 * MS)]


def test_many_short_calls_are_blamed_on_the_frame_that_makes_them():
    calls = [("python", "data.py(9): decode", 10 + i, 0.9) for i in range(20)]
    found = stacks_of(
        events(
            ("python", "data.py(2): batch", 0, 50),
            ("op", "a", 0, 10),
            *calls,
            ("loader", "b", 30, 1),
            ("op", "c", 31, 1),
        )
    )
    assert rows(found) == [("a", "b", "data.py(2): batch", None, 20 * MS)]


def test_short_gaps_and_other_threads_do_not_count():
    assert rows(stacks_of(events(("op", "a", 0, 1), ("op", "b", 1.1, 1)))) == []
    assert rows(stacks_of(events(("op", "a", 0, 1), ("op", "b", 9, 1), role="autograd"))) == []


def test_a_gap_without_python_has_no_frame():
    assert rows(stacks_of(events(("op", "a", 0, 1), ("runtime", "b", 9, 1)))) == [("a", "b", None, None, 8 * MS)]


def test_a_frame_that_was_running_already_is_named_by_its_first_line():
    python = ("python", "src/train.py(88): main", 0, 20)
    found = stacks_of(events(python, ("op", "a", 0, 1), ("op", "b", 9, 1)), running=[("step", 9, 5), ("main", 88, 40)])
    assert rows(found)[0][2] == "src/train.py(40): main"


def test_addresses_are_left_out_so_that_ranks_agree():
    name = "<built-in method wait of Work object at 0x7fe0425a6ff0>"
    found = stacks_of(events(("op", "a", 0, 1), ("python", name, 1, 8), ("op", "b", 9, 1)))
    assert rows(found)[0][3] == "<built-in method wait of Work object>"
