"""From samples of the training thread's stack, and the events of a window, to what Python did while nothing was recorded."""

from esprof.run.collect.notes import Caller, RankIdentity, RankNotes
from esprof.run.collect.rolled_rows import MarkedStage, RankRows, Sample
from esprof.run.collect.stacks import samples_of, stacks_of
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.schema import EVENTS, SAMPLES, Table, table

MS = 1_000_000
MAIN, HOOK, LIBRARY = "train.py(9): main", "train.py(3): hook", "python3.11/logging/__init__.py(12): emit"
BACKWARD = "python3.11/site-packages/torch/autograd/graph.py(5): _engine_run_backward"


def events(*rows: tuple[str, str, float, float], role: str = "main") -> Table:
    """Rows of (kind, name, start ms, duration ms), which the caller gives by start."""
    kinds, names, starts, durations = zip(*rows, strict=True)
    columns = {"kind": kinds, "name": names, "thread_role": [role] * len(rows)}
    times = {"start_ns": [int(t * MS) for t in starts], "dur_ns": [int(t * MS) for t in durations]}
    return table(columns | times, EVENTS)


def samples(*rows: tuple[float, float, str], ran: float = 1.0) -> Table:
    """Rows of (at ms, duration ms, stack); the thread ran `ran` of each."""
    at, dur, stacks = zip(*rows, strict=True)
    dur_ns = [int(t * MS) for t in dur]
    return table(
        {
            "at_ns": [int(t * MS) for t in at],
            "dur_ns": dur_ns,
            "cpu_ns": [int(ran * t) for t in dur_ns],
            "stack": stacks,
        },
        SAMPLES,
    )


def every_ms(begin: int, end: int, stack: str, ran: float = 1.0) -> Table:
    """Samples of each ms from `begin` to `end`."""
    return samples(*((at + 1, 1, stack) for at in range(begin, end)), ran=ran)


def rows(stacks: Table) -> list[tuple]:
    return [tuple(row.values()) for row in stacks.arrow.to_pylist()]


def test_a_gap_is_told_by_the_line_that_was_at_work_and_what_it_led_to():
    window = events(("op", "aten::mul", 0, 10), ("op", "aten::empty", 2, 1), ("op", "aten::add", 50, 5))
    found = stacks_of(window, every_ms(0, 60, f"{MAIN}\n{HOOK}\n{LIBRARY}", ran=0.25), ())
    assert rows(found) == [("aten::mul", "aten::add", HOOK, LIBRARY, 40 * MS, 10 * MS)]


def test_a_gap_is_shared_out_among_the_lines_that_were_seen_in_it():
    found = stacks_of(
        events(("op", "a", 0, 10), ("op", "b", 50, 5)),
        samples(*((at, 10, MAIN) for at in (10, 20)), *((at, 10, f"{MAIN}\n{HOOK}") for at in (30, 40, 50))),
        (),
    )
    assert rows(found) == [("a", "b", MAIN, None, 10 * MS, 10 * MS), ("a", "b", HOOK, None, 30 * MS, 30 * MS)]


def test_a_look_that_came_right_behind_a_gap_stands_for_it():
    # C code held Python's lock, and nobody could look.
    found = stacks_of(events(("op", "a", 0, 10), ("op", "b", 50, 5)), samples((9, 1, MAIN), (50.5, 41.5, HOOK)), ())
    assert rows(found) == [("a", "b", HOOK, None, 40 * MS, 40 * MS)]


def test_a_look_that_came_behind_a_gap_stands_for_what_others_saw_in_gaps_of_that_name():
    window = events(("op", "a", 0, 10), ("op", "b", 50, 5), ("op", "a", 60, 10), ("op", "b", 110, 5))
    in_time = (9, 1, MAIN), (20, 11, HOOK), (30, 10, HOOK), (40, 10, LIBRARY), (50, 10, HOOK)
    found = stacks_of(window, samples(*in_time, (69, 19, MAIN), (110.5, 41.5, MAIN)), ())
    assert rows(found)[-2:] == [
        ("a", "b", HOOK, None, 30 * MS, 30 * MS),
        ("a", "b", LIBRARY, None, 10 * MS, 10 * MS),
    ]


def test_a_short_gap_is_told_by_the_look_behind_it_whatever_a_long_one_of_that_name_shows():
    short = [op for at in range(3) for op in (("op", "a", 10 * at, 1), ("op", "b", 10 * at + 1.8, 8))]
    window = events(*short, ("op", "a", 30, 1), ("op", "b", 36, 5))
    looks = [(10 * at + 1.9, 1.5, MAIN) for at in range(3)]
    found = rows(stacks_of(window, samples(*looks, (33, 5, HOOK), (36.5, 3.5, HOOK)), ()))
    assert [row[2] for row in found if row[0] == "a"] == [MAIN, MAIN, MAIN, HOOK]


def test_what_a_backward_pass_calls_back_is_no_measure_of_its_operations():
    window = events(
        ("op", "evaluate", 0, 40), ("op", "aten::mm", 30, 5), ("op", "evaluate", 60, 40), ("op", "x", 90, 5)
    )
    called_back, computing = f"{MAIN}\n{BACKWARD}\n{HOOK}", f"{MAIN}\n{BACKWARD}"
    looks = (20, 20, called_back), (30, 10, computing), (59, 29, MAIN), (90.5, 31.5, called_back)
    found = [row for row in rows(stacks_of(window, samples(*looks), ())) if row[1] is None]
    assert [(row[2], row[4]) for row in found][:2] == [(HOOK, 20 * MS), (HOOK, 30 * MS)]


