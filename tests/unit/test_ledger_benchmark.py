"""`benchmarks.ledger`: the table of predicted and observed steps, and its section of a page."""

import subprocess
import sys

import pytest

from benchmarks.ledger import carried_out, everything, groups, section, unmeasured
from benchmarks.sections import write_sections
from esprof import load
from esprof.run.logs import LEDGER, JobClass
from tests.cases.graph import gloo, op, run_of, step
from tests.cases.ledger import outcome_of, predicted
from tests.cases.run_directory import write_run

ALONE = JobClass(backend=None, devices="CPU", world_size=1, gradients=None)


def lines():
    kept = [predicted("bucket_mb=4"), predicted("bucket_mb=1"), predicted("data[ready]=0", job=ALONE)]
    return [*kept, *(outcome_of(one, share) for one, share in zip(kept, (0.75, 0.6, 0.8), strict=True))]


def test_outcomes_are_grouped_by_term_and_class_of_job():
    found = groups(lines()[3:])
    assert [(group.terms, group.job, len(group.outcomes)) for group in found] == [
        ("`bucket_mb`", "DDP, gloo, 2 × CPU", 2),
        ("`data[ready]`", "1 × CPU", 1),
    ]
    assert found[0].row() == ("`bucket_mb`", "DDP, gloo, 2 × CPU", "verify", "2", "12.5", "12.5", "25.0", "1", "0.0")
    assert everything(lines()[3:]).held_pct == pytest.approx(200 / 3)


def test_predictions_without_a_measurement_are_counted():
    left = predicted("compress=fp16")
    assert unmeasured([*lines(), left]) == [left]
    assert "Predictions without a measurement: 1." in section([*lines(), left])


def test_a_section_replaces_the_one_before(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Accuracy\n\nabove\n\n<!-- begin ledger -->\nold\n<!-- end ledger -->\n\nbelow\n")
    write_sections(page, {"ledger": "With \\1 and *stars*."})
    assert page.read_text() == (
        "# Accuracy\n\nabove\n\n<!-- begin ledger -->\nWith \\1 and *stars*.\n<!-- end ledger -->\n\nbelow\n"
    )
    with pytest.raises(SystemExit, match="no section other"):
        write_sections(page, {"other": ""})


def test_the_command_writes_its_section(tmp_path):
    for line in lines():
        LEDGER.append(tmp_path / "run", line)
    page = tmp_path / "page.md"
    page.write_text("# Accuracy\n\n<!-- begin ledger -->\n<!-- end ledger -->\n")
    command = [sys.executable, "-m", "benchmarks.ledger", str(tmp_path / "run"), "--write", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert '"ledger_error_median"' in done.stdout
    assert page.read_text().count("| `bucket_mb` |") == 1


def test_what_the_test_bed_changed_goes_into_the_same_ledger(tmp_path):
    rows = []
    for number in range(6):
        begin = number * 50_000.0
        rows += [step(number, begin, begin + 50_000), op("aten::linear", begin, 40_000)]
        rows += gloo(begin + 40_000, begin + 40_010, begin + 49_000)
    made = run_of({0: rows, 1: rows})
    write_run(tmp_path / "run", made.meta, {("events", rank): made.events(rank) for rank in made.ranks})
    outcome = carried_out(load(tmp_path / "run"), "network=2x", [50.0, 50.0], [46.0, 47.0])
    prediction, line = LEDGER.read(tmp_path / "run")
    assert (line, line.id, line.by) == (outcome, prediction.id, "test bed")
    assert line.observed.us == 46_500
