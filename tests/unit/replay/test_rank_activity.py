"""What a rank does in its steps, against a count of its events one by one."""

from hypothesis import given
from hypothesis import strategies as st

from esprof.replay.rank_activity import RecordedRank
from esprof.replay.run_by_name import RunByName
from tests.cases.graph import EPOCH_NS, call, op, run_of, step
from tests.cases.properties import thorough

STEPS = {1: (0, 100), 2: (100, 180), 3: (200, 300)}
BOUNDARIES = {number: (EPOCH_NS + 1000 * begin, EPOCH_NS + 1000 * end) for number, (begin, end) in STEPS.items()}


def activity_of(rows):
    rows = sorted(rows, key=lambda row: row.ts)
    return RecordedRank(RunByName(run_of({0: rows})), 0, BOUNDARIES).activity()


@thorough(200)
@given(st.lists(st.integers(-50, 350), max_size=8), st.lists(st.integers(-50, 350), max_size=8))
def test_operations_and_allocations_are_counted_from_one_border_to_another(operations, mallocs):
    rows = [step(number, begin, end) for number, (begin, end) in STEPS.items()]
    rows += [op("aten::mm", at, 3) for at in operations] + [call("cudaMalloc", at, 7, 1) for at in mallocs]
    found = activity_of(rows)
    is_working = operations or mallocs
    assert found.works == bool(is_working)
    for first, last in ((1, 1), (2, 2), (1, 3)):
        begin, end = STEPS[first][0], STEPS[last][1]
        span = BOUNDARIES[first][0], BOUNDARIES[last][1]
        inside = [at for at in (operations or mallocs) if begin <= at < end]
        assert found.works_within(span) == bool(inside)
        allocated = 7 * sum(begin <= at < end for at in mallocs) if operations else 0
        assert found.allocator_share(span) == allocated / (end - begin)