def test_inside_an_operation_only_what_a_backward_pass_calls_is_listed():
    window = events(("op", "evaluate", 0, 40), ("op", "aten::mm", 30, 5), ("op", "aten::add", 45, 5))
    called_back = every_ms(0, 41, f"{MAIN}\n{BACKWARD}\n{HOOK}")
    assert rows(stacks_of(window, called_back, ()))[0] == ("evaluate", None, HOOK, None, 30 * MS, 30 * MS)
    computing = stacks_of(window, every_ms(0, 41, f"{MAIN}\n{BACKWARD}"), ())
    assert {(before, after) for before, after, *_ in rows(computing)} == {("evaluate", "aten::add")}


def test_garbage_collections_are_what_the_next_line_called():
    window = events(("op", "a", 0, 10), ("op", "b", 50, 5))
    collected = [MarkedStage(GARBAGE_COLLECTION, 12 * MS, 42 * MS), MarkedStage("my stage", 10 * MS, 50 * MS)]
    found = stacks_of(window, samples((10, 1, MAIN), (42, 32, HOOK), (50, 8, HOOK)), collected)
    assert rows(found) == [
        ("a", "b", HOOK, GARBAGE_COLLECTION, 30 * MS, 30 * MS),
        ("a", "b", HOOK, None, 10 * MS, 10 * MS),
    ]


def test_short_silences_and_other_threads_do_not_count():
    assert rows(stacks_of(events(("op", "a", 0, 1), ("op", "b", 1.04, 1)), every_ms(0, 2, MAIN), ())) == []
    assert (
        rows(stacks_of(events(("op", "a", 0, 1), ("op", "b", 9, 1), role="autograd"), every_ms(0, 9, MAIN), ())) == []
    )


def test_a_short_silence_is_told_by_the_look_in_it_or_right_behind_it():
    window = events(("op", "a", 0, 1), ("op", "b", 1.1, 1), ("op", "c", 2.2, 1))
    behind = stacks_of(window, samples((1.3, 1, HOOK)), ())
    assert rows(behind)[0] == ("a", "b", HOOK, None, round(0.1 * MS), round(0.1 * MS))
    inside = stacks_of(window, samples((1.05, 1, HOOK), (3.0, 1, MAIN)), ())
    assert [row[:3] for row in rows(inside)] == [("a", "b", HOOK), ("b", "c", MAIN)]
    late = stacks_of(window, samples((3.3, 1, HOOK)), ())
    assert [row[2] for row in rows(late)] == [None, None]


def test_a_gap_that_nobody_looked_into_has_no_frame():
    found = stacks_of(events(("op", "a", 0, 1), ("runtime", "b", 9, 1)), samples((30, 1, MAIN)), ())
    assert rows(found) == [("a", "b", None, None, 8 * MS, None)]


def test_of_the_standard_library_alone_the_innermost_line_is_the_place():
    frames = "python3.11/runpy.py(1): run\n<string>(1): <module>\npython3.11/site-packages/job/train.py(4): main"
    found = stacks_of(events(("op", "a", 0, 1), ("op", "b", 9, 1)), every_ms(0, 10, frames), ())
    assert rows(found)[0][2:4] == ("python3.11/site-packages/job/train.py(4): main", None)


def notes(*callers: Caller) -> RankNotes:
    return RankNotes(RankIdentity(0, 1, "host", 1, "cpu", 0, {}), callers={caller.number: caller for caller in callers})


def test_lines_hang_at_the_lines_that_called_them():
    noted = notes(Caller(1, 0, "train.py", 9, "main"), Caller(2, 1, "a.py", 3, "f"), Caller(3, 1, "b\n.py", 4, "g"))
    looks = [Sample(10, 5, 2, 1, number) for number in (1, 2, 3, 0, 99)]
    texts = samples_of(noted, RankRows(samples=looks)).texts("stack")
    assert texts == ["train.py(9): main", "train.py(9): main\na.py(3): f", "train.py(9): main\nb .py(4): g", None, None]


def test_a_line_that_claims_to_be_called_by_a_later_one_ends_the_stack():
    looped = notes(Caller(1, 2, "a.py", 1, "f"), Caller(2, 1, "b.py", 2, "g"))
    assert samples_of(looped, RankRows(samples=[Sample(1, 1, 1, 1, 2)])).texts("stack") == ["a.py(1): f\nb.py(2): g"]


def test_a_line_that_could_not_be_read_makes_no_other_line_of_the_stacks_that_hold_it():
    lost = notes(Caller(1, 0, "train.py", 9, "main"), Caller(3, 2, "b.py", 4, "g"), Caller(4, 1, "a.py", 3, "f"))
    looks = [Sample(10, 5, 2, 1, number) for number in (3, 4)]
    assert samples_of(lost, RankRows(samples=looks)).texts("stack") == [None, "train.py(9): main\na.py(3): f"]


def test_each_stack_is_kept_once():
    noted = notes(Caller(1, 0, "train.py", 9, "main"))
    samples = samples_of(noted, RankRows(samples=[Sample(at, 5, 2, 1, 1) for at in range(10_000)]))
    assert samples.codes("stack")[1] == ["train.py(9): main"]
