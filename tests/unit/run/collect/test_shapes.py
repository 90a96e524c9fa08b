"""Operations of timed steps, which are recorded without shapes, get those of the same calls in other steps."""

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from esprof.run.collect.shapes import MIN_KNOWN, with_shapes
from esprof.run.schema import EVENTS, Table, table
from tests.cases.properties import thorough


def ran(*calls: tuple) -> Table:
    """Rows of (step, operation), and then shapes and thread, by start."""
    rows = [(*call, *(None, 1)[len(call) - 2 :]) for call in calls]
    steps, names, shapes, threads = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = {"kind": ["op"] * len(rows), "name": names, "step": steps, "tid": threads, "shapes": shapes}
    return table(columns | {"start_ns": range(len(rows)), "dur_ns": [1] * len(rows)}, EVENTS)


def given_to(timed: Table, noted: Table, batches=None) -> list[str | None] | None:
    found = with_shapes(timed, noted, batches or {})
    return None if found is None else found.texts("shapes")


def test_each_call_gets_the_shapes_of_the_call_with_its_number_in_a_step():
    timed = ran((1, "mm"), (1, "add"), (1, "mm"), (2, "mm"), (2, "mm"), (2, "add"))
    noted = ran(*((step, *call) for step in (5, 6) for call in (("mm", "[[1]]"), ("mm", "[[2]]"), ("add", "[[3]]"))))
    assert given_to(timed, noted) == ["[[1]]", "[[3]]", "[[2]]", "[[1]]", "[[2]]", "[[3]]"]


def test_each_thread_counts_its_own_calls():
    timed = ran((1, "mm", None, 7), (1, "mm", None, 8))
    noted = ran((5, "mm", "[[8]]", 8), (5, "mm", "[[7]]", 7))
    assert given_to(timed, noted) == ["[[7]]", "[[8]]"]


def test_nothing_but_operations_in_steps_counts():
    timed = ran((None, "mm"), (1, "mm"))
    noted = ran((None, "mm", "[[0]]"), (5, "mm", "[[1]]"))
    assert given_to(timed, noted) == [None, "[[1]]"]
    assert given_to(ran(), noted) == []


def test_an_operation_without_inputs_is_known_to_have_none():
    timed = ran((1, "empty"), (1, "mm", "[]"))
    assert given_to(timed, ran((5, "empty"), (5, "mm", "[[1], [2]]"))) == [None, "[[1], [2]]"]


def test_shapes_that_differ_between_the_steps_are_unknown():
    noted = ran((5, "mm", "[[1]]"), (6, "mm", "[[2]]"))
    assert given_to(ran((1, "mm")), noted) is None
    assert given_to(ran((1, "mm")), ran()) is None


def test_a_few_unknown_operations_leave_the_others_theirs():
    """The first timed step logs something besides."""
    usual = [("mm", f"[[{number}]]") for number in range(20)]
    timed = ran(*((step, name) for step in (1, 2) for name, _ in usual), (1, "item"))
    noted = ran(*((step, *call) for step in (5, 6) for call in usual))
    assert given_to(timed, noted) == [*(shapes for _, shapes in usual * 2), None]


def test_where_a_step_calls_an_operation_more_often_none_of_its_calls_is_told_apart():
    usual = [("add", "[[1]]")] * 40
    timed = ran(*((1, name) for name, _ in usual), (1, "mm"), (1, "mm"))
    assert given_to(timed, ran((5, "mm", "[[2]]"), *((5, *call) for call in usual))) == ["[[1]]"] * 40 + [None] * 2


def test_a_step_takes_the_shapes_of_batches_of_its_own_size():
    noted = ran((5, "mm", "[[8]]"), (6, "mm", "[[4]]"))
    timed, sizes = ran((1, "mm"), (2, "mm")), {5: (8, None), 6: (4, None)}
    assert given_to(timed, noted, sizes | {1: (4, None), 2: (8, None)}) == ["[[4]]", "[[8]]"]
    assert given_to(timed, noted, sizes | {1: (4, None), 2: (7, None)}) is None


STEPS = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["[[1]]", "[[2]]", None]), st.sampled_from([1, 2]))),
    min_size=1,
    max_size=3,
)


def plainly(timed: list[tuple], noted: list[tuple], sizes: dict[int, int]) -> list[str | None] | None:
    """The same, call by call."""

    def identified(calls):
        total = Counter((step, name, tid) for step, name, _, tid in calls)
        before = Counter()
        for step, name, shapes, tid in calls:
            before[step, name, tid] += 1
            yield step, (name, tid, before[step, name, tid], total[step, name, tid]), shapes

    seen = defaultdict(set)
    for step, call, shapes in identified(noted):
        seen[call, sizes[step]].add(shapes)
    found = [seen[call, sizes[step]] for step, call, _ in identified(timed)]
    if sum(len(shapes) == 1 for shapes in found) < MIN_KNOWN * len(found):
        return None
    return [next(iter(shapes)) if len(shapes) == 1 else None for shapes in found]


@thorough()
@given(STEPS, STEPS, st.lists(st.sampled_from([8, 4]), min_size=6, max_size=6))
def test_the_answer_is_that_of_a_plain_search(timed, noted, sizes):
    calls = [[(first + number, *call) for number, step in enumerate(steps) for call in step]
             for first, steps in ((0, timed), (3, noted))]  # fmt: skip
    timed, noted = ([call if at else (*call[:2], None, call[3]) for call in one] for at, one in enumerate(calls))
    assert given_to(ran(*timed), ran(*noted), dict(enumerate(sizes))) == plainly(timed, noted, dict(enumerate(sizes)))


def test_the_events_stay_as_they_are_but_for_the_shapes():
    timed = ran((1, "mm"), (2, "mm"))
    found = with_shapes(timed, ran((5, "mm", "[[1]]")), {})
    assert found is not None
    assert found.arrow.drop_columns(["shapes"]) == timed.arrow.drop_columns(["shapes"])
    assert found.arrow.schema == EVENTS
