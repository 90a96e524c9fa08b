"""From noted labels and scores to the tables of a rank."""

import msgspec
import pytest

from esprof.run.collect.labels import labels_of, travels_of
from esprof.run.collect.rolled_rows import NotedLabels, NotedTravel, RankRows, RolledRows

LINES = msgspec.json.Decoder(RolledRows)


def rows(*lines: str) -> RankRows:
    found = RankRows()
    for line in lines:
        found.add(LINES.decode(line), [])
    return found


def test_rows_of_labels_are_added_up():
    of = rows('{"kind":"labels","rows":[[10,{"7":2,"1":1}]]}', '{"kind":"labels","rows":[[20,{"7":3}],[30,{}]]}')
    assert labels_of(of).to_pandas().to_dict("list") == {"label": [1, 7], "samples": [1, 5]}


def test_comparisons_are_by_time():
    of = rows('{"kind":"travels","rows":[[20,9,4,0.5,0.25],[10,5,4,1.0,0.0]]}')
    assert travels_of(of).to_pandas().to_dict("list") == {
        "step": [5, 9],
        "at_ns": [10, 20],
        "every": [4, 4],
        "own": [1.0, 0.5],
        "foreign": [0.0, 0.25],
    }


def test_a_rank_without_any_has_empty_tables():
    assert (len(labels_of(RankRows())), len(travels_of(RankRows()))) == (0, 0)


def test_what_came_before_the_count_began_anew_is_dropped():
    of = RankRows(labels=[NotedLabels(10, {1: 1}), NotedLabels(30, {2: 1})], travels=[NotedTravel(10, 1, 2, 0.0, 0.0)])
    of.drop_before(20)
    assert labels_of(of).ints("label").tolist() == [2]
    assert len(travels_of(of)) == 0


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"labels","rows":[[10,{"-1":2}]]}',
        '{"kind":"labels","rows":[[10,{"1":-2}]]}',
        '{"kind":"labels","rows":[[10,{"cat":2}]]}',
        '{"kind":"labels","rows":[[10,{"1":99999999999999999999}]]}',
        '{"kind":"travels","rows":[[10,5,4,1.5,0.0]]}',
        '{"kind":"travels","rows":[[10,5,-4,0.5,0.0]]}',
    ],
)
def test_a_damaged_line_is_refused(line):
    with pytest.raises(msgspec.ValidationError):
        LINES.decode(line)
