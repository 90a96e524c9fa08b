"""The table of public traces: all are read, and the first finding is the known cause."""

import json
from pathlib import Path

import pytest

from benchmarks.public_traces import TRACES, rows_of

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "traces"

pytestmark = pytest.mark.integration


def figures(capsys) -> dict[str, tuple[float, int]]:
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {one["name"]: (one["value"], one["context"]["of"]) for one in printed}


def test_traces_of_the_project_are_rows_without_others(tmp_path, capsys):
    rows = list(rows_of(TRACES, tmp_path))
    own = [one.name for one in TRACES if one.is_own]
    assert [row[0] for row in rows] == own
    found = figures(capsys)
    assert found["public_traces_opened"] == (len(own), len(own))
    assert found["public_traces_unexplained"][0] == 0


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} is absent: these are no part of the project")
def test_known_causes_of_published_traces_come_first(capsys):
    rows = list(rows_of(TRACES, FOLDER))
    assert len(rows) == len(TRACES)
    right, known = figures(capsys)["public_traces_first_as_known"]
    assert right == known > 5


def test_a_file_that_cannot_be_read_is_a_row(tmp_path, capsys):
    name = next(one.name for one in TRACES if not one.is_own)
    (tmp_path / name).mkdir()
    (row,) = [row for row in rows_of(TRACES, tmp_path) if row[0] == name]
    assert row[5].startswith("not read: ")
