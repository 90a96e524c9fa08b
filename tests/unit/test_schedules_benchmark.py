"""How what was said of pipelines under another schedule is held against what was measured; nothing is run."""

import sys

import pytest

from benchmarks import schedules
from benchmarks.schedules import PIPELINES, SCHEDULES
from benchmarks.testbed.bed import MOST_OF_THE_CORES
from benchmarks.unseen import Answer

CORES = 2
"""Of the machine that the pipelines were made for."""
STEP_MS = {"gpipe": 120.0, "1f1b": 100.0, "zb1p": 90.0}


def schedule_of(path):
    return path.name.split("-")[-2]


@pytest.fixture
def bed(monkeypatch):
    """Recordings that hold nothing, of steps that last STEP_MS; the log of what was recorded."""
    log = []
    monkeypatch.setattr(schedules, "record", lambda setting, out: log.append(out.name))
    monkeypatch.setattr(schedules.esprof, "load", lambda path: path)
    monkeypatch.setattr(schedules, "mean_step_ms", lambda path: STEP_MS[schedule_of(path)])
    monkeypatch.setattr(schedules, "rebuilt_error_pct", lambda pipeline, folder, repeats: 0.5)
    return log


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["schedules", *map(str, arguments)])
    schedules.main()


def test_each_schedule_is_predicted_from_recordings_of_the_others(tmp_path, bed, monkeypatch, capsys):
    def ask(path, specs):
        if schedule_of(path) == "1f1b":
            return dict.fromkeys(specs, "no passes")
        return {spec: Answer(105.0, 95.0, 110.0, (10.0, 25.0), 1.0) for spec in specs}

    monkeypatch.setattr(schedules, "ask", ask)
    run(monkeypatch, "--keep", tmp_path)
    first = capsys.readouterr().out
    rows = first.splitlines()[2:8]
    name = PIPELINES[0].name
    assert [rows[0], rows[2]] == [
        f"| {name}, GPipe | `pipeline=1f1b` | 120.0 | 105.0 | 100.0 | +5.0 | 0.0, 0.0 | 10 … 25 | 2 of 2 |",
        f"| {name}, 1F1B | `pipeline=gpipe` | 100.0 | no passes | 120.0 |  | 0.0, 0.0 |  | 0 of 0 |",
    ]
    recorded = len(PIPELINES) * len(SCHEDULES) * 2
    assert len(set(bed)) == len(bed) == recorded
    run(monkeypatch, "--again", tmp_path)
    assert capsys.readouterr().out == first
    assert len(bed) == recorded


def test_every_pipeline_fits_the_machine():
    for pipeline in PIPELINES:
        assert sum(pipeline.cpu) <= MOST_OF_THE_CORES * CORES + 1e-9
        assert pipeline.batch % pipeline.microbatches == 0
