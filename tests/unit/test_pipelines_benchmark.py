"""How what was said of divided pipelines is held against what was measured; nothing is run."""

import json
import sys

import pytest

from benchmarks import pipelines
from benchmarks.pipelines import trials
from benchmarks.testbed.bed import MOST_OF_THE_CORES
from benchmarks.unseen import Answer

CORES = 2
"""Of the machine that the pipelines were made for."""


@pytest.fixture
def bed(monkeypatch):
    """Recordings that hold nothing; interleaved steps last 90 ms, others 100. GPipe is recorded while the machine is half as
    fast. The log of what was recorded."""
    log = []

    def step_ms(path):
        is_reference, is_slow = "reference" in path.name, "gpipe" in path.name
        return (90.0 if "interleaved" in path.name and not is_reference else 100.0) * (2 if is_slow else 1)

    monkeypatch.setattr(pipelines, "record", lambda setting, out, steps: log.append(out.name))
    monkeypatch.setattr(pipelines.esprof, "load", lambda path: path)
    monkeypatch.setattr(pipelines, "mean_step_ms", step_ms)
    return log


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["pipelines", *map(str, arguments)])
    pipelines.main()


def test_one_recording_predicts_all_divisions_before_they_are_carried_out(tmp_path, bed, monkeypatch, capsys):
    def ask(path, specs):
        assert len(set(bed)) == 2
        said = {spec: Answer(102.0, 95.0, 110.0, (-5.0, 5.0), 1.0) for spec in specs}
        return said | {specs[0]: Answer(99.0, 95.0, 110.0, (-5.0, 5.0), 1.0), specs[-1]: "no layers"}

    monkeypatch.setattr(pipelines, "ask", ask)
    page = tmp_path / "page.md"
    page.write_text("<!-- begin pipelines -->\n<!-- end pipelines -->\n")
    run(monkeypatch, "--quick", "--keep", tmp_path, "--write", page)
    (trial,) = trials(is_quick=True)
    assert set(bed) == {path.name for path in recordings(trial, tmp_path)}
    printed = capsys.readouterr().out.splitlines()
    table = [line for line in printed if line.startswith("|")]
    assert table[3] == "| 3 hosts | `stages=4+4+4,pipeline=gpipe` | 102.0 | 95 … 110 | 100.0 | +2.0 | yes |"
    assert table[4] == "| 3 hosts | `stages=2+2+2+2+2+2,pipeline=interleaved` | 102.0 | 95 … 110 | 90.0 | +13.3 | no |"
    assert table[-1] == "| 3 hosts | `stages=3+1+3+2+1+2,pipeline=interleaved` | no layers |  | 90.0 |  |  |"
    figures = {(found := json.loads(line))["name"]: found["value"] for line in printed if line.startswith("{")}
    assert figures["division_error_median"] == 2.0
    assert figures["division_savings_held"] == 75.0
    assert figures["reference_range"] == 100.0
    assert figures["advised_above_best"] == pytest.approx(11.1111)
    assert "\n".join(table) in page.read_text()
    assert "| advised above best | 11.1 % | pipeline 3 hosts; advised" in page.read_text()
    assert json.loads((tmp_path / "3-hosts.json").read_text())["stages=4+4+4,pipeline=1f1b"] == 99.0


def recordings(trial, folder):
    for job in trial.changes.values():
        yield from (job.recording(folder), pipelines.reference_of(job, folder))


def test_every_job_fits_the_machine_and_has_a_recording_of_its_own(tmp_path):
    names = []
    for trial in trials(is_quick=False):
        assert sum(trial.recorded.cpu) <= MOST_OF_THE_CORES * CORES + 1e-9
        for job in trial.changes.values():
            assert job.batch % job.microbatches == 0
            assert len(job.stages) == len(job.cpu) * (2 if job.schedule == "interleaved" else 1)
            names.append(job.recording(tmp_path).name)
    assert len(set(names)) == 33
